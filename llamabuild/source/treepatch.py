"""Apply a patch to a git tree in memory: a tree in, a tree out, no index and no work tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from llamabuild.core.errors import PatchError
from llamabuild.source.hunks import HunkError, apply_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pygit2

    from llamabuild.source.diff import FileDiff, Hunk

FILE, EXECUTABLE, LINK, SUBMODULE, FOLDER = 0o100644, 0o100755, 0o120000, 0o160000, 0o040000
"""The modes that a tree's entry can have."""


class MisfitError(Exception):
    """A patch does not fit a tree: which file, why, and the hunk where it is one."""

    def __init__(self, path: bytes, reason: str, hunk: Hunk | None = None) -> None:
        super().__init__(reason)
        self.path = path.decode(errors="replace")
        self.reason = reason
        self.hunk = hunk


@dataclass(frozen=True)
class Entry:
    """A file in a tree."""

    id: str
    mode: int


@dataclass(frozen=True)
class PatchedTree:
    """A tree with a patch applied."""

    tree: str
    offset: int
    """By how many lines the hunk that was furthest off was off; 0 where all fit where they said."""


def apply_to_tree(repository: pygit2.Repository, tree: str, files: tuple[FileDiff, ...], *, name: str) -> PatchedTree:
    """Apply the files of a patch to ``tree``, whose objects and the result's are in ``repository``.

    Raises MisfitError where a file or hunk does not fit; PatchError for a path that would leave the tree.
    """
    application = _Application(repository, tree, files, name)
    for diff in files:
        application.take(diff)
    return PatchedTree(write_edits(repository, tree, application.edits), application.offset)


class _Application:
    """A patch on its way into a tree: what of it is done, and what it will take away and bring."""

    def __init__(self, repository: pygit2.Repository, tree: str, files: tuple[FileDiff, ...], name: str) -> None:
        self._repository = repository
        self._base = TreeFiles(repository, tree)
        self._name = name
        self.edits: dict[bytes, Entry | None] = {}
        self.offset = 0
        # What a patch takes away makes way for what it brings, in whichever order the two come.
        self._gone = {
            each.old_path
            for each in files
            if each.old_path is not None and each.new_path != each.old_path and not each.copied
        }
        # git takes a link for gone only where the patch says that it was one.
        self._gone_links = {each.old_path for each in files if each.old_path in self._gone and each.old_mode == LINK}
        self._links = {each.new_path for each in files if each.new_path is not None and each.new_mode == LINK}

    def take(self, diff: FileDiff) -> None:
        """Apply what the patch does to one file."""
        self._check(diff)
        # A later part of the patch sees what an earlier one did to the same file; a copy or rename sees the tree as it
        # was before.
        moved = diff.old_path != diff.new_path
        entry = self._preimage(diff, moved=moved)
        data = self._base.read(entry) if entry is not None else b""
        try:
            result = apply_file(data, diff) if diff.hunks or diff.binary is not None else None
        except HunkError as exc:
            raise MisfitError(diff.path, exc.reason, exc.hunk) from exc
        content = result.data if result is not None else data
        if diff.new_path is None:
            if content:
                raise MisfitError(diff.path, "it is to be deleted, but has more in it than the patch removes")
            self.edits[diff.path] = None
            return
        if moved:
            self._make_way(diff.new_path)
        if result is not None and abs(result.offset) > abs(self.offset):
            self.offset = result.offset
        mode = diff.new_mode or (entry.mode if entry is not None else FILE)
        self.edits[diff.new_path] = Entry(str(self._repository.create_blob(content)), _normal(mode))
        if moved and diff.old_path is not None and not diff.copied:
            self.edits.setdefault(diff.old_path, None)

    def _check(self, diff: FileDiff) -> None:
        """Refuse a path that leaves the tree, by itself or through a link.

        Raises PatchError.
        """
        for path in (diff.old_path, diff.new_path):
            if path is not None:
                check_path(path, self._name)
        path = diff.new_path
        for above in _above(path) if path is not None else ():
            there = self._base.get(above)
            link = there is not None and there.mode == LINK and above not in self._gone_links
            if link or above in self._links:
                raise PatchError(
                    f"{self._name} wants to write {diff.path.decode(errors='replace')!r}, which is beyond a symbolic "
                    "link.",
                    hint="A patch like this is not applied; look at where it comes from.",
                )

    def _preimage(self, diff: FileDiff, *, moved: bool) -> Entry | None:
        path = diff.old_path
        if path is None:
            return None
        entry = self._base.get(path) if moved or path not in self.edits else self.edits[path]
        if entry is None:
            raise MisfitError(path, "there is no such file")
        if entry.mode == FOLDER:
            raise MisfitError(path, "it is a folder")
        if diff.old_mode is not None and (diff.old_mode ^ entry.mode) & 0o170000:
            raise MisfitError(path, "it is another kind of file (a link, a submodule)")
        if diff.binary is not None:
            if diff.old_id is None or diff.new_id is None or len(diff.old_id) < 40:
                raise MisfitError(path, "a binary patch has to name the whole ids in its index line")
            if diff.old_id != entry.id:
                raise MisfitError(path, "the binary patch is for another content")
        return entry

    def _make_way(self, path: bytes) -> None:
        """Refuse a new path that is taken, by a file, by a folder with files in it, or by a file above it."""
        if any(there is not None and there.mode != FOLDER for there in map(self._present, _above(path))):
            raise MisfitError(path, "there is a file above it")
        there = self._present(path)
        inside = (each for each in (*self._base.below(path), *self.edits) if each.startswith(path + b"/"))
        if there is not None and (there.mode != FOLDER or any(self._present(each) for each in inside)):
            raise MisfitError(path, "it exists already")

    def _present(self, path: bytes) -> Entry | None:
        """What will be at a path, as far as the patch is known to leave it there."""
        if path in self.edits:
            return self.edits[path]
        return None if path in self._gone else self._base.get(path)


