"""Where two builds differ: which file, and in an ELF file which section."""

from __future__ import annotations

import itertools
import mmap
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.files import sha256_file
from llamabuild.elf.read import ElfError, is_elf, read_elf

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from llamabuild.elf.read import Section

_CHUNK = 1 << 20
_SHOWN = 16
_WITHOUT_BYTES = frozenset({"SHT_NOBITS", "SHT_NULL"})


@dataclass(frozen=True)
class Difference:
    """One place where two builds differ."""

    file: str
    """Relative to both; empty for the two things that were named."""
    what: str
    """``only-in-a``, ``only-in-b``, ``kind``, ``mode``, ``link``, ``section``, ``header``, ``line``, ``bytes``,
    ``member`` (an archive's entry: order, owner, time), ``packing`` (the same members, compressed otherwise)."""
    where: str
    """A section's name, ``line 12``, an offset, a field of an archive's entry; empty where the file is enough."""
    a: str
    b: str


def diff_trees(a: Path, b: Path) -> tuple[Difference, ...]:
    """Every difference between two folders, in order of path."""
    left, right = _entries(a), _entries(b)
    return tuple(
        difference
        for name in sorted(left.keys() | right.keys())
        for difference in _diff_entry(name, left.get(name), right.get(name))
    )


def _entries(root: Path) -> Mapping[str, Path]:
    return {str(path.relative_to(root)): path for path in root.rglob("*")}


def _diff_entry(name: str, a: Path | None, b: Path | None) -> Iterator[Difference]:
    if a is None or b is None:
        yield Difference(name, "only-in-b" if a is None else "only-in-a", "", _kind(a), _kind(b))
        return
    if _kind(a) != _kind(b):
        yield Difference(name, "kind", "", _kind(a), _kind(b))
        return
    if a.is_symlink():
        if a.readlink() != b.readlink():
            yield Difference(name, "link", "", str(a.readlink()), str(b.readlink()))
        return
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (a, b)]
    if modes[0] != modes[1]:
        yield Difference(name, "mode", "", f"{modes[0]:o}", f"{modes[1]:o}")
    if a.is_file():
        yield from diff_files(name, a, b)


def _kind(path: Path | None) -> str:
    if path is None:
        return ""
    if path.is_symlink():
        return "link"
    return "folder" if path.is_dir() else "file" if path.is_file() else "special"


def diff_files(name: str, a: Path, b: Path) -> Iterator[Difference]:
    """Every difference between two files' bytes: by section for ELF, else the first line or byte."""
    if a.stat().st_size == b.stat().st_size and sha256_file(a) == sha256_file(b):
        return
    heads = [_head(path) for path in (a, b)]
    if all(_readable_elf(path) for path in (a, b)):
        yield from _diff_elf(name, a, b)
    elif all(b"\0" not in head for head in heads):
        yield _diff_text(name, a, b)
    else:
        yield _diff_bytes(name, a, b)


def _head(path: Path) -> bytes:
    with path.open("rb") as handle:
        return handle.read(8192)


def _readable_elf(path: Path) -> bool:
    try:
        return is_elf(path) and bool(read_elf(path).sections)
    except ElfError:
        return False


def _diff_elf(name: str, a: Path, b: Path) -> Iterator[Difference]:
    with _Bytes(a) as left, _Bytes(b) as right:
        one, two = _sections(a), _sections(b)
        found = False
        for section in (*one, *(each for each in two if each not in one)):
            if section not in one or section not in two:
                what = "only-in-b" if section not in one else "only-in-a"
                sizes = [f"{side[section].size} bytes" if section in side else "" for side in (one, two)]
                found = True
                yield Difference(name, what, section, *sizes)
                continue
            pieces = left.part(one[section]), right.part(two[section])
            place = _first_difference(*pieces)
            if place is not None:
                found = True
                yield Difference(name, "section", f"{section}+{place:#x}", *(piece.around(place) for piece in pieces))
        if not found:
            # What lies outside every section: headers, section names, padding.
            place = _first_difference(left.whole(), right.whole()) or 0
            yield Difference(
                name, "header", f"offset {place:#x}", left.whole().around(place), right.whole().around(place)
            )


