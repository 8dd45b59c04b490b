"""What a bundle was made from, read from its BUILD_INFO: the one place here that knows the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Patch:
    """One patch and what became of it."""

    id: str
    series: str
    group: str
    subject: str
    switches: tuple[str, ...]
    digest: str
    """SHA-256 of the patch, in hex."""
    state: str
    """``applied``, ``merged``, ``already-upstream``, ``empty``."""
    note: str


@dataclass(frozen=True)
class Component:
    """Something in the bundle that somebody else made."""

    name: str
    version: str
    origin: str
    """Where the build took it from, such as ``Debian libgomp1 12.2.0-14``."""
    license: str
    """An SPDX expression, or the name that its distribution gives it; empty where it is not known."""
    files: tuple[str, ...]
    """Paths in the bundle."""


@dataclass(frozen=True)
class BuildFacts:
    """BUILD_INFO as data."""

    name: str
    """The bundle's and its archives' name."""
    recipe: str
    summary: str
    target: str
    arch: str
    backends: tuple[str, ...]
    repository: str
    ref: str
    commit: str
    tree: str
    date: int
    """Of the source, seconds since the epoch."""
    build_number: int
    provider: str
    patched_commit: str
    patched_tree: str
    features: tuple[str, ...]
    patches: tuple[Patch, ...]
    components: tuple[Component, ...]
    tools: Mapping[str, str]
    toolkit_files: Mapping[str, str]
    """Files that a toolkit was put together from, and their SHA-256."""
    cmake_config: tuple[str, ...]
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    gfx: tuple[str, ...]
    driver_floor: str
    glibc: str
    platform: str
    os: str
    license: str
    validation: Mapping[str, str]
    raw: Mapping[str, Any]

    @property
    def flavour(self) -> str:
        """``<target>[-<arch>]``."""
        return f"{self.target}-{self.arch}" if self.arch else self.target
