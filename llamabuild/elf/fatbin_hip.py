"""HIP fat binaries: the targets of the offload bundles in a ``.hip_fatbin`` section, plain and compressed.

Formats: LLVM, ``clang/docs/ClangOffloadBundler.rst`` (plain, and compressed ``CCOB`` versions 1 to 3).
"""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

SECTION = ".hip_fatbin"

_PLAIN = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED = b"CCOB"
_PAGE = 4096
"""The linker aligns each bundle to a page, so the next one is looked for there first."""
_ENTRY = struct.Struct("<QQQ")  # offset, size, length of the target's name
_HEAD_BYTES = 1 << 16
"""How much of a compressed bundle is decompressed: the table of entries is at its start."""
_MOST_ENTRIES = 4096


@dataclass(frozen=True)
class HipImage:
    """One code object of a bundle."""

    arch: str
    """``gfx1100``, ``gfx90a:xnack-``."""
    size: int
    """Bytes of the code object, decompressed."""
    compressed: bool
    emptied: bool
    """Overwritten by zeros: the entry is there, the code is not. Bundles are thinned to one arch like this."""


def iter_images(data: mmap | bytes, *, offset: int, size: int) -> Iterator[HipImage]:
    """Yield every GPU code object of the bundles in ``data[offset:offset + size]``, in file order.

    Raises ValueError, naming the place, at the first bundle that is not whole or not of a known format.
    """
    place, end = offset, offset + size
    if end > len(data):
        raise ValueError(f"the section ends at byte {end}, the file at {len(data)}")
    while (found := _next_bundle(data, place, end)) is not None:
        if data[found : found + 4] == _COMPRESSED:
            stop, images = _compressed(data, found, end)
        else:
            stop, images = _plain(data, found, end)
        if stop > end:
            raise ValueError(f"the offload bundle at byte {found - offset} of {SECTION} is cut short")
        yield from images
        place = stop


def _next_bundle(data: mmap | bytes, place: int, end: int) -> int | None:
    """The next bundle at or after ``place``: on a page boundary, or else behind padding of any length."""
    for aligned in (place, place + (-place % _PAGE)):
        if aligned + 4 <= end and (
            data[aligned : aligned + len(_PLAIN)] == _PLAIN or data[aligned : aligned + 4] == _COMPRESSED
        ):
            return aligned
    hits = [hit for mark in (_PLAIN, _COMPRESSED) if (hit := data.find(mark, place, end)) >= 0]
    return min(hits, default=None)


def _next_on_page(data: mmap | bytes, place: int, end: int) -> int:
    """The next bundle that starts on a page, or the end: inside compressed data the marks can stand anywhere."""
    for page in range(place + (-place % _PAGE), end, _PAGE):
        if data[page : page + 4] == _COMPRESSED or data[page : page + len(_PLAIN)] == _PLAIN:
            return page
    return end


def _plain(data: mmap | bytes, start: int, end: int) -> tuple[int, list[HipImage]]:
    images, reach = _table(data, start, end, compressed=False)
    return start + reach, images


def _table(data: mmap | bytes, start: int, end: int, *, compressed: bool) -> tuple[list[HipImage], int]:
    """The images of the table at ``start``, and how many bytes from there the bundle reaches."""
    place = start + len(_PLAIN)
    where = f"the offload bundle at byte {start}"
    if place + 8 > end:
        raise ValueError(f"{where} is cut short")
    (count,) = struct.unpack_from("<Q", data, place)
    if count > _MOST_ENTRIES:
        raise ValueError(f"{where} claims {count} entries")
    place += 8
    images: list[HipImage] = []
    reach = place - start
    for _ in range(count):
        if place + _ENTRY.size > end:
            raise ValueError(f"{where} is cut short in its table")
        offset, size, length = _ENTRY.unpack_from(data, place)
        place += _ENTRY.size
        if place + length > end:
            raise ValueError(f"{where} is cut short in its table")
        target = bytes(data[place : place + length]).decode("ascii", errors="replace")
        place += length
        reach = max(reach, place - start, offset + size)
        kind, _, arch = target.partition("--")
        if arch and not kind.startswith("host") and size:
            code = bytes(data[start + offset : start + offset + 4])
            images.append(HipImage(arch=arch.lstrip("-"), size=size, compressed=compressed, emptied=code == bytes(4)))
    return images, reach


def _compressed(data: mmap | bytes, start: int, end: int) -> tuple[int, list[HipImage]]:
    """A ``CCOB`` bundle: where it ends, and the images of the table inside."""
    if start + 32 > end:
        raise ValueError(f"the compressed offload bundle at byte {start} is cut short")
    version, method = struct.unpack_from("<HH", data, start + 4)
    if version == 1:  # carries no size of its own
        header, stop = 20, _next_on_page(data, start + 4, end)
    elif version == 2:
        header, stop = 24, start + struct.unpack_from("<I", data, start + 8)[0]
    elif version == 3:
        header, stop = 32, start + struct.unpack_from("<Q", data, start + 8)[0]
    else:
        raise ValueError(f"the compressed offload bundle at byte {start} has the unknown version {version}")
    if stop > end or stop <= start + header:
        raise ValueError(f"the compressed offload bundle at byte {start} is cut short")
    head = _decompress_head(bytes(data[start + header : min(stop, start + header + _HEAD_BYTES)]), method)
    if not head.startswith(_PLAIN):
        raise ValueError(f"the compressed offload bundle at byte {start} holds no bundle")
    images, _ = _table(head, 0, len(head), compressed=True)
    return stop, images


def _decompress_head(block: bytes, method: int) -> bytes:
    """The first bytes of what ``block``, the start of a zlib (0) or zstd (1) stream, holds."""
    if method == 0:
        try:
            return zlib.decompressobj().decompress(block, _HEAD_BYTES)
        except zlib.error as exc:
            raise ValueError(f"a compressed offload bundle cannot be decompressed: {exc}") from exc
    if method == 1:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        try:
            return zstd.ZstdDecompressor().decompress(block, _HEAD_BYTES)
        except zstd.ZstdError as exc:
            raise ValueError(f"a compressed offload bundle cannot be decompressed: {exc}") from exc
    raise ValueError(f"a compressed offload bundle uses the unknown method {method}")
