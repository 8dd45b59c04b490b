"""The lock: a recipe with nothing left open. What later stages are given; no field of it is optional by accident."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class LockedPatch:
    """One patch of a series, pinned by content."""

    id: str
    """Full commit id for a patch that is a commit, else the file's name."""
    series: str
    group: str
    subject: str
    switches: tuple[str, ...]
    digest: str
    """SHA-256 of the patch: of the file's bytes, or of the paths, modes and blobs that a commit changes."""
    base: str = ""
    """The commit that a commit or pull request was made on; nothing for a patch file."""


@dataclass(frozen=True)
class Lock:
    """A recipe fully resolved."""

    recipe: str
    summary: str
    release: bool
    repository: str
    ref: str
    """``v0.5.0``, ``refs/pull/27858/head``, or the commit id where the recipe gives nothing else."""
    commit: str
    tree: str
    build_number: int
    date: int
    """The source's date, seconds since the epoch: of every commit made here, and ``SOURCE_DATE_EPOCH`` of the build."""
    features: tuple[str, ...]
    patches: tuple[LockedPatch, ...]


@dataclass(frozen=True)
class PatchOutcome:
    """What happened to one patch."""

    patch: LockedPatch
    state: Literal["applied", "merged", "already-upstream", "empty"]
    note: str = ""
    """``offset 12`` or ``three-way`` for a merged one."""


@dataclass(frozen=True)
class PatchedSource:
    """The pinned tree with all patches, as commits in a bare repository."""

    lock: Lock
    repository: Path
    """The bare mirror that holds the commits below."""
    provider: str
    """Who brought the pinned tree: ``cache``, ``git``, ``npm node-llama-cpp@3.22.1``, …"""
    base: str
    """A commit made here for ``lock.tree`` with a fixed identity: the same id, whoever brought the tree."""
    commit: str
    """The patched commit, with the same id everywhere: identity and dates are fixed. ``base`` without patches."""
    tree: str
    outcomes: tuple[PatchOutcome, ...]
