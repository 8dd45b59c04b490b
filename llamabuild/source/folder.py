"""A folder's files as a git tree, without a work tree, an index or git's own ignore rules."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import SourceError

if TYPE_CHECKING:
    import pygit2


class TreeWriter:
    """Collects files and writes them as one tree."""

    def __init__(self, repository: pygit2.Repository) -> None:
        self._repository = repository
        self._root: dict[str, Any] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return not self._root

    def add(self, name: str, data: bytes, *, executable: bool = False, link: bool = False) -> None:
        """Add a file (or a symbolic link with its target as data) at a path relative to the tree."""
        mode = 0o120000 if link else 0o100755 if executable else 0o100644
        parts = PurePosixPath(name).parts
        if parts == (".git",):
            # What a submodule leaves at its top: a link to the outer repository, no part of the tree.
            return
        if not parts or ".." in parts or parts[0] == "/" or any(part.lower() == ".git" for part in parts):
            raise SourceError(f"{name!r} is not a path that a tree can hold.")
        folder = self._root
        for part in parts[:-1]:
            folder = folder.setdefault(part, {})
            if not isinstance(folder, dict):
                raise SourceError(f"{name!r} is below a file.")
        folder[parts[-1]] = (self._blob(data), mode)

    def _blob(self, data: bytes) -> pygit2.Oid:
        import pygit2

        # Most files of one upstream release are in another: looking costs a fifth of what writing again does.
        known = pygit2.hash(data)
        return known if known in self._repository.odb else self._repository.create_blob(data)

    def write(self) -> str:
        """Write the tree; returns its id."""
        return str(self._write(self._root))

    def _write(self, folder: dict[str, Any]) -> Any:
        builder = self._repository.TreeBuilder()
        for name, entry in folder.items():
            if isinstance(entry, dict):
                builder.insert(name, self._write(entry), 0o040000)
            else:
                builder.insert(name, *entry)
        return builder.write()


def tree_of_folder(repository: pygit2.Repository, folder: Path) -> str:
    """Write a folder as a tree; ``.git`` is left out, and empty folders are nothing, as in git."""
    if not folder.is_dir():
        raise SourceError(f"There is no folder {folder}.", hint="Check the path.")
    writer = TreeWriter(repository)
    for where, names, files in os.walk(folder):
        names[:] = [name for name in names if name != ".git" and not (Path(where) / name).is_symlink()]
        linked = [name for name in os.listdir(where) if (Path(where) / name).is_symlink()]  # noqa: PTH208
        for name in sorted({*files, *linked} - {".git"}):
            path = Path(where) / name
            inner = path.relative_to(folder).as_posix()
            if path.is_symlink():
                writer.add(inner, os.fsencode(path.readlink()), link=True)
            elif path.is_file():
                writer.add(inner, path.read_bytes(), executable=os.access(path, os.X_OK))
    return writer.write()
