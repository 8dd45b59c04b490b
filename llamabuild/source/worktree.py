"""The patched tree as a git work tree on disk, whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import SourceError
from llamabuild.core.files import atomic_folder, locked, write_text
from llamabuild.source.mirror import remove_leftovers
from llamabuild.source.treepatch import EXECUTABLE, FOLDER, LINK, SUBMODULE, Entry, check_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.source.lock import PatchedSource

_MARKER = "llamabuild.json"
"""In ``.git``: the commit, and what every file looked like when it was written. There only when the tree is whole."""


def check_out(patched: PatchedSource, folder: Path, context: Context, *, standalone: bool = False) -> Path:
    """Have ``folder`` hold the patched tree, and return it.

    A tree that is there already is brought up to date in place: files that are right keep their times, so that a build
    in it stays incremental; files that an interrupted run left wrong are put right; files that are not ours (a build
    folder) stay. A folder that is no such tree and not empty is refused.

    ``standalone`` is for a tree that a person works in: it has its objects itself, and when a person has changed files,
    it is refused instead of put right.

    Raises SourceError.
    """
    import pygit2

    folder = folder.absolute()
    with _holding(folder, context):
        pygit2.settings.owner_validation = False
        repository = pygit2.Repository(str(patched.repository))
        marker = folder / ".git" / _MARKER
        if not folder.is_dir() or not any(folder.iterdir()):
            with atomic_folder(folder) as part:
                _write_git(patched, part, standalone=standalone)
                _mark(part / ".git" / _MARKER, patched.commit, _fill(repository, patched.tree, part))
        elif marker.is_file():
            _update(repository, patched, folder, standalone=standalone)
        else:
            raise SourceError(
                f"{folder} is not empty and not a work tree of llamabuild.",
                hint="Name an empty or new folder, or remove that one.",
            )
    return folder


def write_folder(repository: pygit2.Repository, tree: str, folder: Path, context: Context) -> None:
    """Write a tree's files into a new or empty folder, without git's own.

    Raises SourceError when there is something in it.
    """
    folder = folder.absolute()
    with _holding(folder, context):
        if folder.is_dir() and any(folder.iterdir()):
            raise SourceError(f"{folder} is not empty.", hint="Name an empty or new folder.")
        with atomic_folder(folder) as part:
            _fill(repository, tree, part)


@contextlib.contextmanager
def _holding(folder: Path, context: Context) -> Iterator[None]:
    guard = context.home.locks / f"worktree-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.lock"
    with locked(guard, on_wait=f"waiting for another run that writes {folder}", say=context.console.note):
        yield


def _fill(repository: pygit2.Repository, tree: str, folder: Path) -> dict[str, list[int]]:
    """Write every file of a tree; returns what each looks like."""
    return {
        path: _write(folder, path, repository[entry.id].data, entry.mode) for path, entry in _walk(repository, tree)
    }


def _update(repository: pygit2.Repository, patched: PatchedSource, folder: Path, *, standalone: bool) -> None:
    marker = folder / ".git" / _MARKER
    known: dict[str, Any] = json.loads(marker.read_text())
    before: dict[str, list[int]] = known["files"]
    changed = [path for path, stat in before.items() if _stat(folder / path) != stat]
    if known["commit"] == patched.commit and not changed:
        return
    if standalone and known["commit"] and changed:
        raise SourceError(
            f"{folder} has files that were changed by hand: {', '.join(sorted(changed)[:5])}.",
            hint="Commit or copy your work and name a new folder; nothing was touched.",
        )
    wanted = dict(_walk(repository, patched.tree))
    # From here to the end the tree is neither the old nor the new one; every file is looked at by the next run.
    _mark(marker, "", {**{path: [] for path in wanted}, **before})
    for path in sorted(before.keys() - wanted.keys()):
        _remove(folder, path)
    after = {path: _put_right(repository, folder, path, entry) for path, entry in wanted.items()}
    _write_git(patched, folder, standalone=standalone)
    _mark(marker, patched.commit, after)


def _mark(marker: Path, commit: str, files: dict[str, list[int]]) -> None:
    # ASCII, because a path need not be UTF-8.
    write_text(marker, json.dumps({"commit": commit, "files": files}))


def _walk(repository: pygit2.Repository, tree: str, where: bytes = b"") -> Iterator[tuple[str, Entry]]:
    """Every file of a tree by its path; a name that no work tree may have is refused."""
    for each in repository[tree]:
        entry = Entry(str(each.id), int(each.filemode))
        path = where + each.raw_name
        if entry.mode == FOLDER:
            yield from _walk(repository, entry.id, path + b"/")
        elif entry.mode != SUBMODULE:
            check_path(path, f"tree {tree}")
            yield os.fsdecode(path), entry


def _put_right(repository: pygit2.Repository, folder: Path, path: str, entry: Entry) -> list[int]:
    target = folder / path
    stat = _stat(target)
    data = repository[entry.id].data
    if stat is not None and not _through_link(folder, target) and _is_right(target, data, entry.mode):
        return stat
    return _write(folder, path, data, entry.mode)


def _is_right(target: Path, data: bytes, mode: int) -> bool:
    if mode == LINK:
        return target.is_symlink() and os.fsencode(target.readlink()) == data
    if target.is_symlink() or not target.is_file() or target.stat().st_size != len(data):
        return False
    return bool(target.stat().st_mode & 0o100) == (mode == EXECUTABLE) and target.read_bytes() == data


def _through_link(folder: Path, target: Path) -> bool:
    return any(parent.is_symlink() for parent in target.parents if parent.is_relative_to(folder) and parent != folder)


def _write(folder: Path, path: str, data: bytes, mode: int) -> list[int]:
    """Write one file and return what it looks like."""
    target = folder / path
    for parent in reversed(target.relative_to(folder).parents):
        above = folder / parent
        # A link that was put where the tree has a folder must not lead us elsewhere.
        if above != folder and (above.is_symlink() or above.is_file()):
            above.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
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
    if _through_link(folder, target) or not (target.is_symlink() or target.is_file()):
        return
    target.unlink()
    for parent in target.parents:
        if parent == folder or any(parent.iterdir()):
            break
        parent.rmdir()


def _write_git(patched: PatchedSource, folder: Path, *, standalone: bool) -> None:
    """A ``.git`` with HEAD at the patched commit; its objects are borrowed from the mirror, or its own."""
    import pygit2

    if not standalone:
        remove_leftovers(folder / ".git")
    if not (folder / ".git" / "HEAD").is_file():
        pygit2.init_repository(str(folder))
    objects = folder / ".git" / "objects"
    if standalone:
        _link_objects(patched.repository, objects)
    else:
        (objects / "info").mkdir(parents=True, exist_ok=True)
        (objects / "info" / "alternates").write_text(f"{patched.repository / 'objects'}\n")
    repository = pygit2.Repository(str(folder))
    # What a user's own git configuration says must not make git see changes here.
    repository.config["core.autocrlf"] = "false"
    repository.config["core.safecrlf"] = "false"
    repository.references.create("refs/heads/llamabuild", patched.commit, force=True)
    repository.references.create("refs/heads/upstream", patched.base, force=True)
    repository.set_head("refs/heads/llamabuild")
    repository.index.read_tree(repository[patched.tree])
    repository.index.write()


def _link_objects(mirror: Path, objects: Path) -> None:
    """The mirror's objects as hard links (copies on another file system): they never change, and packing takes long."""
    for source in (mirror / "objects").rglob("*"):
        target = objects / source.relative_to(mirror / "objects")
        if not source.is_file() or target.exists() or source.parent.name == "info" or source.name.startswith("."):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)
    if (mirror / "shallow").is_file():
        shutil.copy2(mirror / "shallow", objects.parent / "shallow")
