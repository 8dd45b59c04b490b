"""Patch text as data: the files of a unified diff with git's extended headers, their hunks and binary parts."""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llamabuild.core.errors import PatchError
from llamabuild.source.diffnames import NULL, common_name, header_name, stripped

if TYPE_CHECKING:
    from collections.abc import Iterator

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_INDEX = re.compile(rb"^index ([0-9a-f]+)\.\.([0-9a-f]+)(?: ([0-7]{6}))?")


@dataclass(frozen=True)
class Hunk:
    """One ``@@`` block. Lines keep their line ends; a last line without one has none."""

    number: int
    """From 1, within its file."""
    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    """Context and removed lines."""
    new: tuple[bytes, ...]
    """Context and added lines."""
    leading: int
    """Context lines before the first change."""
    trailing: int
    """Context lines after the last change."""


@dataclass(frozen=True)
class Binary:
    """One direction of a ``GIT binary patch``: the whole content, or a delta against the old one."""

    delta: bool
    data: bytes


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file."""

    old_path: bytes | None
    """None for a new file."""
    new_path: bytes | None
    """None for a deleted file."""
    old_mode: int | None = None
    new_mode: int | None = None
    copied: bool = False
    old_id: str | None = None
    """The blob before, often abbreviated; None without an ``index`` line."""
    new_id: str | None = None
    hunks: tuple[Hunk, ...] = ()
    binary: tuple[Binary, ...] | None = None
    """Forward, and where the patch has it, backward."""

    @property
    def path(self) -> bytes:
        """The path to name the file by."""
        return self.new_path or self.old_path or b""


@dataclass
class _Header:
    old_path: bytes | None = None
    new_path: bytes | None = None
    old_mode: int | None = None
    new_mode: int | None = None
    created: bool = False
    deleted: bool = False
    copied: bool = False
    old_id: str | None = None
    new_id: str | None = None
    hunks: list[Hunk] = field(default_factory=list)
    binary: tuple[Binary, ...] | None = None


class _Lines:
    """The lines of a patch with a cursor."""

    def __init__(self, text: bytes, name: str) -> None:
        self.lines = text.split(b"\n")
        if self.lines and not self.lines[-1]:
            self.lines.pop()
        self.ended = text.endswith(b"\n")
        self.at = 0
        self.name = name

    @property
    def more(self) -> bool:
        return self.at < len(self.lines)

    @property
    def line(self) -> bytes:
        return self.lines[self.at]

    def corrupt(self, what: str) -> PatchError:
        return PatchError(
            f"{self.name}:{self.at + 1}: the patch is damaged: {what}.", hint="Fetch or make the patch file again."
        )


def parse_diff(text: bytes, name: str) -> tuple[FileDiff, ...]:
    """The files of a patch in order; whatever stands around them (mail headers, a signature) is passed over.

    Raises PatchError with the line for a patch that is cut off or damaged.
    """
    lines = _Lines(text, name)
    return tuple(_files(lines))


def _files(lines: _Lines) -> Iterator[FileDiff]:
    while lines.more:
        line = lines.line
        if line.startswith(b"diff --git "):
            yield _git_file(lines)
        elif line.startswith(b"--- ") and _traditional(lines):
            yield _plain_file(lines)
        elif _HUNK.match(line):
            raise lines.corrupt("a hunk without a file header")
        else:
            lines.at += 1


def _traditional(lines: _Lines) -> bool:
    following = lines.lines[lines.at + 1 : lines.at + 3]
    return len(following) == 2 and following[0].startswith(b"+++ ") and bool(_HUNK.match(following[1]))


def _git_file(lines: _Lines) -> FileDiff:
    first = lines.line[len(b"diff --git ") :]
    header = _Header()
    lines.at += 1
    while lines.more and _extended(header, lines.line):
        lines.at += 1
    if lines.more and lines.line.startswith((b"GIT binary patch", b"Binary files ")):
        header.binary = _binary(lines)
    elif lines.more and lines.line.startswith(b"--- "):
        old = header_name(lines.line[4:])
        lines.at += 1
        if not lines.more or not lines.line.startswith(b"+++ "):
            raise lines.corrupt("--- without +++")
        new = header_name(lines.line[4:])
        lines.at += 1
        header.old_path = header.old_path or stripped(old)
        header.new_path = header.new_path or stripped(new)
        # A file that is new or gone may say so with /dev/null alone.
        header.created = header.created or old == NULL
        header.deleted = header.deleted or new == NULL
        header.hunks = list(_hunks(lines))
    if header.old_path is None or header.new_path is None:
        both = common_name(first)
        if both is None and header.old_path is None and header.new_path is None:
            raise lines.corrupt("the file's name cannot be told")
        header.old_path = header.old_path or both or header.new_path
        header.new_path = header.new_path or both or header.old_path
    return _done(header)


def _plain_file(lines: _Lines) -> FileDiff:
    old = header_name(lines.line[4:])
    new = header_name(lines.lines[lines.at + 1][4:])
    lines.at += 2
    hunks = list(_hunks(lines))
    header = _Header(hunks=hunks, created=old == NULL, deleted=new == NULL)
    # diff -N writes the epoch or an empty range instead of /dev/null.
    header.created |= len(hunks) == 1 and not hunks[0].old and hunks[0].old_start == 0
    header.old_path = header.new_path = stripped(new) or stripped(old)
    return _done(header)


def _done(header: _Header) -> FileDiff:
    return FileDiff(
        old_path=None if header.created else header.old_path,
        new_path=None if header.deleted else header.new_path,
        old_mode=header.old_mode,
        new_mode=header.new_mode,
        copied=header.copied,
        old_id=header.old_id,
        new_id=header.new_id,
        hunks=tuple(header.hunks),
        binary=header.binary,
    )


def _extended(header: _Header, line: bytes) -> bool:
    """Take one extended header line; False where they end."""
    word, _, rest = line.partition(b" mode ")
    if word in {b"old", b"new", b"new file", b"deleted file"} and rest[:6].isdigit():
        mode = int(rest[:6], 8)
        if word in {b"old", b"deleted file"}:
            header.old_mode = mode
        else:
            header.new_mode = mode
        header.created |= word == b"new file"
        header.deleted |= word == b"deleted file"
        return True
    for start in (b"rename from ", b"copy from ", b"rename old "):
        if line.startswith(start):
            header.old_path = header_name(line[len(start) :])
            header.copied = start == b"copy from "
            return True
    for start in (b"rename to ", b"copy to ", b"rename new "):
        if line.startswith(start):
            header.new_path = header_name(line[len(start) :])
            return True
    if match := _INDEX.match(line):
        header.old_id, header.new_id = match.group(1).decode(), match.group(2).decode()
        if match.group(3):
            header.old_mode = header.old_mode or int(match.group(3), 8)
        return True
    return line.startswith((b"similarity index ", b"dissimilarity index "))


def _hunks(lines: _Lines) -> Iterator[Hunk]:
    number = 0
    while lines.more and (match := _HUNK.match(lines.line)):
        number += 1
        counts = [int(group) if group is not None else 1 for group in match.groups()]
        lines.at += 1
        yield _hunk(lines, number, counts)


def _hunk(lines: _Lines, number: int, counts: list[int]) -> Hunk:
    old_start, old_left, new_start, new_left = counts
    old: list[bytes] = []
    new: list[bytes] = []
    leading = trailing = 0
    changed = False
    while old_left or new_left:
        if not lines.more:
            raise lines.corrupt(f"it ends inside hunk {number}")
        line = lines.line
        sign, content = line[:1] or b" ", line[1:] + b"\n"
        lines.at += 1
        if lines.more and lines.line.startswith(b"\\"):
            content = content[:-1]
            lines.at += 1
        if sign == b" ":
            old.append(content)
            new.append(content)
            old_left, new_left = old_left - 1, new_left - 1
            leading += not changed
            trailing += 1
        elif sign in b"-+":
            (old if sign == b"-" else new).append(content)
            old_left -= sign == b"-"
            new_left -= sign == b"+"
            changed, trailing = True, 0
        if sign not in b" -+" or old_left < 0 or new_left < 0:
            lines.at -= 1
            raise lines.corrupt(f"hunk {number} is not as long as its header says")
    return Hunk(number, old_start, new_start, tuple(old), tuple(new), leading, trailing)


def _binary(lines: _Lines) -> tuple[Binary, ...]:
    """``()`` for ``Binary files differ``, which says nothing of the content."""
    if not lines.line.startswith(b"GIT"):
        lines.at += 1
        return ()
    lines.at += 1
    parts: list[Binary] = []
    while lines.more and len(parts) < 2:
        kind, _, size = lines.line.partition(b" ")
        if kind not in {b"literal", b"delta"} or not size.isdigit():
            break
        lines.at += 1
        packed = b""
        while lines.more and lines.line:
            packed += _base85(lines)
            lines.at += 1
        lines.at += 1
        try:
            data = zlib.decompress(packed)
        except zlib.error as exc:
            raise lines.corrupt("a binary part cannot be unpacked") from exc
        if len(data) != int(size):
            raise lines.corrupt("a binary part is not as long as it says")
        parts.append(Binary(delta=kind == b"delta", data=data))
    if not parts:
        raise lines.corrupt("a binary patch without content")
    return tuple(parts)


def _base85(lines: _Lines) -> bytes:
    line = lines.line
    head = line[0]
    length = head - 64 if 65 <= head <= 90 else head - 70 if 97 <= head <= 122 else 0
    try:
        data = base64.b85decode(line[1:])
    except ValueError as exc:
        raise lines.corrupt("a binary line is not base 85") from exc
    if not 0 < length <= len(data):
        raise lines.corrupt("a binary line has a wrong length")
    return data[:length]
