"""What is verified: every file and link of a folder, each file read once, and what is expected of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llamabuild.bundle.rules import Component
    from llamabuild.elf.closure import Closure
    from llamabuild.elf.device_code import DeviceCode
    from llamabuild.elf.policy import LibraryPolicy
    from llamabuild.elf.read import ElfFile
    from llamabuild.verify.scan import Tree

_LLAMA_NAMES = ("libggml", "libllama", "libmtmd", "llama-", "rpc-server", "BUILD_INFO", "SHA256SUMS")
_GPU_MACHINES = frozenset({"EM_AMDGPU", "EM_CUDA", "224", "190"})


@dataclass(frozen=True)
class Hit:
    """A place where a content pattern matched."""

    pattern: str
    """``build-path`` or ``secret``."""
    text: str
    offset: int


@dataclass(frozen=True)
class File:
    """A regular file after its one reading."""

    path: str
    """Relative to the root, with ``/``."""
    real: Path
    size: int
    mode: int
    sha256: str
    head: bytes
    """The first bytes, enough for a magic number."""
    elf: ElfFile | None = None
    elf_error: str = ""
    """Why an ELF file could not be read; empty for one that could, and for all that is no ELF file."""
    device: DeviceCode | None = None
    hits: tuple[Hit, ...] = ()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def of_llama(self) -> bool:
        """Whether it was built from llama.cpp's tree, by its name; what vendors built is held to fewer rules."""
        return self.name.startswith(_LLAMA_NAMES)

    @property
    def folder(self) -> str:
        """The path without its last part; empty at the root."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True)
class Symbols:
    """Names in a file's dynamic symbol table."""

    exported: frozenset[str]
    """Defined and visible to others."""
    wanted: frozenset[str]
    """Undefined, not weak, and without a version: to come from a library that has no versions either."""


@dataclass(frozen=True)
class Expected:
    """What a recipe, or the bundle's own BUILD_INFO, promises. None and empty: nothing was promised."""

    source: str = ""
    """Who promises: ``recipe NAME`` or ``BUILD_INFO.json``; empty for nobody."""
    backends: tuple[str, ...] | None = None
    arch: str = ""
    programs: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    """Of the recipe itself."""
    more_features: tuple[str, ...] = ()
    """Of its series, and those asked for on top."""
    flags: tuple[str, ...] = ()
    """Texts in ``llama-server --help`` that prove its series."""
    build_number: int | None = None
    commit: str = ""
    """Full id of the pinned upstream commit."""
    tree: str = ""
    """Full id of the pinned upstream tree."""
    glibc_floor: str | None = None
    rpath: str = ""
    """``rpath`` or ``runpath``."""
    rccl: bool | None = None
    nccl: bool | None = None
    cpu_variants: bool = False
    cmake: tuple[tuple[str, str], ...] = ()
    """CMake entries that the recipe itself gives."""


