"""From a recipe's series to the list of patches, pinned by content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import RecipeError
from llamabuild.recipe.load import load_series, matches
from llamabuild.source.lock import LockedPatch
from llamabuild.source.mail import parse_patch

if TYPE_CHECKING:
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe, SeriesUse
    from llamabuild.recipe.series import FilePart, Series
    from llamabuild.source.mail import PatchFile


@dataclass(frozen=True)
class Loaded:
    """A patch with what is needed to apply it."""

    patch: LockedPatch
    file: PatchFile


def load_patches(recipe: Recipe, context: Context) -> tuple[Loaded, ...]:
    """The patches of a recipe in order, those it leaves out left out.

    Raises RecipeError for a manifest that is not valid, PatchError for a damaged patch file.
    """
    loaded: list[Loaded] = []
    for use in recipe.series:
        series, path = load_series(use.name, context, beside=recipe.file)
        loaded += _selected(use, series, path)
    return tuple(loaded)


def _selected(use: SeriesUse, series: Series, path: Path) -> list[Loaded]:
    taken: list[Loaded] = []
    number = 0
    for part in series.part:
        if part.kind != "files":
            raise RecipeError(f"{path}: parts of kind {part.kind} are not supported yet.")
        for each in _files(series, part, path.with_suffix("")):
            number += 1
            if use.groups is not None and each.patch.group not in use.groups:
                continue
            if any(matches(without, name=each.patch.id, number=number) for without in use.without):
                continue
            taken.append(each)
    return taken


def _files(series: Series, part: FilePart, folder: Path) -> list[Loaded]:
    loaded = []
    for name in part.files:
        data = (folder / name).read_bytes()
        file = parse_patch(data, str(folder / name))
        patch = LockedPatch(
            id=name,
            series=series.name,
            group=part.group,
            subject=file.subject,
            switches=part.switches,
            digest=hashlib.sha256(data).hexdigest(),
        )
        loaded.append(Loaded(patch, file))
    return loaded
