"""Three-way merges of trees in memory: only what a patch touches is looked at, so that a merge costs a millisecond."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.source.treepatch import FOLDER, LINK, Entry, TreeFiles, write_edits, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pygit2

Change = tuple[bytes, Entry | None, Entry | None]
"""A path with the entry before and after."""


@dataclass(frozen=True)
class Sides:
    """A path on which a merge does not come together: the three entries."""

    path: bytes
    base: Entry | None
    ours: Entry | None
    theirs: Entry | None


@dataclass(frozen=True)
class Merged:
    """A merge's result."""

    tree: str
    """The merged tree; where there are conflicts, with markers in their files."""
    exact: bool
    """Every touched file was in ``ours`` what it was in ``base``."""
    conflicts: tuple[Sides, ...] = ()


def tree_changes(repository: pygit2.Repository, before: str, after: str) -> tuple[Change, ...]:
    """The files that differ between two trees, in order; equal folders are not entered."""
    return tuple(_differences(repository, repository[before], repository[after], b""))


def merge_trees(repository: pygit2.Repository, base: str, ours: str, theirs: str) -> Merged:
    """Bring what ``base`` → ``theirs`` changes onto ``ours``, as ``git cherry-pick`` does."""
    if base == ours:
        return Merged(theirs, exact=True)
    changes = tree_changes(repository, base, theirs)
    mine = TreeFiles(repository, ours)
    edits: dict[bytes, Entry | None] = {}
    # A file that both took away may have been renamed by both, to different names.
    clean = not any(before is not None and mine.get(path) is None for path, before, _ in changes)
    for path, before, after in changes if clean else ():
        there = mine.get(path)
        if there == after:
            continue
        if there != before or (after is not None and not _free(mine, path)):
            clean = False
            break
        edits[path] = after
    if clean:
        exact = all(mine.get(path) == before for path, before, _ in changes)
        return Merged(write_edits(repository, ours, edits), exact=exact)
    return _merged(repository, changes, (base, ours, theirs), mine)


def _merged(
    repository: pygit2.Repository, changes: tuple[Change, ...], trees: tuple[str, str, str], mine: TreeFiles
) -> Merged:
    ours = trees[1]
    # A file that is gone from ours, or whose place is taken, may have been renamed: only the whole trees can tell.
    whole = any(
        (before is not None and mine.get(path) is None) or (after is not None and not _free(mine, path))
        for path, before, after in changes
    )
    if whole:
        sides = trees
    else:
        empty = write_tree(repository, {})
        sides = (
            write_edits(repository, empty, {path: before for path, before, _ in changes}),
            write_edits(repository, empty, {path: mine.get(path) for path, _, _ in changes}),
            write_edits(repository, empty, {path: after for path, _, after in changes}),
        )
    index = _best(repository, *sides)
    triples = list(index.conflicts or ())
    for path in {entry.path for triple in triples for entry in triple if entry is not None}:
        with contextlib.suppress(KeyError):
            del index.conflicts[path]
    conflicts = tuple(_sides(triples))
    result = str(index.write_tree(repository))
    result = write_edits(repository, result, {each.path: mark(repository, each) for each in conflicts})
    if not whole:
        edits = {path: after for path, _, after in tree_changes(repository, sides[1], result)}
        result = write_edits(repository, ours, edits)
    return Merged(result, exact=False, conflicts=conflicts)


def _best(repository: pygit2.Repository, base: str, ours: str, theirs: str) -> pygit2.Index:
    """Merge by Myers' way of lining up, else by patience: git's is histogram, and either may be the one that fits."""
    import pygit2

    index = repository.merge_trees(base, ours, theirs)
    if index.conflicts is not None:
        patient = repository.merge_trees(base, ours, theirs, file_flags=pygit2.enums.MergeFileFlag.DIFF_PATIENCE)
        if patient.conflicts is None:
            return patient
    return index


def _sides(conflicts: list[tuple[pygit2.IndexEntry | None, ...]]) -> Iterator[Sides]:
    for base, ours, theirs in conflicts:
        named = ours or theirs or base
        if named is None:
            continue
        yield Sides(
            named.path.encode(errors="surrogateescape"),
            *(None if each is None else Entry(str(each.id), int(each.mode)) for each in (base, ours, theirs)),
        )


def mark(repository: pygit2.Repository, sides: Sides) -> Entry | None:
    """A conflicting file with both sides between markers; where a side has no such file, the file of the other."""
    if sides.ours is None or sides.theirs is None:
        return sides.ours or sides.theirs
    data = [b"" if each is None else bytes(repository[each.id].data) for each in (sides.base, sides.ours, sides.theirs)]
    if any(b"\0" in each for each in data) or LINK in {sides.ours.mode, sides.theirs.mode}:
        return sides.ours
    # libgit2's binding wants UTF-8; Latin-1 maps every byte to a character and back.
    trees = [
        write_tree(
            repository, {b"target": Entry(str(repository.create_blob(each.decode("latin-1").encode())), 0o100644)}
        )
        for each in data
    ]
    index = repository.merge_trees(*trees)
    if index.conflicts is None:
        return sides.ours
    text = str(repository.merge_file_from_index(*next(iter(index.conflicts))).contents)
    return Entry(str(repository.create_blob(text.encode("latin-1"))), sides.ours.mode)


def _free(files: TreeFiles, path: bytes) -> bool:
    """Whether a path can be written: nothing above it is a file or a link, and it is not itself a folder."""
    parts = path.split(b"/")
    above = (files.get(b"/".join(parts[:end])) for end in range(1, len(parts)))
    there = files.get(path)
    return all(each is None or each.mode == FOLDER for each in above) and (there is None or there.mode != FOLDER)


def _differences(
    repository: pygit2.Repository, before: pygit2.Tree | None, after: pygit2.Tree | None, where: bytes
) -> Iterator[Change]:
    old = {each.raw_name: Entry(str(each.id), int(each.filemode)) for each in before or ()}
    new = {each.raw_name: Entry(str(each.id), int(each.filemode)) for each in after or ()}
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was == now:
            continue
        path = where + name
        folders = [repository[each.id] if each is not None and each.mode == FOLDER else None for each in (was, now)]
        files = [each if each is not None and each.mode != FOLDER else None for each in (was, now)]
        if files != [None, None]:
            yield path, files[0], files[1]
        if folders != [None, None]:
            yield from _differences(repository, folders[0], folders[1], path + b"/")
