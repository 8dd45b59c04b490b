"""NVIDIA fat binaries: which SASS and PTX a ``.nv_fatbin`` section holds, read from the headers alone.

The layout is not documented by NVIDIA. It was read off libraries that ``nvcc`` 13.0 made and holds for them and for the
CUDA plugins of others: what is listed here equals what ``cuobjdump --list-elf`` and ``--list-ptx`` list.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

SECTION = ".nv_fatbin"
"""What is loaded at run time. ``__nv_relfatbin`` beside it is input of the device linker and never runs."""

_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, header size, size of what follows
_ENTRY = struct.Struct("<HHIQII4xI8xQ")  # kind, version, header, payload, compressed, options, arch, flags
_KINDS = {1: "ptx", 2: "sass"}
_ARCH_SPECIFIC = 0x100000
_FAMILY_SPECIFIC = 0x200000
_LZ4 = 0x2000
_ZSTD = 0x8000


@dataclass(frozen=True)
class NvImage:
    """One entry of a container."""

    kind: Literal["sass", "ptx", "other"]
    arch: str
    """``86``, ``120a``, ``100f``. ``cuobjdump`` leaves out the ``f`` in the names of SASS entries."""
    size: int
    """Bytes of payload in the file."""
    compressed: bool


def iter_images(data: mmap | bytes, *, offset: int, size: int) -> Iterator[NvImage]:
    """Yield every entry of the containers in ``data[offset:offset + size]``, in file order.

    Raises ValueError, naming the place, at the first container or entry that is not whole: what follows it cannot be
    found any more, so a list without the error would be a lie.
    """
    place, end = offset, offset + size
    if end > len(data):
        raise ValueError(f"the section ends at byte {end}, the file at {len(data)}")
    while place + _CONTAINER.size <= end:
        magic, _, header, body = _CONTAINER.unpack_from(data, place)
        if magic == 0:  # padding between containers
            place += 8
            continue
        if magic != _MAGIC or header < _CONTAINER.size:
            raise ValueError(f"no fat binary container at byte {place - offset} of {SECTION}")
        stop = place + header + body
        if stop > end:
            raise ValueError(f"the fat binary container at byte {place - offset} of {SECTION} is cut short")
        yield from _entries(data, start=place + header, stop=stop, base=offset)
        place = stop + (-(stop - offset) % 8)


def _entries(data: mmap | bytes, *, start: int, stop: int, base: int) -> Iterator[NvImage]:
    place = start
    while place + _ENTRY.size <= stop:
        kind, _, header, payload, _, _, arch, flags = _ENTRY.unpack_from(data, place)
        if header < _ENTRY.size or place + header + payload > stop:
            raise ValueError(f"the fat binary entry at byte {place - base} of {SECTION} is cut short")
        suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
        yield NvImage(
            kind=_KINDS.get(kind, "other"),  # type: ignore[arg-type]
            arch=f"{arch}{suffix}",
            size=payload,
            compressed=bool(flags & (_ZSTD | _LZ4)),
        )
        place += header + payload