def _sections(path: Path) -> dict[str, Section]:
    """Name → section; a name that is there again gets a number."""
    found: dict[str, Section] = {}
    for section in read_elf(path).sections:
        name, number = section.name or "(null)", 2
        while name in found:
            name, number = f"{section.name}#{number}", number + 1
        found[name] = section
    return found


@dataclass(frozen=True)
class _Piece:
    """A part of a mapped file; nothing of it is copied before it is looked at."""

    data: mmap.mmap | bytes
    start: int
    size: int

    def chunk(self, at: int) -> bytes:
        return self.data[self.start + at : self.start + min(at + _CHUNK, self.size)]

    def around(self, place: int) -> str:
        """The bytes at ``place``: as the text they stand in, where it is text."""
        if place >= self.size:
            return f"ends after {self.size} bytes"
        end = self.start + min(place + _SHOWN, self.size)
        first = at = self.start + place
        while first > max(self.start, at - 4 * _SHOWN) and _printable(self.data[first - 1]):
            first -= 1
        text = self.data[first:end].split(b"\0")[0]
        if len(text) >= 4 and all(map(_printable, text)):
            return repr(text.decode())
        return self.data[at:end].hex(" ")


class _Bytes:
    """A file, mapped."""

    def __init__(self, path: Path) -> None:
        self._handle = path.open("rb")
        self._size = path.stat().st_size
        self._data = mmap.mmap(self._handle.fileno(), 0, access=mmap.ACCESS_READ) if self._size else b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._data, mmap.mmap):
            self._data.close()
        self._handle.close()

    def whole(self) -> _Piece:
        return _Piece(self._data, 0, self._size)

    def part(self, section: Section) -> _Piece:
        return _Piece(self._data, section.offset, 0 if section.kind in _WITHOUT_BYTES else section.size)


def _printable(byte: int) -> bool:
    return 32 <= byte < 127


def _first_difference(a: _Piece, b: _Piece) -> int | None:
    """The first offset at which two pieces differ: the shorter one's size where it begins the other."""
    for at in range(0, max(a.size, b.size), _CHUNK):
        one, two = a.chunk(at), b.chunk(at)
        if one == two:
            continue
        low, high = 0, min(len(one), len(two))
        while low < high:
            middle = (low + high) // 2
            if one[low : middle + 1] == two[low : middle + 1]:
                low = middle + 1
            else:
                high = middle
        return at + low
    return None


def _diff_text(name: str, a: Path, b: Path) -> Difference:
    with a.open("rb") as left, b.open("rb") as right:
        for number, lines in enumerate(itertools.zip_longest(left, right, fillvalue=b""), start=1):
            if lines[0] != lines[1]:
                shown = [line.decode(errors="replace").rstrip("\n")[:200] for line in lines]
                return Difference(name, "line", f"line {number}", *shown)
    # They were read again and are the same now: the file changes under our hands.
    return Difference(name, "bytes", "", "changed while it was read", "changed while it was read")


def _diff_bytes(name: str, a: Path, b: Path) -> Difference:
    with _Bytes(a) as left, _Bytes(b) as right:
        pieces = left.whole(), right.whole()
        place = _first_difference(*pieces) or 0
        return Difference(name, "bytes", f"offset {place:#x}", *(piece.around(place) for piece in pieces))


def diff_members(a: Sequence[tarfile.TarInfo], b: Sequence[tarfile.TarInfo]) -> tuple[Difference, ...]:
    """What differs between two archives' entries apart from their bytes: order, owner, time, mode."""
    found: list[Difference] = []
    names = [member.name for member in a], [member.name for member in b]
    if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
        place = next(index for index, pair in enumerate(zip(*names, strict=True)) if pair[0] != pair[1])
        found.append(Difference("", "member", f"order, entry {place}", names[0][place], names[1][place]))
    others = {member.name: member for member in b}
    for member in a:
        other = others.get(member.name)
        if other is None:
            continue
        for field in ("mtime", "mode", "uid", "gid", "uname", "gname", "type"):
            values = getattr(member, field), getattr(other, field)
            if values[0] != values[1]:
                found.append(Difference(member.name, "member", field, str(values[0]), str(values[1])))
    return tuple(found)
