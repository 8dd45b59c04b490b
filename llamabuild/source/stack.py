"""A stack of patches onto a tree, one after another, with what became of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llamabuild.core.errors import PatchError
from llamabuild.source.attempt import Attempt, attempt, is_reversible, touched
from llamabuild.source.features import missing_probes
from llamabuild.source.patch import UpstreamChange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pygit2

    from llamabuild.recipe.features import Feature
    from llamabuild.source.patch import Patch


@dataclass(frozen=True)
class Step:
    """One patch of a stack, and how it went."""

    patch: Patch
    attempt: Attempt
    needs: tuple[Patch, ...] = ()
    """In a conflict: earlier patches that failed and touch the same files, so that this one may be none of its own."""


def apply_stack(
    repository: pygit2.Repository,
    tree: str,
    patches: Sequence[Patch],
    *,
    features: Mapping[str, Feature],
    stop: bool,
) -> tuple[Step, ...]:
    """Apply patches in order; ``stop`` ends at the first conflict, else the later ones are tried without it.

    A part (a fork's range, a pull request) that upstream took as one commit conflicts with itself when it is applied
    again. So when a patch conflicts, its part's patches are looked for in the tree as a whole, last one first; where
    all of them are there, they all count as upstream.

    Raises PatchError for a patch that wants to write outside of the tree, or one that should be upstream and is not.
    """
    steps: list[Step] = []
    began = tree
    part: tuple[str, int] | None = None
    whole: tuple[str, int] | None = None
    for patch in patches:
        key = (patch.locked.series, patch.part)
        if key != part:
            part, began = key, tree
        if key == whole:
            steps.append(Step(patch, Attempt("already-upstream", tree)))
            continue
        tried = _attempt(repository, tree, patch, features)
        if tried.state == "conflict" and _part_is_there(repository, began, patches, key):
            tree, whole = began, key
            steps = [
                replace(each, attempt=Attempt("already-upstream", began)) if _key(each.patch) == key else each
                for each in steps
            ]
            steps.append(Step(patch, Attempt("already-upstream", tree)))
            continue
        steps.append(Step(patch, tried, _needs(repository, patch, steps) if tried.state == "conflict" else ()))
        tree = tried.tree
        if tried.state == "conflict" and stop:
            break
    return tuple(steps)


def _key(patch: Patch) -> tuple[str, int]:
    return patch.locked.series, patch.part


def _attempt(repository: pygit2.Repository, tree: str, patch: Patch, features: Mapping[str, Feature]) -> Attempt:
    change = patch.change
    if isinstance(change, UpstreamChange) and change.feature is not None:
        missing = missing_probes(repository, tree, {change.feature: features[change.feature]})
        if missing:
            raise PatchError(
                f"Patch {patch.locked.id} of series {patch.locked.series} should be in upstream since build "
                f"{change.since}, but the tree does not show it.",
                details=missing,
                hint="Check the recipe's build-number and the manifest's upstream-since.",
            )
    return attempt(repository, tree, patch)


def _part_is_there(repository: pygit2.Repository, tree: str, patches: Sequence[Patch], key: tuple[str, int]) -> bool:
    members = [each for each in patches if _key(each) == key]
    if len(members) < 2:
        return False
    for patch in reversed(members):
        before = is_reversible(repository, tree, patch)
        if before is None:
            return False
        tree = before
    return True


def _needs(repository: pygit2.Repository, patch: Patch, steps: Sequence[Step]) -> tuple[Patch, ...]:
    paths = touched(repository, patch)
    return tuple(
        each.patch for each in steps if each.attempt.state == "conflict" and paths & touched(repository, each.patch)
    )
