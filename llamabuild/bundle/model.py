"""A bundle on its way: planned, staged, archived."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Entry:
    """One file or link of a bundle before it exists."""

    destination: str
    """Relative to the bundle's root, with ``/``."""
    source: Path | None
    """The file to copy; None for a link."""
    link: str | None
    """The link's target, relative to the folder the link is in; None for a file."""
    origin: str
    """Who it belongs to: ``llama.cpp``, a component's name, a system package's name, ``system``."""
    edit: bool = False
    """An ELF whose rpath is set to ``rpath``; where false, the file keeps every byte that thinning leaves it."""
    rpath: str | None = None
    strip: bool = False
    """Remove debug sections and the static symbol table before the rpath is set."""
    thin: tuple[str, ...] = ()
    """Archs whose device code is kept; empty leaves all of it."""
    part: str = ""
    """Which archive of a split bundle it goes to; empty for the one with the programs."""
    also: tuple[str, ...] = ()
    """Other archives that hold it too: a licence is in each that has a library under it."""


@dataclass(frozen=True)
class BundlePlan:
    """Every file of a bundle, decided before anything is copied."""

    name: str
    """``llama-<recipe>-<target>[-<arch>]``: the top folder's and the archives' name."""
    entries: tuple[Entry, ...]
    """Sorted by destination."""
    rpath: Literal["rpath", "runpath"]
    notes: tuple[str, ...] = ()
    """What a user should know, one sentence each: a licence that was not found, a library without the arch."""


@dataclass(frozen=True)
class Thinned:
    """What thinning did to one file."""

    kept: tuple[str, ...]
    """Archs whose code is left."""
    zeroed: tuple[str, ...]
    """Archs whose code is gone."""
    zeroed_bytes: int
    sha256_before: str
    sha256_after: str


@dataclass(frozen=True)
class FileChange:
    """How a staged file differs from the one it was copied from."""

    destination: str
    stripped: bool = False
    rpath: Literal["unchanged", "in-place", "rewritten"] = "unchanged"
    thinned: Thinned | None = None


@dataclass(frozen=True)
class StagedBundle:
    """A bundle as a folder, complete but not yet judged."""

    name: str
    root: Path
    date: int
    """Seconds since the epoch: the time of every file in an archive of it."""
    changes: tuple[FileChange, ...] = ()
    """Files that are not byte for byte what they were copied from, sorted."""
    notes: tuple[str, ...] = ()
    """What turned out when the files were made, one sentence each: a library that could not be thinned."""


@dataclass(frozen=True)
class Artifact:
    """A published file."""

    path: Path
    sha256: str
    size: int
