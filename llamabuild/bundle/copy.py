"""Copy files as cheaply as the file system allows, holes kept."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FICLONE = 0x40049409
_CHUNK = 1 << 27


def copy_file(source: Path, destination: Path, *, share: bool = False, skip: Sequence[tuple[int, int]] = ()) -> None:
    """Copy a file's bytes to a new file with mode 0755 or 0644, as the source can be run or not.

    Tried in this order: a reflink; with ``share`` a hard link, for a file that nobody will edit, and whose mode is the
    one that a copy would get; the kernel's own copy, skipping holes. ``skip``: ranges (offset, size), ascending, that
    the caller is going to zero and that are not worth copying. Raises OSError, ``EEXIST`` where the destination exists.
    """
    given = stat.S_IMODE(source.stat().st_mode)
    mode = 0o755 if given & 0o111 else 0o644
    # A link has one mode for all its names: a tree unpacked under umask 077 would lock other users out of the bundle.
    share = share and given == mode
    with source.open("rb") as reader:
        descriptor = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            cloned = _reflinked(reader.fileno(), descriptor)
            if not cloned and not share:
                _copy_data(reader.fileno(), descriptor, skip=skip)
            os.fchmod(descriptor, mode)
            if cloned or not share:
                return
        finally:
            os.close(descriptor)
        destination.unlink()
        try:
            # Another file system, or a kernel that guards other people's files against links.
            os.link(source, destination, follow_symlinks=True)
        except OSError:
            copy_file(source, destination)


def copy_tree(source: Path, destination: Path) -> None:
    """Copy a folder's content into a folder that exists: holes, hard links, links, modes and times as they are.

    Raises OSError, which names the file, at the first that cannot be copied.
    """
    made: dict[tuple[int, int], Path] = {}
    for name, _, _ in os.walk(source):
        folder = Path(name)
        target = destination / folder.relative_to(source)
        target.mkdir(exist_ok=True)
        target.chmod(stat.S_IMODE(folder.stat().st_mode))
        for path in sorted(folder.iterdir()):
            new = target / path.name
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                new.symlink_to(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                first = made.setdefault((status.st_dev, status.st_ino), new)
                if first is not new:
                    new.hardlink_to(first)
                    continue
                copy_file(path, new)
                new.chmod(stat.S_IMODE(status.st_mode))
                os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))


def _reflinked(source: int, destination: int) -> bool:
    try:
        fcntl.ioctl(destination, _FICLONE, source)
    except OSError:
        return False
    return True


def _copy_data(source: int, destination: int, *, skip: Sequence[tuple[int, int]]) -> None:
    size = os.fstat(source).st_size
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as exc:
            if exc.errno != errno.ENXIO:
                raise
            break
        for first, last in _pieces(start, end, skip):
            _copy_range(source, destination, start=first, end=last)
        at = end
    os.ftruncate(destination, size)


def _pieces(start: int, end: int, skip: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is left of a range without the skipped ones."""
    at = start
    for offset, size in skip:
        if offset + size <= at or offset >= end:
            continue
        if offset > at:
            yield at, offset
        at = offset + size
    if at < end:
        yield at, end


def _copy_range(source: int, destination: int, *, start: int, end: int) -> None:
    at = start
    while at < end:
        try:
            done = os.copy_file_range(source, destination, min(_CHUNK, end - at), at, at)
        except OSError as exc:
            if exc.errno not in {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}:
                raise
            data = os.pread(source, min(1 << 20, end - at), at)
            done = os.pwrite(destination, data, at)
        if done == 0:
            break
        at += done


def punch_hole(descriptor: int, *, offset: int, size: int) -> bool:
    """Give a zeroed range's blocks back to the file system; whether it can.

    The range reads as zeros afterwards. There is no call for it in Python's library, so libc's is used.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):
        fallocate = libc.fallocate64
        fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        keep_size, hole = 0x1, 0x2
        return bool(fallocate(descriptor, keep_size | hole, offset, size) == 0)
    return False
