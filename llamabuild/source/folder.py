"""A folder's files as a git tree, without a work tree, an index or git's own ignore rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import PatchError, SourceError
from llamabuild.source.treepatch import EXECUTABLE, FILE, LINK, Entry, check_path, write_edits, write_tree

if TYPE_CHECKING:
    import pygit2


class TreeWriter:
    """Collects files and writes them as one tree."""

    def __init__(self, repository: pygit2.Repository) -> None:
        self._repository = repository
        self._files: dict[bytes, Entry | None] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return not self._files

    def add(self, name: str, data: bytes, *, executable: bool = False, link: bool = False) -> None:
        """Add a file (or a symbolic link with its target as data) at a path relative to the tree.

        Raises SourceError for a path that a tree cannot hold.
        """
        path = os.fsencode(name)
        if path == b".git":
            # What a submodule leaves at its top: a link to the outer repository, no part of the tree.
            return
        try:
            check_path(path, "the folder")
        except PatchError as exc:
            raise SourceError(f"{name!r} is not a path that a tree can hold.") from exc
        self._files[path] = Entry(self._blob(data), LINK if link else EXECUTABLE if executable else FILE)

    def _blob(self, data: bytes) -> str:
        import pygit2

        # Most files of one upstream release are in another: looking costs a fifth of what writing again does.
        known = pygit2.hash(data)
        return str(known if known in self._repository.odb else self._repository.create_blob(data))

    def write(self) -> str:
        """Write the tree; returns its id."""
        return write_edits(self._repository, write_tree(self._repository, {}), self._files)


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
