"""Compressors on all cores whose output does not depend on how many there are."""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_GZIP_LEVEL = 6
_GZIP_BLOCK = 1 << 20
_GZIP_WINDOW = 1 << 15
_ZSTD_WINDOW_LOG = 27
"""The most that ``zstd -d`` and libarchive accept without being told to."""


class _Writable(Protocol):
    def write(self, data: bytes) -> int: ...


def threads() -> int:
    """How many threads to compress with: the cores this process may use, within what memory should bear."""
    return max(1, min(len(os.sched_getaffinity(0)), 16))


class GzipSink:
    """One gzip member, made as pigz makes it: blocks of a fixed size compressed apart, each with the window before it.

    No name and no time in the header. Every block ends on a byte, so their bytes are simply put in a row.
    """

    def __init__(self, out: _Writable, *, workers: int | None = None) -> None:
        self._out = out
        self._workers = workers or threads()
        self._pool = ThreadPoolExecutor(self._workers)
        self._pending: deque[Future[bytes]] = deque()
        self._buffer = bytearray()
        self._window = b""
        self._crc = 0
        self._size = 0
        out.write(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")

    def write(self, data: bytes) -> None:
        """Take bytes in any portions."""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._buffer += data
        while len(self._buffer) > _GZIP_BLOCK:
            self._submit(bytes(self._buffer[:_GZIP_BLOCK]), last=False)
            del self._buffer[:_GZIP_BLOCK]

    def close(self) -> None:
        """Write what is left and the trailer."""
        self._submit(bytes(self._buffer), last=True)
        while self._pending:
            self._out.write(self._pending.popleft().result())
        self._pool.shutdown()
        self._out.write(struct.pack("<II", self._crc, self._size & 0xFFFFFFFF))

    def abandon(self) -> None:
        """Stop without finishing the file."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, block: bytes, *, last: bool) -> None:
        while len(self._pending) >= 2 * self._workers:
            self._out.write(self._pending.popleft().result())
        self._pending.append(self._pool.submit(_deflate, block, self._window, last=last))
        self._window = block[-_GZIP_WINDOW:]


def _deflate(block: bytes, window: bytes, *, last: bool) -> bytes:
    arguments = (_GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 8, zlib.Z_DEFAULT_STRATEGY)
    packer = zlib.compressobj(*arguments, window) if window else zlib.compressobj(*arguments)
    return packer.compress(block) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


class ZstdSink:
    """One zstd frame with long-distance matching over 128 MiB and a checksum.

    libzstd cuts its input into jobs whose size follows from the level and the window, so one worker or sixteen give
    the same bytes; no worker at all would not, hence at least one.
    """

    def __init__(self, out: _Writable, *, level: int, workers: int | None = None) -> None:
        parameter = zstd.CompressionParameter
        self._out = out
        self._packer = zstd.ZstdCompressor(
            options={
                parameter.compression_level: level,
                parameter.window_log: _ZSTD_WINDOW_LOG,
                parameter.enable_long_distance_matching: 1,
                parameter.checksum_flag: 1,
                parameter.nb_workers: workers or threads(),
            }
        )

    def write(self, data: bytes) -> None:
        """Take bytes in any portions."""
        if packed := self._packer.compress(data):
            self._out.write(packed)

    def close(self) -> None:
        """End the frame."""
        self._out.write(self._packer.flush())

    def abandon(self) -> None:
        """Stop without finishing the file."""
