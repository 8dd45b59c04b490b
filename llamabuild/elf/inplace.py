"""Set an rpath without moving a byte: in the old string's room, or in a mapped segment's padding.

What a linker leaves behind is enough for nearly every library, whatever its size: the old rpath is often a long build
path, GNU ld keeps spare slots at the end of the dynamic section, and the last page of a segment is seldom full. A
rewrite of a library of more than a gigabyte costs ten seconds and twice its size in memory; this costs a page.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.elf.read import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DT_RPATH = 15
DT_RUNPATH = 29
_DT_NULL, _DT_STRTAB, _DT_STRSZ = 0, 5, 10
_STRING_TAGS = frozenset({1, 14, 0x6FFFFEFA, 0x6FFFFEFB, 0x6FFFFEFC, 0x7FFFFFFD, 0x7FFFFFFF})
"""NEEDED, SONAME, CONFIG, DEPAUDIT, AUDIT, AUXILIARY, FILTER: their values point into the string table as well."""
_PAGE = 4096
_FARTHEST = 1 << 24
"""A string table that would reach farther is no longer something a reader wants to take into memory."""


@dataclass(frozen=True)
class Write:
    """Bytes at an offset of the file."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class _Dynamic:
    order: str
    wide: bool
    offset: int
    tags: tuple[tuple[int, int], ...]
    """Up to the first DT_NULL, that one left out."""
    slots: int
    strings_address: int
    strings_offset: int
    strings_size: int

    def pack(self, tags: list[tuple[int, int]]) -> bytes:
        filled = tags + [(_DT_NULL, 0)] * (self.slots - len(tags))
        return b"".join(struct.pack(self.order + ("QQ" if self.wide else "II"), tag, value) for tag, value in filled)


def plan_in_place(path: Path, rpath: str | None, *, tag: int) -> tuple[Write, ...] | None:
    """The writes that leave exactly one of DT_RPATH and DT_RUNPATH (``tag``), or neither for ``rpath=None``.

    Empty where the file is so already; None where there is no room and the file has to be rewritten.

    Raises ElfError for a damaged file.
    """
    with opened(path) as elf:
        dynamic = _read_dynamic(elf)
        if dynamic is None:
            return () if rpath is None else None
        paths = [(kind, value) for kind, value in dynamic.tags if kind in {DT_RPATH, DT_RUNPATH}]
        others = [(kind, value) for kind, value in dynamic.tags if kind not in {DT_RPATH, DT_RUNPATH}]
        text = None if rpath is None else rpath.encode()
        if text is None and not paths:
            return ()
        if text is not None and len(paths) == 1 and paths[0][0] == tag and _string(elf, dynamic, paths[0][1]) == text:
            return ()
        used = frozenset(_references(elf, dynamic))
        own = {value: _string(elf, dynamic, value) for _, value in paths if _exclusive(elf, dynamic, value, used=used)}
        # The old strings go: they are often build paths.
        writes = {value: b"\0" * len(old) for value, old in own.items()}
        if text is not None:
            room = max(own, key=lambda value: len(own[value]), default=None)
            if room is not None and len(own[room]) >= len(text):
                writes[room] = text.ljust(len(own[room]), b"\0")
                others.append((tag, room))
                extra: tuple[Write, ...] = ()
            else:
                found = _padding(elf, dynamic, len(text) + 1)
                if found is None or len(others) + 1 >= dynamic.slots:
                    return None
                place, headers = found
                end = place - dynamic.strings_offset + len(text) + 1
                others = [(kind, max(value, end) if kind == _DT_STRSZ else value) for kind, value in others]
                others.append((tag, place - dynamic.strings_offset))
                extra = (Write(place, text + b"\0"), *headers)
        else:
            extra = ()
        if len(others) >= dynamic.slots:
            return None
        return (
            *(Write(dynamic.strings_offset + value, data) for value, data in writes.items()),
            *extra,
            Write(dynamic.offset, dynamic.pack(others)),
        )