@dataclass(frozen=True)
class Subject:
    """A folder under verification."""

    root: Path
    """Without links on the way to it."""
    name: str
    """Of the top folder, where it means something; empty for an archive without one."""
    files: Mapping[str, File]
    links: Mapping[str, str]
    """Path → target as written."""
    folders: Mapping[str, int]
    """Path → mode; the root is the empty path."""
    special: tuple[str, ...]
    """Neither file, folder nor link."""
    unreadable: Mapping[str, str]
    """Path → why."""
    build_info: Mapping[str, Any] | None
    build_info_error: str
    expected: Expected = field(default_factory=Expected)
    in_place: bool = False
    """Whether it lies where its user put it, so that the folders above it count; false for an archive's content."""
    _symbols: dict[str, Symbols] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, tree: Tree, *, root: Path, name: str, info: Mapping[str, Any] | None, info_error: str) -> Subject:
        """What was read below ``root``; nothing is expected of it yet."""
        return cls(
            root=root,
            name=name,
            files=tree.files,
            links=tree.links,
            folders=tree.folders,
            special=tree.special,
            unreadable=tree.unreadable,
            build_info=info,
            build_info_error=info_error,
        )

    @property
    def own(self) -> bool:
        """Whether it claims to be a bundle of this project's layout; anybody else's is held to fewer rules."""
        return "BUILD_INFO.json" in self.files or self.expected.source.startswith("recipe ")

    @property
    def foreign(self) -> bool:
        """Whether it says that somebody else built what it bundles."""
        return str((self.build_info or {}).get("source", "")).startswith("unknown")

    @cached_property
    def absent_parts(self) -> Mapping[str, tuple[str, ...]]:
        """Parts of a split bundle that are not unpacked here, with the paths they would bring."""
        from llamabuild.verify.build_info import absent_parts

        return absent_parts(self.build_info or {}, {*self.files, *self.links})

    def left_to_host(self, name: str) -> bool:
        """Whether a library of this name is the vendor's that this bundle was made to take from the host."""
        from llamabuild.bundle.rules import component_of
        from llamabuild.verify.build_info import runtime_left_to_host

        return runtime_left_to_host(self.build_info or {}) and component_of(name, self._components) is not None

    @cached_property
    def _components(self) -> tuple[Component, ...]:
        from llamabuild.bundle.rules import load_components

        return load_components()

    @cached_property
    def elves(self) -> tuple[File, ...]:
        """Programs and libraries for a CPU, in order of path; objects, archives and GPU code objects are left out."""
        return tuple(
            file
            for _, file in sorted(self.files.items())
            if file.elf and file.elf.kind != "other" and file.elf.machine not in _GPU_MACHINES
        )

    @cached_property
    def programs(self) -> tuple[File, ...]:
        """ELF files that a user can start."""
        return tuple(file for file in self.elves if file.elf and file.elf.kind == "executable")

    @cached_property
    def plugins(self) -> tuple[File, ...]:
        """Backends that ggml opens by name: ``libggml-<name>.so``, wherever they lie."""
        return tuple(file for file in self.elves if is_plugin_name(file.name))

    @cached_property
    def policy(self) -> LibraryPolicy:
        """What is left to the host; with the Vulkan backend that is more."""
        from llamabuild.elf.policy import LibraryPolicy

        return LibraryPolicy(vulkan=any(backend_of(plugin.name) == "vulkan" for plugin in self.plugins))

    @cached_property
    def closure(self) -> Closure:
        """The dependencies of every one of ``elves`` as a process of its own. Raises ElfError, OSError."""
        from llamabuild.elf.closure import Search, resolve_closure
        from llamabuild.elf.read import read_elf

        def known(path: Path) -> ElfFile:
            file = self.by_real_path.get(path.resolve())
            return replace(file.elf, path=path) if file is not None and file.elf is not None else read_elf(path)

        search = Search(inside=self.root, policy=self.policy)
        return resolve_closure([file.real for file in self.elves], search=search, read=known)

    @cached_property
    def by_real_path(self) -> Mapping[Path, File]:
        """Files by their path on disk."""
        return {file.real.resolve(): file for file in self.files.values()}

    def relative(self, path: Path) -> str:
        """A path on disk as the report names it."""
        return os.path.relpath(path, self.root) if path.is_relative_to(self.root) else str(path)

    def symbols(self, file: File) -> Symbols:
        """The names in the dynamic symbol table of one of ``elves``; read once."""
        if file.path not in self._symbols:
            self._symbols[file.path] = _read_names(file.real)
        return self._symbols[file.path]


def _read_names(path: Path) -> Symbols:
    from llamabuild.elf.read import read_symbols

    exported, wanted = set(), set()
    for symbol in read_symbols(path):
        if symbol.defined:
            if symbol.binding != "local":
                exported.add(symbol.name)
        elif symbol.binding == "global" and symbol.version & 0x7FFF <= 1:
            wanted.add(symbol.name)
    return Symbols(frozenset(exported), frozenset(wanted))


def is_plugin_name(name: str) -> bool:
    """Whether a file name is one that ggml looks for (``ggml-backend-reg.cpp``), or would be without its hash."""
    return (
        name.startswith("libggml-")
        and name.endswith(".so")
        and not name.startswith(("libggml-base.", "libggml-base-", "libggml."))
    )


def backend_of(name: str) -> str:
    """The backend in a plugin's name: ``cuda`` for ``libggml-cuda.so``, ``cpu`` for ``libggml-cpu-zen4.so``."""
    return name.removeprefix("libggml-").partition(".")[0].partition("-")[0]
