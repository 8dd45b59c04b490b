"""Decide what a bundle holds and where, before anything is copied."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from llamabuild.bundle.licenses import PackageFiles
from llamabuild.bundle.model import BundlePlan, Entry
from llamabuild.core.errors import BundleError
from llamabuild.core.files import sha256_file
from llamabuild.elf.closure import Closure, Search, resolve_closure, system_folders
from llamabuild.elf.policy import LibraryPolicy
from llamabuild.elf.read import read_elf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llamabuild.build.model import BuildTree
    from llamabuild.core.context import Context
    from llamabuild.elf.read import ElfFile

LLAMA = "llama.cpp"


@dataclass
class Draft:
    """Entries gathered so far; the one place where two files can meet at the same destination."""

    entries: dict[str, Entry] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Add an entry; the same file or link twice is one.

        Raises BundleError for two sources with one destination and other bytes, both named.
        """
        known = self.entries.get(entry.destination)
        if known is None:
            self.entries[entry.destination] = entry
            return
        if known.link != entry.link or (known.source and entry.source and not _same_bytes(known.source, entry.source)):
            raise BundleError(
                f"Two different files want to be {entry.destination}: {known.source or known.link} and "
                f"{entry.source or entry.link}.",
                hint="Keep one of them: two versions of a library are installed, or two trees are mixed.",
            )

    def plan(self, name: str, *, rpath: str) -> BundlePlan:
        """The finished plan, sorted."""
        ordered = tuple(self.entries[destination] for destination in sorted(self.entries))
        return BundlePlan(
            name=name,
            entries=ordered,
            rpath="runpath" if rpath == "runpath" else "rpath",
            notes=tuple(dict.fromkeys(self.notes)),
        )


def plan_bundle(build: BuildTree, *, name: str, context: Context, root: Path = Path("/")) -> BundlePlan:
    """Plan the bundle of a build: programs and plugins in ``bin``, what they need in ``lib``, licences.

    ``root`` is the system that the build was made on, where libraries like libgomp are taken from.

    Raises BundleError when a library is nowhere to be found, naming every one with who needs it.
    """
    draft = Draft()
    for built in build.files:
        folder = "bin" if built.kind == "executable" or built.plugin else "lib"
        draft.add(Entry(f"{folder}/{built.path.name}", built.path, None, LLAMA, edit=True, strip=True))
        if folder == "lib":
            for link, target in sibling_links(built.path):
                draft.add(Entry(f"lib/{link}", None, target, LLAMA, edit=False))
    closure = resolve_closure(
        [built.path for built in build.files],
        search=Search(
            inside=build.folder,
            system_folders=system_folders(root),
            policy=LibraryPolicy(vulkan="vulkan" in build.target.backends),
            follow_outside=True,
        ),
    )
    add_closure(draft, closure, packages=PackageFiles.read(root))
    add_upstream_licenses(draft, build.source)
    context.console.detail(f"{len(closure.files)} ELF files reached, {len(draft.entries)} entries planned")
    return set_rpaths(draft, closure).plan(name, rpath=build.target.rpath)


def add_closure(draft: Draft, closure: Closure, *, packages: PackageFiles) -> None:
    """Put every library that is found outside into ``lib`` with its link chain and its licence.

    Raises BundleError for libraries that are missing.
    """
    if missing := closure.by_origin("missing"):
        lines = tuple(sorted({f"{edge.needed}, needed by {edge.source.name} {edge.note}".strip() for edge in missing}))
        raise BundleError(
            f"{len({edge.needed for edge in missing})} libraries were not found: {lines[0]}"
            + (" and others." if len(lines) > 1 else "."),
            hint="Install what holds them, or name the tree that has them (--rocm).",
            details=lines,
        )
    planned = {entry.source.resolve() for entry in draft.entries.values() if entry.source}
    for edge in closure.edges:
        if edge.target is None or edge.target.resolve() in planned:
            continue
        add_library(draft, edge.target, needed=edge.needed, packages=packages)


