"""What a history tells, as far as it is here: the commits that touched some lines, and those between two pins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.source.treepatch import Entry, TreeFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pygit2

_NAMED = 5
"""Commits that are named for one conflict."""
_WALKED = 5_000
"""Commits that are looked at for one conflict."""


def upstream_of(
    repository: pygit2.Repository, commit: str, path: str, *, lines: tuple[int, int] | None, base: str
) -> tuple[str, ...]:
    """Commits up to ``commit``, and not in ``base``, that touched these lines of a file (first and last, from 1).

    Those that wrote the lines that are there now; where none did (the lines are gone), those that changed the file.
    Nothing where the history is not here.
    """
    if not commit or not repository[commit].parent_ids:
        return ()
    found = list(dict.fromkeys(_wrote(repository, commit, path, lines))) if lines is not None else []
    found = [each for each in found if not _is_old(repository, each, base)]
    if not found:
        found = list(_changed(repository, commit, path, base))
    return tuple(describe(repository, each) for each in found[:_NAMED])


def describe(repository: pygit2.Repository, commit: str) -> str:
    """A commit as one line: its short id and subject."""
    message = repository[commit].raw_message.decode(errors="replace")
    return f"{commit[:9]} {message.partition(chr(10))[0]}"


def between(repository: pygit2.Repository, old: str, new: str) -> tuple[str, ...] | None:
    """The commits that ``new`` has and ``old`` has not, newest first; None where the history does not join them."""
    import pygit2

    try:
        if repository.merge_base(old, new) is None:
            return None
    except (KeyError, ValueError, pygit2.GitError):
        return None
    walker = repository.walk(new, pygit2.enums.SortMode.TOPOLOGICAL)
    walker.hide(old)
    return tuple(describe(repository, str(each.id)) for each in walker)


def count_commits(repository: pygit2.Repository, commit: str) -> int | None:
    """How many commits lead to this one, itself included: upstream's build number. None where history is cut off."""
    if repository.is_shallow:
        return None
    return sum(1 for _ in repository.walk(commit))


def _wrote(repository: pygit2.Repository, commit: str, path: str, lines: tuple[int, int]) -> Iterator[str]:
    import pygit2

    try:
        blame = repository.blame(path, newest_commit=commit, min_line=lines[0], max_line=lines[1])
    except (KeyError, ValueError, pygit2.GitError):
        return
    for hunk in blame:
        writer = str(hunk.final_commit_id)
        if repository[writer].parent_ids:
            yield writer


def _is_old(repository: pygit2.Repository, commit: str, base: str) -> bool:
    """Whether the patch's own base has the commit."""
    return bool(base) and base in repository and (commit == base or repository.descendant_of(base, commit))


def _changed(repository: pygit2.Repository, commit: str, path: str, base: str) -> Iterator[str]:
    import pygit2

    if not base or base not in repository or not _is_old(repository, base, base):
        return
    walker = repository.walk(commit, pygit2.enums.SortMode.TOPOLOGICAL)
    walker.hide(base)
    for _, each in zip(range(_WALKED), walker, strict=False):
        parents = [_entry(repository, parent, path) for parent in each.parents]
        if parents and all(entry != _entry(repository, each, path) for entry in parents):
            yield str(each.id)


def _entry(repository: pygit2.Repository, commit: pygit2.Commit, path: str) -> Entry | None:
    return TreeFiles(repository, str(commit.tree_id)).get(path.encode(errors="surrogateescape"))