def _above(path: bytes) -> list[bytes]:
    """The folders of a path, outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:end]) for end in range(1, len(parts))]


class TreeFiles:
    """Files of a tree by path, with nothing read ahead."""

    def __init__(self, repository: pygit2.Repository, tree: str) -> None:
        self._repository = repository
        self._tree = repository[tree]

    def get(self, path: bytes) -> Entry | None:
        """The entry at a path; None where there is none. A folder's mode is 0o040000."""
        node = self._tree
        parts = path.split(b"/")
        for index, part in enumerate(parts):
            found = _child(node, part)
            if found is None:
                return None
            if index == len(parts) - 1:
                return Entry(str(found.id), int(found.filemode))
            if int(found.filemode) != FOLDER:
                return None
            node = self._repository[found.id]
        return None

    def below(self, folder: bytes) -> Iterator[bytes]:
        """Every file below a folder, by its whole path."""
        there = self.get(folder)
        for each in self._repository[there.id] if there is not None and there.mode == FOLDER else ():
            path = folder + b"/" + each.raw_name
            if int(each.filemode) == FOLDER:
                yield from self.below(path)
            else:
                yield path

    def read(self, entry: Entry) -> bytes:
        """A file's bytes (a link's target); nothing for a submodule."""
        return b"" if entry.mode == SUBMODULE else bytes(self._repository[entry.id].data)


def _child(tree: pygit2.Tree, name: bytes) -> pygit2.Object | None:
    try:
        return tree[name.decode()]
    except KeyError:
        return None
    except UnicodeDecodeError:
        return next((each for each in tree if each.raw_name == name), None)


def _normal(mode: int) -> int:
    if mode in {LINK, SUBMODULE}:
        return mode
    return EXECUTABLE if mode & 0o100 else FILE


def check_path(path: bytes, name: str) -> None:
    """Refuse a path that leaves the tree or reaches into git's own folder.

    Raises PatchError.
    """
    parts = path.split(b"/")
    shown = path.decode(errors="replace")
    bad = (
        not path
        or path.startswith(b"/")
        or any(part in {b"", b".", b".."} for part in parts)
        or any(_is_git(part) for part in parts)
        or b"\\" in path
        or b"\0" in path
    )
    if bad:
        raise PatchError(
            f"{name} wants to write {shown!r}, which is not a path inside the tree.",
            hint="A patch like this is not applied; look at where it comes from.",
        )


def _is_git(part: bytes) -> bool:
    """``.git`` in any case, as file systems that ignore case or drop ends see it."""
    folded = part.lower().rstrip(b". ").split(b":")[0]
    ignorable = "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
    plain = folded.decode(errors="replace").translate(dict.fromkeys(map(ord, ignorable)))
    return plain in {".git", "git~1"}


def write_edits(repository: pygit2.Repository, tree: str, edits: dict[bytes, Entry | None]) -> str:
    """The tree with some files set or removed; folders come and go with their files."""
    nested: _Edits = {}
    # Removals first: a file may come to where a folder was, or the other way round.
    for path, entry in sorted(edits.items(), key=lambda each: each[1] is not None):
        folder = nested
        *folders, last = path.split(b"/")
        for part in folders:
            below = folder.get(part)
            if not isinstance(below, dict):
                below = folder[part] = {}
            folder = below
        folder[last] = entry
    return _write(repository, repository[tree], nested) or write_tree(repository, {})


def write_tree(repository: pygit2.Repository, entries: dict[bytes, Entry]) -> str:
    """Write one tree object. libgit2's builder takes UTF-8 names alone; git takes any."""
    import pygit2

    # git sorts a folder as if its name ended in a slash.
    names = sorted(entries, key=lambda name: name + b"/" if entries[name].mode == FOLDER else name)
    raw = b"".join(b"%o %s\0%s" % (entries[name].mode, name, bytes.fromhex(entries[name].id)) for name in names)
    return str(repository.odb.write(pygit2.enums.ObjectType.TREE, raw))


_Edits: TypeAlias = "dict[bytes, Entry | _Edits | None]"


def _adds(edits: _Edits) -> bool:
    return any(_adds(each) if isinstance(each, dict) else each is not None for each in edits.values())


def _write(repository: pygit2.Repository, tree: pygit2.Tree | None, edits: _Edits) -> str | None:
    """A tree with edits; None where nothing is left in it."""
    entries = {each.raw_name: Entry(str(each.id), int(each.filemode)) for each in tree or ()}
    for name, edit in edits.items():
        there = entries.get(name)
        if isinstance(edit, dict):
            below = repository[there.id] if there is not None and there.mode == FOLDER else None
            if below is None and not _adds(edit):
                # Nothing is below a file or a link, so nothing is to be removed there.
                continue
            written = _write(repository, below, edit)
            entry = Entry(written, FOLDER) if written is not None else None
        else:
            entry = edit
        if entry is not None:
            entries[name] = entry
        else:
            entries.pop(name, None)
    return write_tree(repository, entries) if entries else None
