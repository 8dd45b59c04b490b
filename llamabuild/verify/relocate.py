"""Start a bundle's programs elsewhere: from another path, read-only, as another user, with an empty environment."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.files import remove_tree
from llamabuild.core.process import end_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.subject import Subject

_NOBODY = 65534
_SECONDS = 60.0
_MOST_OUTPUT = 4 << 20
_KERNEL_FOLDERS = ("rocblas/", "hipblaslt/")
"""Gigabytes that no program reads before it computes: left out where they would have to be copied."""
_MACHINES = {
    "x86_64": "EM_X86_64",
    "aarch64": "EM_AARCH64",
    "riscv64": "EM_RISCV",
    "ppc64le": "EM_PPC64",
    "s390x": "EM_S390",
}


@dataclass(frozen=True)
class Started:
    """How one start of a program went."""

    program: str
    """Relative to the bundle."""
    arguments: tuple[str, ...]
    returncode: int | None
    """Negative for a signal; None where it did not end in time or could not be started."""
    output: str
    """Standard output and error together."""
    error: str = ""
    """Why there is no return code."""
    refused: bool = False
    """The system did not let it start: its mode, or a file system that is mounted without execution."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.returncode == 0


@dataclass(frozen=True)
class Elsewhere:
    """A second place where the bundle stands, and who starts its programs there."""

    root: Path
    user: int | None
    """The user id that programs run as; None for the present user."""


@contextlib.contextmanager
def elsewhere(subject: Subject) -> Iterator[Elsewhere]:
    """Put the bundle's files under another path, without writing permission, for as long as the context lasts.

    Hard links where the file system allows (to ``$ORIGIN`` a hard link is a place like any other), else copies.
    """
    other_user = _NOBODY if os.geteuid() == 0 and _can_become(_NOBODY) else None
    base = Path(tempfile.mkdtemp(prefix="verify-elsewhere-", dir=_roomy_folder(subject)))
    try:
        base.chmod(0o755)
        root = base / "moved here" / subject.root.name
        _place(subject, root)
        if other_user is not None and not _reachable(base):
            other_user = None
        yield Elsewhere(root=root, user=other_user)
    finally:
        remove_tree(base)


def _roomy_folder(subject: Subject) -> Path:
    """The bundle's own file system where others can look into it, so that nothing has to be copied; else the usual."""
    usual = Path(tempfile.gettempdir())
    beside = subject.root.parent
    same_device = usual.stat().st_dev == subject.root.stat().st_dev
    return beside if not same_device and os.access(beside, os.W_OK) and _reachable(beside) else usual


def _can_become(user: int) -> bool:
    """Whether a child can run as ``user``: root of a container without further users mapped cannot."""
    try:
        subprocess.run(["/bin/true"], user=user, group=user, extra_groups=[], check=True, env={})
    except (OSError, ValueError, subprocess.CalledProcessError):
        return False
    return True


def _reachable(folder: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))


def _place(subject: Subject, root: Path) -> None:
    for path in subject.folders:
        (root / path).mkdir(parents=True, exist_ok=True)
    for path, target in subject.links.items():
        (root / path).symlink_to(target)
    for path, file in subject.files.items():
        place = root / path
        try:
            place.hardlink_to(file.real)
        except OSError:
            if not any(part in path for part in _KERNEL_FOLDERS):
                shutil.copy2(file.real, place)
    for path in subject.folders:
        (root / path).chmod(stat.S_IMODE(subject.folders[path]) & ~0o222 if path else 0o555)


def start(place: Elsewhere, program: str, arguments: tuple[str, ...], *, seconds: float = _SECONDS) -> Started:
    """Start a program with an empty environment from the root folder, and wait for its end."""
    words = [str(place.root / program), *arguments]
    user = {} if place.user is None else {"user": place.user, "group": place.user, "extra_groups": []}
    try:
        child = subprocess.Popen(
            words,
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **user,  # type: ignore[call-overload]
        )
    except OSError as exc:
        refused = exc.errno in {errno.EACCES, errno.EPERM}
        return Started(program, arguments, None, "", error=exc.strerror or str(exc), refused=refused)
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end_group(child)
        child.communicate()
        return Started(program, arguments, None, "", error=f"it did not end within {seconds:.0f} seconds")
    except BaseException:
        end_group(child)
        raise
    text = output[:_MOST_OUTPUT].decode(errors="replace")
    return Started(program, arguments, child.returncode, text)


def host_machine() -> str:
    """The processor here, as ELF files name it."""
    return _MACHINES.get(platform.machine(), platform.machine())
