"""``diff-builds`` on whatever was named: folders, archives, single files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.bundle.unpack import open_archive, opened_tar
from llamabuild.core.errors import UsageError
from llamabuild.core.files import scratch_folder, sha256_file
from llamabuild.release.diff import Difference, diff_files, diff_members, diff_trees

if TYPE_CHECKING:
    import tarfile

    from llamabuild.core.context import Context

_ARCHIVES = (".tar.gz", ".tgz", ".tar.zst")


def diff_paths(a: Path, b: Path, context: Context) -> tuple[Difference, ...]:
    """Every difference between two folders, two archives, an archive and a folder, or two files.

    Raises UsageError for a path that is not there, and for a file that is to be compared with a folder.
    """
    for path in (a, b):
        if not path.exists():
            raise UsageError(f"There is no {path}.", hint="Name two folders, archives or files of the same kind.")
    holds_files = [path.is_dir() or path.name.endswith(_ARCHIVES) for path in (a, b)]
    if holds_files[0] != holds_files[1]:
        raise UsageError(
            f"{a} and {b} are not of one kind.",
            hint="Compare a file with a file, and an archive with an archive or folder.",
        )
    if not holds_files[0]:
        return tuple(diff_files("", a, b))
    if a.is_file() and b.is_file() and sha256_file(a) == sha256_file(b):
        return ()
    with scratch_folder(context.home.root, prefix="diff-") as scratch:
        found = diff_trees(_opened(a, scratch / "a"), _opened(b, scratch / "b"))
    if not (a.is_file() and b.is_file()):
        return found
    found += diff_members(_members(a), _members(b))
    # Nothing inside differs, so it is how the same members were packed.
    return found or (Difference("", "packing", "", f"{a.stat().st_size} bytes", f"{b.stat().st_size} bytes"),)


def _opened(path: Path, folder: Path) -> Path:
    if path.is_dir():
        return path
    folder.mkdir()
    return open_archive(path, folder)


def _members(path: Path) -> list[tarfile.TarInfo]:
    with opened_tar(path) as tar:
        return list(tar)
