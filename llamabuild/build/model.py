"""What a build leaves behind, as typed data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Tool:
    """A tool that was found and asked for its version."""

    name: str
    path: Path
    version: str


@dataclass(frozen=True)
class Target:
    """A target of a recipe for one arch, ready to build."""

    name: str
    """``cpu``, ``cpu-all``, ``cuda``, ``vulkan``, ``cuda-vulkan``, ``hip``, or the recipe's own name for one."""
    backends: tuple[str, ...]
    arch: str
    """As written; empty where no backend has archs."""
    entries: tuple[tuple[str, str], ...]
    """CMake cache entries, name and value, sorted."""
    programs: tuple[str, ...]
    rpath: Literal["rpath", "runpath"]
    glibc_floor: str | None
    rccl: bool
    nccl: bool


@dataclass(frozen=True)
class BuiltFile:
    """One artifact as the CMake file API names it."""

    target: str
    """The CMake target that makes it."""
    kind: Literal["executable", "shared", "module"]
    path: Path
    """Absolute, the real file (not a link of its chain)."""
    plugin: bool
    """A backend that ggml opens at run time (``libggml-<name>.so``)."""


@dataclass(frozen=True)
class BuildTree:
    """A finished build."""

    folder: Path
    source: Path
    target: Target
    files: tuple[BuiltFile, ...]
    tools: tuple[Tool, ...]
    cache_entries: tuple[tuple[str, str], ...]
    """What was passed with -D, in order."""
    build_number: int
    build_commit: str
    network: str
    """How the build was kept off the network: ``namespace`` or ``options checked``."""
    log: Path
