"""What an unpacked bundle holds and what needs what: the facts that SBOM, report page and container are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llamabuild.core.files import sha256_file
from llamabuild.elf.closure import Search, elf_roots, resolve_closure
from llamabuild.elf.read import version_key
from llamabuild.verify.subject import is_plugin_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from llamabuild.elf.read import ElfFile


@dataclass(frozen=True)
class Held:
    """A regular file of a bundle."""

    path: str
    """Relative to the bundle's root, with ``/``."""
    size: int
    sha256: str
    origin: str
    """Who it belongs to: a component's name, ``system`` for what the build host's distribution gave, else llama.cpp."""


@dataclass(frozen=True)
class Needed:
    """One NEEDED entry."""

    source: str
    """A file of the bundle."""
    name: str
    origin: Literal["bundled", "system", "driver", "missing", "outside"]
    target: str
    """The file of the bundle that it leads to; empty where it is not bundled."""


@dataclass(frozen=True)
class BundleView:
    """An unpacked bundle."""

    root: Path
    files: tuple[Held, ...]
    links: Mapping[str, str]
    needed: tuple[Needed, ...]
    programs: tuple[str, ...]
    plugins: tuple[str, ...]
    floors: Mapping[str, str]
    """The highest version of each family (``GLIBC``, …) that any file needs."""


OWN = "llama.cpp"
"""The origin of what the build itself made."""


def view_bundle(root: Path, owners: Mapping[str, str]) -> BundleView:
    """Look at an unpacked bundle: every file is hashed, every ELF file's headers read.

    ``owners``: path → component, for what is somebody else's.
    Raises ElfError for an ELF file that cannot be read.
    """
    files, links = [], {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            links[name] = str(path.readlink())
        elif path.is_file():
            files.append(Held(name, path.stat().st_size, sha256_file(path), owners.get(name, OWN)))
    closure = resolve_closure(elf_roots(root), search=Search(inside=root))
    inside = root.resolve()

    def named(path: Path) -> str:
        # A library is met by the names of its links too; here it is one file.
        return path.resolve().relative_to(inside).as_posix()

    needed = {
        Needed(
            source=named(edge.source),
            name=edge.needed,
            origin=edge.origin,
            target=named(edge.target) if edge.target is not None and edge.origin == "bundled" else "",
        )
        for edge in closure.edges
        if edge.source.is_relative_to(root)
    }
    elves = {named(path): elf for path, elf in closure.files.items() if path.is_relative_to(root)}
    plugins = tuple(sorted(path for path in elves if is_plugin_name(path.rpartition("/")[2])))
    return BundleView(
        root=root,
        files=tuple(files),
        links=links,
        needed=tuple(sorted(needed, key=lambda edge: (edge.source, edge.name, edge.origin))),
        programs=tuple(sorted(path for path, elf in elves.items() if elf.kind == "executable")),
        plugins=plugins,
        floors=_floors(elves.values()),
    )


def _floors(elves: Iterable[ElfFile]) -> dict[str, str]:
    highest: dict[str, str] = {}
    for elf in elves:
        for family, number in elf.version_floor().items():
            if family not in highest or version_key(number) > version_key(highest[family]):
                highest[family] = number
    return highest
