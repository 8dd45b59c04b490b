"""One patch onto one tree: exactly, else three-way, else what stands against it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from llamabuild.core.errors import PatchError
from llamabuild.source.conflict import Conflict, conflicts_of_merge, conflicts_of_text, mark_text
from llamabuild.source.diff import parse_diff
from llamabuild.source.merge import merge_trees, tree_changes
from llamabuild.source.patch import TextChange, TreeChange
from llamabuild.source.treepatch import Entry, MisfitError, apply_to_tree, write_edits

if TYPE_CHECKING:
    import pygit2

    from llamabuild.source.diff import FileDiff, Hunk
    from llamabuild.source.patch import Patch

State = Literal["applied", "merged", "already-upstream", "empty", "conflict"]


@dataclass(frozen=True)
class Attempt:
    """How a patch went."""

    state: State
    tree: str
    """With the patch; the tree before where nothing was applied."""
    note: str = ""
    conflicts: tuple[Conflict, ...] = ()
    marked: str = ""
    """In a conflict: the tree with both sides between markers."""


def attempt(repository: pygit2.Repository, tree: str, patch: Patch) -> Attempt:
    """Apply a patch to a tree; a conflict is a result, not an error.

    Raises PatchError for a patch that wants to write outside of the tree.
    """
    change = patch.change
    if isinstance(change, TreeChange):
        return _commit(repository, tree, change, name=patch.locked.id)
    if isinstance(change, TextChange):
        return _text(repository, tree, change, name=patch.locked.id)
    return Attempt("already-upstream", tree, f"since build {change.since}" if change.since else "")


def is_reversible(repository: pygit2.Repository, tree: str, patch: Patch) -> str | None:
    """The tree without a patch that is in it already; None where it is not (or not as it is)."""
    change = patch.change
    if isinstance(change, TreeChange):
        files = diff_of(repository, change)
    elif isinstance(change, TextChange):
        files = change.files
    else:
        return tree
    try:
        backward = tuple(reversed_file(each) for each in reversed(files))
        return apply_to_tree(repository, tree, backward, name=patch.locked.id).tree
    except (MisfitError, PatchError):
        return None


def diff_of(repository: pygit2.Repository, change: TreeChange) -> tuple[FileDiff, ...]:
    """A commit as a text patch, whole ids and binary parts included, without renames."""
    return parse_diff(diff_text(repository, change), change.after)


def diff_text(repository: pygit2.Repository, change: TreeChange, *, renames: bool = False) -> bytes:
    """A commit as the bytes of a text patch."""
    import pygit2

    option = pygit2.enums.DiffOption
    diff = repository.diff(
        repository[change.before], repository[change.after], flags=option.SHOW_BINARY | option.INDENT_HEURISTIC
    )
    if renames:
        diff.find_similar()
    return b"".join(each.data for each in diff)


def reversed_file(diff: FileDiff) -> FileDiff:
    """A file's patch the other way round.

    Raises PatchError for a binary patch that has no way back.
    """
    if diff.binary is not None and len(diff.binary) < 2:
        raise PatchError(f"The binary patch of {diff.path.decode(errors='replace')} cannot be reversed.")
    return replace(
        diff,
        old_path=diff.new_path,
        new_path=diff.old_path,
        old_mode=diff.new_mode if diff.new_mode is not None else diff.old_mode,
        new_mode=diff.old_mode,
        old_id=diff.new_id,
        new_id=diff.old_id,
        hunks=tuple(_reversed_hunk(each) for each in diff.hunks),
        binary=None if diff.binary is None else (diff.binary[1], diff.binary[0]),
    )


def _reversed_hunk(hunk: Hunk) -> Hunk:
    return replace(hunk, old_start=hunk.new_start, new_start=hunk.old_start, old=hunk.new, new=hunk.old)


def _commit(repository: pygit2.Repository, tree: str, change: TreeChange, *, name: str) -> Attempt:
    if change.before == change.after:
        return Attempt("empty", tree)
    merged = merge_trees(repository, change.before, tree, change.after)
    if not merged.conflicts:
        if merged.tree == tree:
            return Attempt("already-upstream", tree)
        return Attempt("applied", merged.tree) if merged.exact else Attempt("merged", merged.tree, "three-way")
    files = diff_of(repository, change)
    if _is_there(repository, tree, files, name=name):
        return Attempt("already-upstream", tree)
    conflicts = conflicts_of_merge(repository, merged.conflicts, files)
    return Attempt("conflict", tree, conflicts=conflicts, marked=merged.tree)


def _text(repository: pygit2.Repository, tree: str, change: TextChange, *, name: str) -> Attempt:
    try:
        result = apply_to_tree(repository, tree, change.files, name=name)
    except MisfitError as exc:
        return _text_three_way(repository, tree, change, name=name, misfit=exc)
    if result.tree == tree:
        return Attempt("empty", tree)
    if result.offset:
        return Attempt("merged", result.tree, f"offset {result.offset}")
    return Attempt("applied", result.tree)


def _text_three_way(
    repository: pygit2.Repository, tree: str, change: TextChange, *, name: str, misfit: MisfitError
) -> Attempt:
    """As ``git am -3``: on the blobs that the ``index`` lines name, where they are here; then merged."""
    base = _base_tree(repository, tree, change.files)
    after = None
    if base is not None:
        with contextlib.suppress(MisfitError):
            after = apply_to_tree(repository, base, change.files, name=name).tree
    if base is not None and after is not None:
        merged = merge_trees(repository, base, tree, after)
        if merged.tree == tree:
            return Attempt("already-upstream", tree)
        if not merged.conflicts:
            return Attempt("merged", merged.tree, "three-way")
        conflicts, marked = conflicts_of_merge(repository, merged.conflicts, change.files), merged.tree
    else:
        conflicts = conflicts_of_text(repository, tree, change.files, misfit)
        marked = mark_text(repository, tree, change.files, name=name)
    if _is_there(repository, tree, change.files, name=name):
        return Attempt("already-upstream", tree)
    return Attempt("conflict", tree, conflicts=conflicts, marked=marked)


def _is_there(repository: pygit2.Repository, tree: str, files: tuple[FileDiff, ...], *, name: str) -> bool:
    try:
        backward = tuple(reversed_file(each) for each in reversed(files))
        apply_to_tree(repository, tree, backward, name=name)
    except (MisfitError, PatchError):
        return False
    return True


def _base_tree(repository: pygit2.Repository, tree: str, files: tuple[FileDiff, ...]) -> str | None:
    """The tree with each touched file as the patch's ``index`` line names it; None where a blob is not here."""
    edits: dict[bytes, Entry | None] = {}
    for diff in files:
        if diff.old_path is None:
            if diff.new_path is not None:
                edits[diff.new_path] = None
            continue
        if diff.old_id is None:
            return None
        try:
            blob = repository[diff.old_id]
        except (KeyError, ValueError):
            return None
        edits[diff.old_path] = Entry(str(blob.id), diff.old_mode or 0o100644)
        if diff.new_path is not None and diff.new_path != diff.old_path:
            edits.setdefault(diff.new_path, None)
    return write_edits(repository, tree, edits)


def touched(repository: pygit2.Repository, patch: Patch) -> frozenset[bytes]:
    """The paths that a patch touches."""
    change = patch.change
    if isinstance(change, TreeChange):
        return frozenset(path for path, _, _ in tree_changes(repository, change.before, change.after))
    if isinstance(change, TextChange):
        return frozenset(path for each in change.files for path in (each.old_path, each.new_path) if path)
    return frozenset()
