"""What is read of commits."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from llamabuild.source.mail import Author
from llamabuild.source.merge import tree_changes

if TYPE_CHECKING:
    import pygit2


def ancestors(repository: pygit2.Repository, tip: str) -> list[pygit2.Commit]:
    """A commit and what leads to it, newest first, as far as the history is here."""
    import pygit2

    order = pygit2.enums.SortMode.TOPOLOGICAL
    return list(repository.walk(tip, order))


def tree_of(repository: pygit2.Repository, commit: str) -> str:
    """The tree of a commit that is there (or of what a tag leads to)."""
    import pygit2

    return str(repository[commit].peel(pygit2.Tree).id)


def digest_of(repository: pygit2.Repository, before: str, after: str) -> str:
    """SHA-256 of what changes: paths, modes and blob ids. No diff's text, which differs from one git to the next."""
    state = hashlib.sha256()
    for path, old, new in tree_changes(repository, tree_of(repository, before), tree_of(repository, after)):
        for part in (path, *(b"" if each is None else f"{each.mode:o} {each.id}".encode() for each in (old, new))):
            state.update(part + b"\0")
    return state.hexdigest()


def author_of(commit: pygit2.Commit) -> Author:
    """Who wrote a commit, and when."""
    who = commit.author
    return Author(text_of(who.raw_name), text_of(who.raw_email), who.time, who.offset)


def text_of(data: bytes) -> str:
    """Text as git keeps it: UTF-8, or, in old commits, Latin-1."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
