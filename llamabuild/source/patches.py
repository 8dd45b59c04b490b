"""Patches of a series with everything that is needed to apply them, pinned by content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from llamabuild.core.errors import RecipeError
from llamabuild.recipe.load import load_series, matches
from llamabuild.source.parts import PartLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe, SeriesUse
    from llamabuild.recipe.series import Series
    from llamabuild.source.patch import Patch

Upstream: TypeAlias = "Callable[[int | None, str | None], bool]"
"""Whether what came with a build number, and shows as a feature, is in the target already: it is not fetched then."""


@dataclass(frozen=True)
class Selection:
    """What of a series is taken."""

    groups: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()

    @classmethod
    def of(cls, use: SeriesUse) -> Selection:
        """As a recipe says it."""
        return cls(groups=use.groups, without=use.without)


def load_patches(
    recipe: Recipe, repository: pygit2.Repository, context: Context, *, upstream: Upstream
) -> tuple[Patch, ...]:
    """The patches of a recipe in order; the commits of forks are fetched into ``repository`` (hold its lock).

    Raises RecipeError for a selection that cannot be, PatchError for a damaged patch, SourceError for commits that
    cannot be had.
    """
    loaded: list[Patch] = []
    for use in recipe.series:
        series, path = load_series(use.name, context, beside=recipe.file)
        loaded += load_series_patches(
            series, path, repository, context=context, upstream=upstream, selection=Selection.of(use)
        )
    return tuple(loaded)


def load_series_patches(
    series: Series,
    path: Path,
    repository: pygit2.Repository,
    *,
    context: Context,
    upstream: Upstream,
    selection: Selection | None = None,
) -> tuple[Patch, ...]:
    """The patches of one series in order, or the selected ones; see load_patches. ``path`` is the manifest's file."""
    loader = PartLoader(series, path.with_suffix(""), repository, context, upstream=upstream)
    patches = loader.load()
    if selection is None:
        return patches
    taken = tuple(each for each in patches if _taken(each, selection))
    _check_together(series, patches, taken)
    return taken


def _taken(patch: Patch, selection: Selection) -> bool:
    if selection.groups is not None and patch.locked.group not in selection.groups:
        return False
    return not any(matches(each, name=patch.locked.id, number=patch.number) for each in selection.without)


def _check_together(series: Series, patches: Sequence[Patch], taken: Sequence[Patch]) -> None:
    """Refuse a selection that tears apart what compiles only together."""
    for part in series.part:
        for group in part.together if part.kind == "range" else ():
            members = [each for each in patches if any(each.locked.id.startswith(name) for name in group)]
            left = [each for each in members if each not in taken]
            if left and len(left) < len(members):
                kept = next(each for each in members if each in taken)
                raise RecipeError(
                    f"Series {series.name}: patch {left[0].number} ({left[0].locked.subject}) is left out, "
                    f"but {kept.number} ({kept.locked.subject}) compiles only with it.",
                    hint="Take both, or leave both out.",
                )
