"""The pinned tree with its patches, as commits made in memory; no work tree is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.core.errors import PatchError, SourceError
from llamabuild.recipe.features import load_features
from llamabuild.recipe.load import load_series
from llamabuild.source.features import missing_probes
from llamabuild.source.fetch import fetch
from llamabuild.source.lock import PatchedSource, PatchOutcome
from llamabuild.source.mirror import keep, mirror_of, writing
from llamabuild.source.patches import load_patches
from llamabuild.source.stack import apply_stack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe
    from llamabuild.source.lock import Lock
    from llamabuild.source.mail import Author
    from llamabuild.source.patches import Upstream
    from llamabuild.source.stack import Step

IDENTITY = ("llamabuild", "llamabuild@localhost")
"""The committer of everything made here: fixed, so that the ids are the same everywhere."""


def patched_source(recipe: Recipe, lock: Lock, context: Context, *, keep_conflict: Path | None = None) -> PatchedSource:
    """Fetch the pinned tree and commit the patches on it.

    ``keep_conflict`` is a folder that gets the tree with markers when a patch conflicts.

    Raises SourceError when the tree cannot be had or a feature that the recipe names does not show in the result,
    PatchError when a patch does not fit.
    """
    fetched = fetch(lock, recipe.source.mirror, context)
    with writing(mirror_of(lock.repository, context), context) as repository:
        patches = load_patches(recipe, repository, context, upstream=upstream_by_number(lock.build_number))
        steps = apply_stack(repository, lock.tree, patches, features=load_features(context), stop=True)
        _refuse_conflict(repository, lock, steps, context, keep_conflict=keep_conflict)
        base, commit = commit_steps(repository, lock, steps)
        tree = steps[-1].attempt.tree if steps else lock.tree
        _check_features(repository, lock, tree, expected_features(recipe, context), context=context)
        keep(repository, "patched", commit, commit)
    return PatchedSource(
        lock=lock,
        repository=fetched.repository,
        provider=fetched.provider,
        base=base,
        commit=commit,
        tree=tree,
        outcomes=tuple(_outcome(each) for each in steps),
    )


def upstream_by_number(build_number: int) -> Upstream:
    """Whether a part is upstream's by the source's build number; the feature is checked when it is applied."""
    return lambda since, _: since is not None and build_number >= since


def commit_steps(repository: pygit2.Repository, lock: Lock, steps: Sequence[Step]) -> tuple[str, str]:
    """One commit for the pinned tree and one a patch that changes something; returns the first and the last."""
    base = commit = make_commit(
        repository,
        lock.tree,
        (),
        date=lock.date,
        message=f"{lock.ref}\n\nThe tree of {lock.commit} of {lock.repository}\n",
    )
    for each in steps:
        if each.attempt.state in {"applied", "merged"}:
            patch = each.patch
            commit = make_commit(
                repository,
                each.attempt.tree,
                (commit,),
                date=lock.date,
                message=patch.message,
                author=patch.author,
            )
    return base, commit


def make_commit(
    repository: pygit2.Repository,
    tree: str,
    parents: tuple[str, ...],
    *,
    date: int,
    message: str,
    author: Author | None = None,
) -> str:
    """Commit a tree with the fixed identity and date; a patch's author is kept, because the patch pins it too."""
    import pygit2

    committer = pygit2.Signature(*IDENTITY, date, 0)
    by = committer
    if author is not None:
        when = date if author.when is None else author.when
        by = pygit2.Signature(author.name or "unknown", author.email or "unknown", when, author.offset)
    return str(repository.create_commit(None, by, committer, message, tree, list(parents)))


def conflict_error(step: Step, onto: str, *, kept: Path | None = None) -> PatchError:
    """The sentence for a patch that does not fit."""
    locked = step.patch.locked
    first = step.attempt.conflicts[0]
    name = locked.id if len(locked.id) != 40 else locked.id[:12]
    hint = f"See every patch at once with: llamabuild series check {locked.series} --onto {onto}"
    if kept is not None:
        hint = f"The tree with both sides between markers is in {kept}; mend it and put the result into the series."
    return PatchError(
        f"Patch {step.patch.number} of series {locked.series}, {name} ({locked.subject}), does not apply to {onto}: "
        f"{first.place}.",
        details=tuple(line for each in step.attempt.conflicts for line in each.lines()),
        hint=hint,
    )


def _refuse_conflict(
    repository: pygit2.Repository,
    lock: Lock,
    steps: Sequence[Step],
    context: Context,
    *,
    keep_conflict: Path | None,
) -> None:
    from llamabuild.source.worktree import write_folder

    if not steps or steps[-1].attempt.state != "conflict":
        return
    if keep_conflict is not None:
        write_folder(repository, steps[-1].attempt.marked, keep_conflict, context)
    raise conflict_error(steps[-1], lock.ref, kept=keep_conflict)


def expected_features(recipe: Recipe, context: Context) -> tuple[str, ...]:
    """The recipe's features, and those of every series that it takes as a whole."""
    names = list(recipe.source.features)
    for use in recipe.series:
        if use.groups is None and not use.without:
            names += load_series(use.name, context, beside=recipe.file)[0].features
    return tuple(dict.fromkeys(names))


def _check_features(
    repository: pygit2.Repository, lock: Lock, tree: str, names: tuple[str, ...], *, context: Context
) -> None:
    table = load_features(context)
    missing = missing_probes(repository, tree, {name: table[name] for name in names})
    if missing:
        lacking = ", ".join(dict.fromkeys(line.partition(":")[0] for line in missing))
        raise SourceError(
            f"The patched source of {lock.recipe} does not have: {lacking}.",
            details=missing,
            hint="Pin a source that has it, add the series that brings it, or drop it from the recipe's features.",
        )


def _outcome(step: Step) -> PatchOutcome:
    state = step.attempt.state
    if state == "conflict":
        raise conflict_error(step, step.patch.locked.series)
    return PatchOutcome(step.patch.locked, state, step.attempt.note)