def write_in_place(path: Path, writes: tuple[Write, ...]) -> None:
    """Make the writes in the same inode, so that hard links, mode, owner and holes stay as they are."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for write in writes:
            os.pwrite(descriptor, write.data, write.offset)
    finally:
        os.close(descriptor)


def _read_dynamic(elf: Any) -> _Dynamic | None:
    segment = next(iter(elf.iter_segments("PT_DYNAMIC")), None)
    if segment is None:
        return None
    order, wide = ("<" if elf.little_endian else ">"), elf.elfclass == 64
    elf.stream.seek(segment["p_offset"])
    size = 16 if wide else 8
    raw = elf.stream.read(segment["p_filesz"] // size * size)
    every = list(struct.iter_unpack(order + ("QQ" if wide else "II"), raw))
    end = next((index for index, (kind, _) in enumerate(every) if kind == _DT_NULL), len(every))
    values = dict(every[:end])
    address = values.get(_DT_STRTAB)
    if address is None:
        return None
    offset = next(iter(elf.address_offsets(address)), None)
    if offset is None or end == len(every):
        return None
    return _Dynamic(
        order=order,
        wide=wide,
        offset=segment["p_offset"],
        tags=tuple(every[:end]),
        slots=len(every),
        strings_address=address,
        strings_offset=offset,
        strings_size=values.get(_DT_STRSZ, 0),
    )


def _string(elf: Any, dynamic: _Dynamic, value: int) -> bytes:
    elf.stream.seek(dynamic.strings_offset + value)
    text = b""
    while b"\0" not in text:
        block = elf.stream.read(256)
        if not block:
            break
        text += block
    return text.partition(b"\0")[0]


def _references(elf: Any, dynamic: _Dynamic) -> Iterator[int]:
    """Every offset into the string table that is in use, rpath and runpath left out."""
    from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

    yield from (value for kind, value in dynamic.tags if kind in _STRING_TAGS)
    for section in elf.iter_sections():
        if section["sh_type"] == "SHT_DYNSYM":
            data = section.data()
            step = 24 if dynamic.wide else 16
            yield from (struct.unpack_from(dynamic.order + "I", data, at)[0] for at in range(0, len(data), step))
        elif isinstance(section, GNUVerNeedSection):
            for need, rows in section.iter_versions():
                yield need["vn_file"]
                yield from (row["vna_name"] for row in rows)
        elif isinstance(section, GNUVerDefSection):
            for _, rows in section.iter_versions():
                yield from (row["vda_name"] for row in rows)


def _exclusive(elf: Any, dynamic: _Dynamic, value: int, *, used: frozenset[int]) -> bool:
    """Whether nobody else reads these bytes: linkers let a string be the tail of another one.

    Without section headers the symbols' names are unknown, so nothing counts as exclusive then.
    """
    if not elf.num_sections():
        return False
    length = len(_string(elf, dynamic, value))
    if value:
        elf.stream.seek(dynamic.strings_offset + value - 1)
        if elf.stream.read(1) != b"\0":
            return False
    return not any(value <= offset <= value + length for offset in used)


def _padding(elf: Any, dynamic: _Dynamic, need: int) -> tuple[int, tuple[Write, ...]] | None:
    """Zero bytes at the end of a mapped read-only segment, with the header edits that make them part of the file.

    The string table then reaches from where it was to the new string, over what lies between. For the loader that is
    how every table is: it follows offsets and reads no length. DT_STRSZ and the section's size are set for readers
    (readelf, pyelftools, LIEF), and so that a later ``strip`` or ``objcopy`` carries the string along. The segment has
    to map with the same distance between address and offset as the table's, because readers take it as one run of
    the file; the nearest one is taken.
    """
    distance = dynamic.strings_address - dynamic.strings_offset
    segments = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
    sections = [(at, one) for at, one in enumerate(elf.iter_sections()) if one["sh_type"] != "SHT_NULL"]
    table = next((at for at, one in sections if one["sh_offset"] == dynamic.strings_offset and one["sh_size"]), None)
    if table is None:
        return None
    taken = sorted(
        [segment["p_offset"] for segment in elf.iter_segments() if segment["p_filesz"]]
        + [one["sh_offset"] for _, one in sections if one["sh_type"] != "SHT_NOBITS" and one["sh_size"]]
        + [elf.header["e_shoff"], elf.header["e_phoff"]]
    )
    for index, segment in enumerate(elf.iter_segments()):
        if segment["p_type"] != "PT_LOAD" or segment["p_flags"] & 0x2 or segment["p_filesz"] != segment["p_memsz"]:
            continue
        end = segment["p_offset"] + segment["p_filesz"]
        far = end + need - dynamic.strings_offset
        if segment["p_vaddr"] - segment["p_offset"] != distance or not dynamic.strings_size < far < _FARTHEST:
            continue
        limit = next((offset for offset in taken if offset >= end), 0)
        pages = [other["p_vaddr"] // _PAGE * _PAGE for other in segments]
        above = min((page for page in pages if page >= end + distance), default=end + distance + need)
        if end + need > limit or end + distance + need > above:
            continue
        elf.stream.seek(end)
        if elf.stream.read(need).strip(b"\0"):
            continue
        return end, _grow(elf, dynamic, segment=index, table=table, need=need, far=far)
    return None


def _grow(elf: Any, dynamic: _Dynamic, *, segment: int, table: int, need: int, far: int) -> tuple[Write, ...]:
    head = elf.header["e_phoff"] + segment * elf.header["e_phentsize"]
    body = elf.header["e_shoff"] + table * elf.header["e_shentsize"]
    word = struct.Struct(dynamic.order + ("Q" if dynamic.wide else "I"))
    file_size, memory_size = (32, 40) if dynamic.wide else (16, 20)
    section_size = 32 if dynamic.wide else 20
    filled = word.pack(elf.get_segment(segment)["p_filesz"] + need)
    return (
        Write(head + file_size, filled),
        Write(head + memory_size, filled),
        Write(body + section_size, word.pack(far)),
    )
