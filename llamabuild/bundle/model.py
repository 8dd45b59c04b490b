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
    """Who it belongs to: ``llama.cpp``, a component's name, ``system``."""
    edit: bool
    """An ELF whose rpath and debug sections may be edited."""


@dataclass(frozen=True)
class BundlePlan:
    """Every file of a bundle, decided before anything is copied."""

    name: str
    """``llama-<recipe>-<target>[-<arch>]``: the top folder's and the archives' name."""
    entries: tuple[Entry, ...]
    rpath: Literal["rpath", "runpath"]


@dataclass(frozen=True)
class StagedBundle:
    """A bundle as a folder, complete but not yet judged."""

    name: str
    root: Path
    date: int
    """Seconds since the epoch: the time of every file in an archive of it."""


@dataclass(frozen=True)
class Artifact:
    """A published file."""

    path: Path
    sha256: str
    size: int
