"""What the build stage is given and what it leaves behind, as typed data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Launcher = Literal["ccache", "sccache", "none"]
Farm = Literal["distcc", "icecc"]


@dataclass(frozen=True)
class BuildOptions:
    """How to build, where it does not change what is built."""

    jobs: int | None = None
    """Ninja's ``-j``; None: from memory and cores."""
    launcher: Launcher = "ccache"
    farm: Farm | None = None
    """Who compiles what the cache does not hold."""
    remote_cache: str | None = None
    """A URL that a fleet shares one compile cache by: ``redis://``, ``http://``, ``s3://`` (through sccache)."""
    cuda_toolkit: str | None = None
    """``system``, ``wheels:13.0``, or a folder; None: a toolkit that is installed."""
    rocm: Path | None = None
    """A ROCm tree in any of the four layouts; None: where the distribution puts it."""
    vulkan_sdk: Path | None = None
    """A folder with glslc, the Vulkan and SPIR-V headers and libvulkan; None: ``VULKAN_SDK``, else the system's."""


@dataclass(frozen=True)
class Tool:
    """A tool that was found and asked for its version."""

    name: str
    path: Path
    version: str


@dataclass(frozen=True)
class Toolchain:
    """Everything a target is built with, tried and found good by ``preflight``."""

    tools: tuple[Tool, ...]
    cc: Path
    cxx: Path
    entries: tuple[tuple[str, str], ...]
    """CMake cache entries that say where the toolkits are: about this machine, not about the target."""
    env: tuple[tuple[str, str], ...]
    """Environment of the build: the cache's and the toolkits' settings."""
    options: BuildOptions
    runtime_folders: tuple[Path, ...] = ()
    """Where the toolkits' shared libraries lie, for the bundle."""
    checksums: tuple[tuple[str, str], ...] = ()
    """Files that a toolkit was assembled from, and their SHA-256."""

    def __iter__(self) -> Iterator[Tool]:
        """Go over the tools."""
        return iter(self.tools)

    def tool(self, name: str) -> Tool | None:
        """The tool of that name, where the target has one."""
        return next((tool for tool in self.tools if tool.name == name), None)


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
    asked: tuple[str, ...] = ()
    """Names of the entries that the recipe itself gives: each must be one that the tree knows."""


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
    checksums: tuple[tuple[str, str], ...] = ()
    """Files that a toolkit was assembled from, and their SHA-256."""
    runtime_folders: tuple[Path, ...] = ()
    """Where the toolkits' shared libraries lie, for the bundle."""
