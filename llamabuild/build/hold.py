"""Hold a build folder against other runs, and against what a killed run left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextlib.contextmanager
def holding(path: Path, *, on_wait: str, say: Callable[[str], None]) -> Iterator[int]:
    """Lock the file ``path`` and yield its descriptor; where it is locked, say ``on_wait`` once and wait.

    The descriptor is to be passed on to the tools that are run (filelock's cannot be): when this process is killed,
    its compilers run on for a moment, and the lock is free when the last of them is gone, not before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(on_wait)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        # Not unlocked but closed: a child that still runs keeps it locked.
        os.close(descriptor)
