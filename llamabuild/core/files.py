"""Files: digests, atomic replacement, locks and canonical JSON."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCRATCH = ".scratch"
"""Ends the names of folders that may be swept: a prefix alone could be that of a user's own folder."""


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex; memory use does not depend on the file's size."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """JSON whose text depends on the value alone (sorted keys, no spaces, non-ASCII kept)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def key_of(value: Any) -> str:
    """A stage's key: the SHA-256 of the canonical JSON of its inputs, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@contextlib.contextmanager
def atomic_write(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Write a file that appears under ``path`` complete or not at all, whatever happens on the way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        part.chmod(mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically, in UTF-8."""
    with atomic_write(path) as handle:
        handle.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically, readable and with sorted keys."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Fill a folder beside ``path`` and move it into place at the end, replacing what was there.

    A folder that was interrupted is left to nobody: it is removed here, or, after a kill, by the next run for the
    same path (call this under the lock that guards ``path``).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{path.name}.*.part"):
        remove_tree(stale)
    part = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    part.chmod(0o755)
    try:
        yield part
        if path.exists():
            old = part.with_suffix(".old.part")
            path.rename(old)
            part.rename(path)
            remove_tree(old)
        else:
            part.rename(path)
    except BaseException:
        remove_tree(part)
        raise


@contextlib.contextmanager
def scratch_folder(parent: Path, *, prefix: str) -> Iterator[Path]:
    """A new folder in ``parent`` (made if need be) for as long as the context lasts.

    What a killed run left under the same prefix is removed first: a folder is somebody's for as long as a process holds
    a lock on it, which ends with that process however it ends.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(f"{prefix}*{_SCRATCH}"):
        with _held_folder(stale) as ours:
            if ours:
                with contextlib.suppress(OSError):  # Another user's, in a folder that is shared.
                    remove_tree(stale)
    with contextlib.ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=_SCRATCH, dir=parent))
            attempt = contextlib.ExitStack()
            held = attempt.enter_context(_held_folder(folder))
            if held is not False and folder.exists():
                stack.enter_context(attempt)
                break
            # Another run took it for a stale one before it was locked.
            attempt.close()
        try:
            yield folder
        finally:
            remove_tree(folder)


@contextlib.contextmanager
def _held_folder(path: Path) -> Iterator[bool | None]:
    """Hold a folder's lock: True, False where another process does, None where it cannot be said (some networks)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as exc:
        yield False if exc.errno == errno.ENOENT else None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held: bool | None = False
        except OSError:
            held = None
        else:
            held = True
        yield held
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, read-only folders included; missing is fine."""
    if not path.exists():
        return
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o755)
    shutil.rmtree(path)


@contextlib.contextmanager
def locked(path: Path, *, on_wait: str = "", say: Any = None) -> Iterator[None]:
    """Hold the lock file ``path``; where another process holds it, say ``on_wait`` once through ``say`` and wait."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if on_wait and say is not None:
            say(on_wait)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
