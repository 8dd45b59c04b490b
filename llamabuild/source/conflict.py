"""Conflicts as people read them: file, hunk, line and both sides; and the file with markers to mend."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.source.hunks import HunkError, apply_hunks, find_hunk, split_lines
from llamabuild.source.treepatch import Entry, MisfitError, TreeFiles, apply_to_tree, write_edits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pygit2

    from llamabuild.source.diff import FileDiff, Hunk
    from llamabuild.source.merge import Sides

_SHOWN = 12
"""Lines of a side that are shown; a conflict is looked at in its file, this is to recognise it."""


@dataclass(frozen=True)
class Conflict:
    """One place where a patch and the target do not come together."""

    file: str
    reason: str
    hunk: int | None = None
    """The patch's hunk in this file, from 1."""
    line: int | None = None
    """Where it is in the target's file, from 1."""
    ours: tuple[str, ...] = ()
    """The target's lines."""
    theirs: tuple[str, ...] = ()
    """What the patch wants there."""
    upstream: tuple[str, ...] = ()
    """Upstream commits that touched the place, newest first, where the history is here."""

    @property
    def place(self) -> str:
        """``src/x.cpp, hunk 2, line 120``."""
        parts = [self.file]
        parts += [f"hunk {self.hunk}"] if self.hunk is not None else []
        parts += [f"line {self.line}"] if self.line is not None else []
        return ", ".join(parts)

    def lines(self) -> tuple[str, ...]:
        """Both sides, for a terminal."""
        shown = [f"{self.place}: {self.reason}"]
        for title, side in (("target", self.ours), ("patch", self.theirs)):
            shown += [f"  {title}: {line}" for line in side[:_SHOWN]]
            shown += [f"  {title}: … {len(side) - _SHOWN} more"] if len(side) > _SHOWN else []
        shown += [f"  upstream: {each}" for each in self.upstream]
        return tuple(shown)


def conflicts_of_merge(
    repository: pygit2.Repository, sides: Sequence[Sides], files: Sequence[FileDiff]
) -> tuple[Conflict, ...]:
    """What a three-way merge could not bring together."""
    found: list[Conflict] = []
    diffs = {path: each for each in files for path in (each.old_path, each.new_path) if path is not None}
    for each in sides:
        name = each.path.decode(errors="replace")
        diff = diffs.get(each.path)
        if each.ours is None:
            found.append(Conflict(name, "the target has no such file (removed, or moved where it is not recognised)"))
        elif each.theirs is None:
            found.append(Conflict(name, "the patch removes the file, and the target has changed it"))
        elif each.base is None:
            found.append(Conflict(name, "the patch adds the file, and the target has another one of that name"))
        elif diff is None or not diff.hunks:
            found.append(Conflict(name, "both changed the file, which is not text or changed its kind"))
        else:
            data = bytes(repository[each.ours.id].data)
            own = list(_text_conflicts(name, data, diff.hunks))
            found += own or [Conflict(name, "both changed the same lines")]
    return tuple(found)


def conflicts_of_text(
    repository: pygit2.Repository, tree: str, files: Sequence[FileDiff], misfit: MisfitError
) -> tuple[Conflict, ...]:
    """Every hunk of a patch file that has no place in the target."""
    target = TreeFiles(repository, tree)
    found: list[Conflict] = []
    for diff in files:
        entry = target.get(diff.old_path) if diff.old_path is not None else None
        if entry is not None and diff.hunks:
            found += _text_conflicts(diff.path.decode(errors="replace"), target.read(entry), diff.hunks)
    if not any(each.file == misfit.path for each in found):
        number = None if misfit.hunk is None else misfit.hunk.number
        found.insert(0, Conflict(misfit.path, misfit.reason, hunk=number))
    return tuple(found)


