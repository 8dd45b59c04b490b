"""The mirror: one bare repository a source repository, shared by all recipes, with everything ever pinned in it."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.errors import SourceError
from llamabuild.core.files import locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pygit2

    from llamabuild.core.context import Context


@dataclass(frozen=True)
class Mirror:
    """Where the mirror of a repository lies, and the lock that guards writing to it."""

    url: str
    path: Path
    lock: Path

    def open(self) -> pygit2.Repository:
        """The repository, made when it is not there; reading needs no lock."""
        import pygit2

        # A state folder may come into a container from another user; nothing of a mirror is ever run.
        pygit2.settings.owner_validation = False
        if not (self.path / "HEAD").is_file():
            self.path.mkdir(parents=True, exist_ok=True)
            pygit2.init_repository(str(self.path), bare=True)
        return pygit2.Repository(str(self.path), pygit2.enums.RepositoryOpenFlag.BARE)


def mirror_of(url: str, context: Context) -> Mirror:
    """The mirror of a repository URL; the name tells a person which one it is, the digest keeps two apart."""
    digest = hashlib.sha256(normalized(url).encode()).hexdigest()[:10]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", normalized(url).split("://")[-1]).strip("-.")[-60:]
    name = f"{stem}-{digest}"
    return Mirror(url=url, path=context.home.git / f"{name}.git", lock=context.home.locks / f"git-{name}.lock")


def normalized(url: str) -> str:
    """A URL without what does not tell two repositories apart: a ``.git`` suffix and a slash at the end."""
    return url.strip().rstrip("/").removesuffix(".git").rstrip("/")


@contextlib.contextmanager
def writing(mirror: Mirror, context: Context) -> Iterator[pygit2.Repository]:
    """Hold the mirror's lock and have it open.

    Raises SourceError where git's own failures (a full disk, a damaged file) come out of what is done with it.
    """
    import pygit2

    waiting = f"waiting for another run that fills {mirror.path.name}"
    with locked(mirror.lock, on_wait=waiting, say=context.console.note):
        remove_leftovers(mirror.path)
        try:
            yield mirror.open()
        except pygit2.GitError as exc:
            raise SourceError(
                f"The mirror {mirror.path} cannot be used: {str(exc).strip().rstrip('.')}.",
                hint="Free some space; if the mirror is damaged, remove that folder, and it is fetched anew.",
            ) from exc


def remove_leftovers(git_folder: Path) -> None:
    """Remove what git's writers left when they were killed; call this where nobody else can be writing."""
    for leftover in (
        *git_folder.glob("*.lock"),
        *git_folder.glob("refs/**/*.lock"),
        *git_folder.glob("objects/pack/pack_git2_*"),
        *git_folder.glob("objects/pack/tmp_*"),
    ):
        leftover.unlink(missing_ok=True)


def has_tree(repository: pygit2.Repository, tree: str) -> bool:
    """Whether a tree is there with everything below it (a fetch that broke off may have brought a part)."""
    import pygit2

    pending = [tree]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        try:
            entries = repository[name]
        except (KeyError, ValueError):
            return False
        if not isinstance(entries, pygit2.Tree):
            return False
        for entry in entries:
            each = str(entry.id)
            if each in seen or entry.filemode == pygit2.enums.FileMode.COMMIT:
                continue
            seen.add(each)
            if entry.filemode == pygit2.enums.FileMode.TREE:
                pending.append(each)
            elif entry.id not in repository.odb:
                return False
    return True


def keep(repository: pygit2.Repository, kind: str, name: str, target: str) -> None:
    """Name an object so that no ``git gc`` takes it away; ``refs/llamabuild/KIND/NAME``.

    A tree is named through a commit of it: libgit2 cannot fetch from a local repository into one with a ref to
    anything else ("object is not a committish").
    """
    import pygit2

    if isinstance(repository[target], pygit2.Tree):
        nobody = pygit2.Signature("llamabuild", "llamabuild@localhost", 0, 0)
        target = str(repository.create_commit(None, nobody, nobody, f"The tree {target}\n", target, []))
    repository.references.create(f"refs/llamabuild/{kind}/{name}", target, force=True)
