"""The patched tree as a git work tree on disk, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import SourceError
from llamabuild.core.files import atomic_folder, locked, write_json
from llamabuild.source.treepatch import EXECUTABLE, FOLDER, LINK, SUBMODULE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.source.lock import PatchedSource

_MARKER = "llamabuild.json"
"""In ``.git``: the commit, and what every file looked like when it was written. There only when the tree is whole."""


def check_out(patched: PatchedSource, folder: Path, context: Context) -> Path:
    """Have ``folder`` hold the patched tree, and return it.

    A tree that is there already is brought up to date in place: files that are right keep their times, so that a build
    in it stays incremental; files that a person or an interrupted run changed are put right; files that are not ours (a
    build folder) stay. A folder that is no such tree and not empty is refused.

    Raises SourceError.
    """
    folder = folder.absolute()
    guard = context.home.locks / f"worktree-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.lock"
    with locked(guard, on_wait=f"waiting for another run that writes {folder}", say=context.console.note):
        marker = folder / ".git" / _MARKER
        if folder.is_dir() and any(folder.iterdir()):
            if not marker.is_file():
                raise SourceError(
                    f"{folder} is not empty and not a work tree of llamabuild.",
                    hint="Name an empty or new folder, or remove that one.",
                )
            _update(patched, folder, marker)
        else:
            with atomic_folder(folder) as part:
                _write_git(patched, part)
                written = {path: _write(part, path, *entry) for path, entry in _files(patched).items()}
                write_json(part / ".git" / _MARKER, {"commit": patched.commit, "files": written})
    return folder


def write_folder(repository: pygit2.Repository, tree: str, folder: Path, context: Context) -> None:
    """Write a tree's files into a new or empty folder, without git's own.

    Raises SourceError when there is something in it.
    """
    folder = folder.absolute()
    if folder.is_dir() and any(folder.iterdir()):
        raise SourceError(f"{folder} is not empty.", hint="Name an empty or new folder.")
    guard = context.home.locks / f"worktree-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.lock"
    waiting = f"waiting for another run that writes {folder}"
    with locked(guard, on_wait=waiting, say=context.console.note), atomic_folder(folder) as part:
        for path, entry in _walk(repository, repository[tree], ""):
            _write(part, path, *entry)


def _update(patched: PatchedSource, folder: Path, marker: Path) -> None:
    known: dict[str, Any] = json.loads(marker.read_text())
    before: dict[str, list[int]] = known["files"]
    same = known["commit"] == patched.commit
    if same and all(_stat(folder / path) == stat for path, stat in before.items()):
        return
    wanted = _files(patched)
    # From here to the end the tree is neither the old nor the new one; every file is looked at by the next run.
    write_json(marker, {"commit": "", "files": {**{path: [] for path in wanted}, **before}})
    for path in sorted(before.keys() - wanted.keys()):
        _remove(folder, path)
    after = {}
    for path, (data, mode) in wanted.items():
        target = folder / path
        stat = _stat(target)
        right = stat is not None and _right(target, data, mode)
        after[path] = stat if right and stat is not None else _write(folder, path, data, mode)
    _write_git(patched, folder)
    write_json(marker, {"commit": patched.commit, "files": after})


def _files(patched: PatchedSource) -> dict[str, tuple[bytes, int]]:
    """Every file of the tree: bytes and mode, by path."""
    import pygit2

    repository = pygit2.Repository(str(patched.repository))
    return dict(_walk(repository, repository[patched.tree], ""))


def _walk(repository: pygit2.Repository, tree: pygit2.Tree, where: str) -> Iterator[tuple[str, tuple[bytes, int]]]:
    for entry in tree:
        path = where + os.fsdecode(entry.raw_name)
        mode = int(entry.filemode)
        if mode == FOLDER:
            yield from _walk(repository, entry, path + "/")
        elif mode != SUBMODULE:
            yield path, (entry.data, mode)


def _right(target: Path, data: bytes, mode: int) -> bool:
    if mode == LINK:
        return target.is_symlink() and os.fsencode(target.readlink()) == data
    if target.is_symlink() or not target.is_file() or target.stat().st_size != len(data):
        return False
    return bool(target.stat().st_mode & 0o100) == (mode == EXECUTABLE) and target.read_bytes() == data


def _write(folder: Path, path: str, data: bytes, mode: int) -> list[int]:
    """Write one file and return what it looks like."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.exists():
        target.unlink()
    if mode == LINK:
        target.symlink_to(os.fsdecode(data))
    else:
        target.write_bytes(data)
        target.chmod(0o755 if mode == EXECUTABLE else 0o644)
    stat = _stat(target)
    if stat is None:
        raise SourceError(f"{target} vanished while the source was written.", hint="Run again.")
    return stat


def _stat(target: Path) -> list[int] | None:
    try:
        stat = target.lstat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_mode]


def _remove(folder: Path, path: str) -> None:
    target = folder / path
    target.unlink(missing_ok=True)
    for parent in target.parents:
        if parent == folder or any(parent.iterdir()):
            break
        parent.rmdir()


def _write_git(patched: PatchedSource, folder: Path) -> None:
    """A ``.git`` that borrows its objects from the mirror, with HEAD at the patched commit."""
    import pygit2

    if not (folder / ".git" / "HEAD").is_file():
        pygit2.init_repository(str(folder))
    info = folder / ".git" / "objects" / "info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "alternates").write_text(f"{patched.repository / 'objects'}\n")
    repository = pygit2.Repository(str(folder))
    # What a user's own git configuration says must not make git see changes here.
    repository.config["core.autocrlf"] = "false"
    repository.config["core.safecrlf"] = "false"
    repository.references.create("refs/heads/llamabuild", patched.commit, force=True)
    repository.references.create("refs/heads/upstream", patched.base, force=True)
    repository.set_head("refs/heads/llamabuild")
    repository.index.read_tree(repository[patched.tree])
    repository.index.write()
