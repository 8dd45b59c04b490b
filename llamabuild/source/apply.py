"""The pinned tree with its patches, as commits made in memory; no work tree is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.core.errors import PatchError, SourceError
from llamabuild.recipe.features import load_features
from llamabuild.source.fetch import fetch
from llamabuild.source.lock import PatchedSource, PatchOutcome
from llamabuild.source.mirror import keep, mirror_of, writing
from llamabuild.source.patches import load_patches
from llamabuild.source.treepatch import MisfitError, TreeFiles, apply_to_tree

if TYPE_CHECKING:
    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.features import TreeProbe
    from llamabuild.recipe.model import Recipe
    from llamabuild.source.lock import Lock
    from llamabuild.source.patches import Loaded

IDENTITY = ("llamabuild", "llamabuild@localhost")
"""The committer of everything made here: fixed, so that the ids are the same everywhere."""


def patched_source(recipe: Recipe, lock: Lock, context: Context) -> PatchedSource:
    """Fetch the pinned tree and commit the patches on it.

    Raises SourceError when the tree cannot be had or a feature that the recipe names does not show in the result,
    PatchError when a patch does not fit.
    """
    fetched = fetch(lock, recipe.source.mirror, context)
    loaded = load_patches(recipe, context)
    with writing(mirror_of(lock.repository, context), context) as repository:
        base = commit = make_commit(
            repository,
            lock.tree,
            (),
            date=lock.date,
            message=f"{lock.ref}\n\nThe tree of {lock.commit} of {lock.repository}\n",
        )
        tree = lock.tree
        outcomes = []
        for each in loaded:
            tree, outcome = _applied(repository, tree, each, lock)
            outcomes.append(outcome)
            if outcome.state in {"applied", "merged"}:
                commit = make_commit(
                    repository, tree, (commit,), date=lock.date, message=each.file.message, loaded=each
                )
        keep(repository, "patched", commit, commit)
        patched = PatchedSource(
            lock=lock,
            repository=fetched.repository,
            provider=fetched.provider,
            base=base,
            commit=commit,
            tree=tree,
            outcomes=tuple(outcomes),
        )
        check_features(patched, context)
        return patched


def make_commit(
    repository: pygit2.Repository,
    tree: str,
    parents: tuple[str, ...],
    *,
    date: int,
    message: str,
    loaded: Loaded | None = None,
) -> str:
    """Commit a tree with the fixed identity and date; a patch's author is kept, because the patch pins it too."""
    import pygit2

    committer = pygit2.Signature(*IDENTITY, date, 0)
    author = committer
    if loaded is not None and loaded.file.author is not None:
        who = loaded.file.author
        author = pygit2.Signature(who.name, who.email, date if who.when is None else who.when, who.offset)
    return str(repository.create_commit(None, author, committer, message, tree, list(parents)))


def check_features(patched: PatchedSource, context: Context) -> None:
    """Raise SourceError when a feature of the recipe does not show in the patched tree."""
    import pygit2

    table = load_features(context)
    files = TreeFiles(pygit2.Repository(str(patched.repository)), patched.tree)
    missing = [
        f"{name}: {text}"
        for name in patched.lock.features
        for probe in table[name].tree
        if (text := probe_problem(files, probe))
    ]
    if missing:
        names = ", ".join(dict.fromkeys(line.partition(":")[0] for line in missing))
        raise SourceError(
            f"The patched source of {patched.lock.recipe} does not have: {names}.",
            details=tuple(missing),
            hint="Pin a source that has it, add the series that brings it, or drop it from the recipe's features.",
        )


def probe_problem(files: TreeFiles, probe: TreeProbe) -> str:
    """Why a tree probe does not hold; nothing when it does."""
    entry = files.get(probe.path.encode())
    if entry is None:
        return f"there is no {probe.path}"
    text = files.read(entry)
    if probe.text is not None and probe.text.encode() not in text:
        return f"{probe.text!r} is not in {probe.path}"
    if probe.absent is not None and probe.absent.encode() in text:
        return f"{probe.absent!r} is still in {probe.path}"
    return ""


def _applied(repository: pygit2.Repository, tree: str, each: Loaded, lock: Lock) -> tuple[str, PatchOutcome]:
    try:
        result = apply_to_tree(repository, tree, each.file.files, name=each.patch.id)
    except MisfitError as exc:
        where = f" (hunk {exc.hunk.number}, line {exc.hunk.old_start})" if exc.hunk is not None else ""
        raise PatchError(
            f"Patch {each.patch.id} of series {each.patch.series} does not apply to {lock.ref}: "
            f"{exc.path}{where}: {exc.reason}.",
            hint=f"See every patch at once with: llamabuild series check {each.patch.series} --onto {lock.ref}",
        ) from exc
    if result.tree == tree:
        return tree, PatchOutcome(each.patch, "empty")
    if result.offset:
        return result.tree, PatchOutcome(each.patch, "merged", f"offset {result.offset}")
    return result.tree, PatchOutcome(each.patch, "applied")
