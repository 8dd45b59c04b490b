"""Open an archive again, without trusting it."""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import tarfile
import zlib
from io import FileIO
from typing import TYPE_CHECKING

from llamabuild.core.errors import BundleError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = 1 << 20
_HOLE = 1 << 14
"""Zeros in pieces of this size become holes."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def open_archive(path: Path, folder: Path) -> Path:
    """Unpack a ``.tar.gz`` or ``.tar.zst`` into ``folder`` and return its single top folder.

    Runs of zeros become holes. Times and owners are not restored. Raises BundleError for a damaged archive, for one
    without a single top folder, and for members that would land outside of it or are not files, folders or links.
    """
    tops: set[str] = set()
    with opened_tar(path) as tar:
        for member in tar:
            safe = _checked(path, member, folder)
            tops.add(safe.name.partition("/")[0])
            _extract(tar, safe, folder)
    if len(tops) != 1:
        raise BundleError(
            f"{path} holds {len(tops)} top folders, not one.", hint="Name an archive that `llamabuild pack` made."
        )
    return folder / tops.pop()


@contextlib.contextmanager
def opened_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Yield the archive as a tar stream, to be read once from front to back.

    Raises BundleError for what is no such archive, or ends too early.
    """
    with path.open("rb") as handle:
        magic = handle.read(4)
    try:
        if magic == _ZSTD_MAGIC:
            with zstd.open(path, "rb") as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as tar:
                yield tar
        elif magic[:2] == _GZIP_MAGIC:
            # Not tarfile's own "r|gz": it keeps what a block expands to, and a block of zeros expands a thousandfold.
            with gzip.open(path, "rb") as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=_BLOCK) as tar:
                yield tar
        else:
            raise BundleError(f"{path} is neither a .tar.gz nor a .tar.zst.", hint="Name an archive of a bundle.")
    except (tarfile.TarError, zstd.ZstdError, EOFError, gzip.BadGzipFile, zlib.error) as exc:
        raise BundleError(
            f"{path} is a damaged archive: {exc}.", hint="Fetch it again and compare it with SHA256SUMS."
        ) from exc


def _checked(path: Path, member: tarfile.TarInfo, folder: Path) -> tarfile.TarInfo:
    try:
        return tarfile.data_filter(member, str(folder))
    except tarfile.FilterError as exc:
        raise BundleError(
            f"{path} holds an unsafe member: {exc}.", hint="Do not unpack it; a bundle has no such member."
        ) from exc


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    target = folder / member.name
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # A link that an earlier member put here must not lead the bytes elsewhere.
    target.unlink(missing_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
        return
    if member.islnk():
        target.hardlink_to(folder / member.linkname)
        return
    source = tar.extractfile(member)
    if source is None:
        raise BundleError(f"{member.name} is not a file.", hint="Do not unpack it; a bundle has no such member.")
    mode = 0o755 if (member.mode or 0) & 0o111 else 0o644
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with FileIO(descriptor, "wb") as out:
        while block := source.read(_BLOCK):
            _write_sparse(out, block)
        out.truncate()


def _write_sparse(out: FileIO, block: bytes) -> None:
    """Write a block, leaving out runs of zeros."""
    zeros = block.count(0)
    if zeros == len(block):
        out.seek(len(block), os.SEEK_CUR)
    elif zeros < _HOLE:
        out.write(block)
    else:
        for at in range(0, len(block), _HOLE):
            piece = block[at : at + _HOLE]
            if piece.count(0) == len(piece):
                out.seek(len(piece), os.SEEK_CUR)
            else:
                out.write(piece)
