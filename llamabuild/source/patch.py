"""A patch ready to be applied, whatever kind of thing it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamabuild.source.diff import FileDiff
    from llamabuild.source.lock import LockedPatch
    from llamabuild.source.mail import Author


@dataclass(frozen=True)
class TextChange:
    """A patch file: hunks, with the blobs they were made for where an ``index`` line names them."""

    files: tuple[FileDiff, ...]
    data: bytes
    """The file as it is."""


@dataclass(frozen=True)
class TreeChange:
    """A commit: the trees before and after."""

    before: str
    after: str


@dataclass(frozen=True)
class UpstreamChange:
    """Nothing to apply: upstream has it, as its first build number and a feature of the tree tell."""

    since: int | None
    feature: str | None


@dataclass(frozen=True)
class Patch:
    """One patch of a series."""

    locked: LockedPatch
    number: int
    """From 1, in its series."""
    part: int
    """Which part of the manifest it is of: a part that upstream took as one commit is recognised as a whole."""
    message: str
    author: Author | None
    change: TextChange | TreeChange | UpstreamChange