def mark_text(repository: pygit2.Repository, tree: str, files: Sequence[FileDiff], *, name: str) -> str:
    """The tree with every hunk that fits, and the others between markers where they would go."""
    target = TreeFiles(repository, tree)
    result = tree
    for diff in files:
        try:
            result = apply_to_tree(repository, result, (diff,), name=name).tree
            continue
        except MisfitError:
            entry = target.get(diff.old_path) if diff.old_path is not None else target.get(diff.path)
        if entry is None or not diff.hunks:
            continue
        blob = repository.create_blob(_marked(target.read(entry), diff.hunks))
        result = write_edits(repository, result, {diff.old_path or diff.path: Entry(str(blob), entry.mode)})
    return result


def _marked(data: bytes, hunks: Sequence[Hunk]) -> bytes:
    failing = [hunk for hunk, _ in _failing(data, hunks)]
    image = data
    for hunk in hunks:
        if hunk not in failing:
            try:
                image = apply_hunks(image, [hunk]).data
            except HunkError:
                failing.append(hunk)
    lines = split_lines(image)
    for hunk in sorted(failing, key=lambda each: each.old_start, reverse=True):
        start, stop = _nearest_place(lines, hunk)
        ended = [line if line.endswith(b"\n") else line + b"\n" for line in lines[start:stop]]
        wanted = [line if line.endswith(b"\n") else line + b"\n" for line in hunk.new]
        lines[start:stop] = [b"<<<<<<< target\n", *ended, b"=======\n", *wanted, b">>>>>>> patch\n"]
    return b"".join(lines)


def _text_conflicts(name: str, data: bytes, hunks: Sequence[Hunk]) -> Iterator[Conflict]:
    lines = split_lines(data)
    for hunk, reason in _failing(data, hunks):
        start, stop = _nearest_place(lines, hunk)
        yield Conflict(
            name,
            reason,
            hunk=hunk.number,
            line=start + 1,
            ours=tuple(_shown(line) for line in lines[start:stop]),
            theirs=tuple(_change(hunk)),
        )


def _failing(data: bytes, hunks: Sequence[Hunk]) -> list[tuple[Hunk, str]]:
    """The hunks that have no place of their own in the file, each by itself."""
    lines = split_lines(data)
    fresh = [False] * len(lines)
    reason = "the target's lines are not those the patch was made for"
    return [(hunk, reason) for hunk in hunks if find_hunk(lines, fresh, hunk) is None]


def _nearest_place(lines: Sequence[bytes], hunk: Hunk) -> tuple[int, int]:
    """The lines of the target that look most like what the hunk was made for; its stated place when none do."""
    size = len(hunk.old)
    stated = min(max(hunk.old_start - 1, 0), len(lines))
    if not size:
        return stated, stated
    wanted = {line: index for index, line in enumerate(hunk.old) if line.strip()}
    votes: dict[int, int] = {}
    for at, line in enumerate(lines):
        if line in wanted:
            start = at - wanted[line]
            votes[start] = votes.get(start, 0) + 1
    if not votes:
        return stated, min(stated + size, len(lines))
    best = max(votes, key=lambda start: (votes[start], -abs(start - stated)))
    start = max(best, 0)
    window = lines[start : start + 2 * size]
    blocks = difflib.SequenceMatcher(None, list(hunk.old), list(window), autojunk=False).get_matching_blocks()
    last = max((block.b + block.size for block in blocks if block.size), default=size)
    return start, min(start + max(last, 1), len(lines))


def _change(hunk: Hunk) -> Iterator[str]:
    """A hunk's lines as a diff shows them."""
    matcher = difflib.SequenceMatcher(None, hunk.old, hunk.new, autojunk=False)
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if kind == "equal":
            yield from (f" {_shown(line)}" for line in hunk.old[old_from:old_to])
        else:
            yield from (f"-{_shown(line)}" for line in hunk.old[old_from:old_to])
            yield from (f"+{_shown(line)}" for line in hunk.new[new_from:new_to])


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode(errors="replace")
