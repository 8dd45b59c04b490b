"""Apply the hunks of a patch to a file's bytes, finding each one's place just as ``git apply`` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llamabuild.source.diff import Binary, FileDiff, Hunk


class HunkError(Exception):
    """A hunk has no place in the file; ``hunk`` says which, None for a binary part."""

    def __init__(self, reason: str, hunk: Hunk | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hunk = hunk


@dataclass(frozen=True)
class Applied:
    """A file's new content, and by how many lines its hunks were off (the largest in size)."""

    data: bytes
    offset: int


def apply_file(old: bytes, diff: FileDiff) -> Applied:
    """The new content of a file.

    Raises HunkError when a hunk does not fit, or a binary part is not for this content.
    """
    if diff.binary is not None:
        if not diff.binary:
            raise HunkError("the patch says that a binary file differs, but not how")
        return Applied(_apply_binary(old, diff.binary[0]), 0)
    return apply_hunks(old, diff.hunks)


def apply_hunks(old: bytes, hunks: Sequence[Hunk]) -> Applied:
    """Apply text hunks one after another.

    git's own rules (``apply.c``): every context line has to be there byte for byte; a hunk that begins at line 1 has to
    begin the file, one without context at its end has to end it; otherwise the place nearest to the stated one is
    taken, looking one line on, one back, two on, and so forth; a line that an earlier hunk wrote cannot be
    matched again.
    """
    image = split_lines(old)
    patched = [False] * len(image)
    offset = 0
    for hunk in hunks:
        at = find_hunk(image, patched, hunk)
        if at is None:
            raise HunkError("its lines are not there", hunk)
        off = at - max(hunk.new_start - 1, 0)
        offset = off if abs(off) > abs(offset) else offset
        image[at : at + len(hunk.old)] = hunk.new
        patched[at : at + len(hunk.old)] = [True] * len(hunk.new)
    return Applied(b"".join(image), offset)


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their line feeds; other line ends are content, as in git."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def find_hunk(image: list[bytes], patched: list[bool], hunk: Hunk) -> int | None:
    """The index of the line that a hunk begins at in ``image``; None where it has no place."""
    begins = hunk.old_start <= 1
    ends = hunk.trailing == 0
    last = len(image) - len(hunk.old)
    line = 0 if begins else last if ends else max(hunk.new_start - 1, 0)
    line = min(max(line, 0), len(image))
    for at in _outward(line, len(image)):
        if at > last or (begins and at) or (ends and at != last):
            continue
        stop = at + len(hunk.old)
        if _matches(image, at, hunk.old, to_end=ends) and not any(patched[at:stop]):
            return at
    return None


def _matches(image: list[bytes], at: int, old: tuple[bytes, ...], *, to_end: bool) -> bool:
    if not old:
        return True
    last = at + len(old) - 1
    if len(old) > 1 and (image[at] != old[0] or tuple(image[at:last]) != old[:-1]):
        return False
    if image[last] == old[-1]:
        return True
    # git compares bytes up to the end of a last line that has no line feed, and lets blanks follow it in the file.
    rest = image[last].removeprefix(old[-1])
    return not to_end and not old[-1].endswith(b"\n") and rest != image[last] and not rest.strip()


def _outward(start: int, end: int) -> Iterator[int]:
    """``start``, one on, one back, two on, two back, … within 0 and ``end``."""
    yield start
    for step in range(1, end + 1):
        yield from (at for at in (start + step, start - step) if 0 <= at <= end)


def _apply_binary(old: bytes, part: Binary) -> bytes:
    return _undelta(old, part.data) if part.delta else part.data


def _undelta(base: bytes, delta: bytes) -> bytes:
    """A pack delta's result (``Documentation/gitformat-pack``): copies out of the base, and inserts."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = delta[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    try:
        if number() != len(base):
            raise HunkError("the binary part is a delta against another content")
        size = number()
        out = bytearray()
        while at < len(delta):
            code = delta[at]
            at += 1
            if not code & 0x80:
                out += delta[at : at + code]
                at += code
                continue
            fields = []
            for bit in range(7):
                fields.append(delta[at] if code & (1 << bit) else 0)
                at += 1 if code & (1 << bit) else 0
            start = int.from_bytes(bytes(fields[:4]), "little")
            length = int.from_bytes(bytes(fields[4:]), "little") or 0x10000
            out += base[start : start + length]
    except IndexError as exc:
        raise HunkError("the binary delta is damaged") from exc
    if len(out) != size:
        raise HunkError("the binary delta is damaged")
    return bytes(out)