def add_library(draft: Draft, path: Path, *, needed: str, packages: PackageFiles) -> None:
    """Put one system library into ``lib``: the real file, the links that lead to it, its licence."""
    hops = link_chain(path)
    real = hops[-1]
    owner = packages.owner(real)
    names = list(dict.fromkeys([needed, *(hop.name for hop in hops)]))
    draft.add(Entry(f"lib/{real.name}", real, None, owner or "system", edit=True))
    for name, following in itertools.pairwise(names):
        if name != real.name:
            draft.add(Entry(f"lib/{name}", None, following, owner or "system", edit=False))
    licenses = packages.licenses(owner) if owner else ()
    for file in licenses:
        draft.add(Entry(f"licenses/{owner}/{file.name}", file.resolve(), None, owner or "system", edit=False))
    for file in packages.common(licenses):
        draft.add(Entry(f"licenses/common/{file.name}", file.resolve(), None, "common licences", edit=False))
    if not licenses:
        draft.notes.append(f"no licence file was found for {real.name}")


def add_upstream_licenses(draft: Draft, source: Path) -> None:
    """The tree's own licence and those of what it holds of others."""
    for path in sorted([*source.glob("LICENSE*"), *source.glob("licenses/*")]):
        if path.is_file():
            draft.add(Entry(f"licenses/{LLAMA}/{path.name}", path, None, LLAMA, edit=False))
    if f"licenses/{LLAMA}/LICENSE" not in draft.entries:
        draft.notes.append("the source tree has no LICENSE file")


def link_chain(path: Path) -> tuple[Path, ...]:
    """A library's path, each link it goes through, and the real file at the end.

    Raises BundleError for a link that leads nowhere or in a circle.
    """
    hops = [path]
    while hops[-1].is_symlink():
        following = Path(os.path.normpath(hops[-1].parent / hops[-1].readlink()))
        if following in hops or not (following.is_symlink() or following.exists()):
            raise BundleError(f"{path} is a link that leads nowhere.", hint="Install the library again.")
        hops.append(following)
    return tuple(hops)


def sibling_links(path: Path) -> tuple[tuple[str, str], ...]:
    """The links beside a file that end at it, each with the name it points at: ``libx.so`` → ``libx.so.1`` → file."""
    found = []
    for other in sorted(path.parent.iterdir()):
        if other.is_symlink() and other.resolve() == path.resolve():
            target = other.readlink()
            found.append((other.name, target.name if target.name != other.name else path.name))
    return tuple(found)


def set_rpaths(draft: Draft, closure: Closure) -> Draft:
    """Give every ELF that needs something of the bundle the entries that lead there from its own place.

    A library that needs nothing from it and looks nowhere is not touched at all.
    """
    homes: dict[Path, str] = {}
    facts: dict[Path, ElfFile] = {path.resolve(): elf for path, elf in closure.files.items()}
    for entry in draft.entries.values():
        if entry.source is not None:
            homes[entry.source.resolve()] = str(PurePosixPath(entry.destination).parent)
    asked: dict[Path, set[str]] = {}
    for edge in closure.edges:
        home = homes.get(edge.target.resolve()) if edge.target else None
        if home is not None:
            asked.setdefault(edge.source.resolve(), set()).add(home)
    for destination, entry in draft.entries.items():
        if not entry.edit or entry.source is None:
            continue
        real = entry.source.resolve()
        elf = facts.get(real) or read_elf(entry.source)
        wanted = asked.get(real, set()) | ({"lib"} if entry.origin == LLAMA else set())
        rpath = rpath_from(str(PurePosixPath(destination).parent), wanted)
        touched = entry.origin == LLAMA or rpath is not None or elf.rpath is not None or elf.runpath is not None
        draft.entries[destination] = replace(entry, rpath=rpath, edit=touched and elf.dynamic)
    return draft


def rpath_from(home: str, folders: Iterable[str]) -> str | None:
    """The rpath that leads from one folder of a bundle to others, the own one first; None where there are none."""
    entries = []
    for folder in sorted(folders, key=lambda name: (name != home, name)):
        relative = os.path.relpath(folder, home)
        entries.append("$ORIGIN" if relative == "." else f"$ORIGIN/{relative}")
    return ":".join(entries) or None


def _same_bytes(one: Path, other: Path) -> bool:
    if one.samefile(other):
        return True
    return one.stat().st_size == other.stat().st_size and sha256_file(one) == sha256_file(other)
