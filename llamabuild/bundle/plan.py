"""Decide what a bundle holds and where, before anything is copied."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.bundle.licenses import PackageFiles
from llamabuild.bundle.links import link_chain, sibling_links
from llamabuild.bundle.model import BundlePlan, Entry
from llamabuild.bundle.rpaths import set_rpaths
from llamabuild.bundle.rules import component_of, load_components
from llamabuild.bundle.search import closure_with_opened, search_of
from llamabuild.bundle.stage import told_as_bundling
from llamabuild.bundle.thin import SECTION
from llamabuild.bundle.trees import Vendor, detect_vendor
from llamabuild.bundle.vendor import add_component, add_data_folders, add_kpacks, assign_parts
from llamabuild.core.errors import BundleError
from llamabuild.core.files import sha256_file
from llamabuild.elf.closure import Closure, Edge, resolve_closure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.build.model import BuildTree
    from llamabuild.bundle.options import Runtime
    from llamabuild.core.context import Context

LLAMA = "llama.cpp"


@dataclass
class Draft:
    """Entries gathered so far; the one place where two files can meet at the same destination."""

    entries: dict[str, Entry] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    places: dict[Path, str] = field(default_factory=dict)
    """The destination of every file by its real path, those included whose copy was there first."""

    def add(self, entry: Entry) -> None:
        """Add an entry; the same file or link twice is one.

        Raises BundleError for two sources with one destination and other bytes, both named.
        """
        known = self.entries.setdefault(entry.destination, entry)
        if known.link != entry.link or (known.source != entry.source and not _same_bytes(known.source, entry.source)):
            raise BundleError(
                f"Two different files want to be {entry.destination}: {known.source or known.link} and "
                f"{entry.source or entry.link}.",
                hint="Keep one of them: two versions of a library are installed, or two trees are mixed.",
            )
        if entry.source:
            self.places[entry.source.resolve()] = entry.destination

    def plan(self, name: str, *, rpath: str) -> BundlePlan:
        """The finished plan, sorted."""
        ordered = tuple(self.entries[destination] for destination in sorted(self.entries))
        return BundlePlan(
            name=name,
            entries=ordered,
            rpath="runpath" if rpath == "runpath" else "rpath",
            notes=tuple(dict.fromkeys(self.notes)),
        )


def plan_bundle(
    build: BuildTree,
    *,
    name: str,
    context: Context,
    root: Path = Path("/"),
    vendor: Vendor | None = None,
    runtime: Runtime = "bundled",
) -> BundlePlan:
    """Plan the bundle of a build: programs and plugins in ``bin``, what they need in ``lib``, device files, licences.

    ``root`` is the system that the build was made on, where libraries like libgomp are taken from. ``vendor`` is the
    ROCm or CUDA tree; by default the one that the build itself was linked with. ``runtime``: ``system`` leaves the
    vendor's libraries to the host; ``split`` plans as ``bundled`` does, and archives are then made part by part.

    Raises BundleError when a library is nowhere to be found, naming every one with who needs it, and when the vendor's
    tree has nothing for the arch.
    """
    draft = Draft()
    for built in build.files:
        folder = "bin" if built.kind == "executable" or built.plugin else "lib"
        draft.add(Entry(f"{folder}/{built.path.name}", built.path, None, LLAMA, edit=True, strip=True))
        if folder == "lib" or built.kind == "executable":
            for link, target in sibling_links(built.path):
                draft.add(Entry(f"{folder}/{link}", None, target, LLAMA, edit=False))
    add_upstream_licenses(draft, build.source)
    if vendor is None and runtime != "system":
        vendor = own_vendor(build, root=root)
    search = search_of(build, root=root, vendor=vendor, runtime=runtime)
    paths = [built.path for built in build.files]
    if vendor is None or runtime == "system":
        closure = resolve_closure(paths, search=search)
        add_closure(draft, closure, packages=[PackageFiles.read(root)])
    else:
        closure = closure_with_opened(paths + list(vendor.always()), search, vendor)
        # A tree inside of a system that is not this one has its packages' licences itself.
        base = vendor.root.parent if vendor.root.name == "usr" else vendor.root
        add_closure(draft, closure, packages=[PackageFiles.read(base), PackageFiles.read(root)])
        _add_vendor(draft, closure, vendor)
        _note_other_trees(draft, closure, vendor)
    _thin_own(draft, closure, vendor)
    context.console.detail(f"{len(closure.files)} ELF files reached, {len(draft.entries)} entries planned")
    set_rpaths(draft, closure, own=LLAMA)
    return draft.plan(name, rpath=build.target.rpath)


def check_kernels(vendor: Vendor) -> None:
    """Tell before the build what planning its bundle would fail for: a tree without kernels for a wanted arch.

    Looks at the components without whose kernels nothing runs (rocBLAS). Raises BundleError, the archs that there are
    named in it.
    """
    for component in vendor.components:
        library = vendor.library_of(component)
        if library is not None and any(folder.index_required for folder in component.folders):
            with told_as_bundling(vendor.root):
                add_data_folders(Draft(), library, vendor, component=component)


def own_vendor(build: BuildTree, *, root: Path = Path("/")) -> Vendor | None:
    """The vendor's tree that a build was linked with; None where it needs no vendor's library, or none is found."""
    search = search_of(build, root=root, vendor=None, runtime="bundled")
    return detect_vendor(resolve_closure([built.path for built in build.files], search=search), build)


def _add_vendor(draft: Draft, closure: Closure, vendor: Vendor) -> None:
    placed: dict[str, Path] = {}
    roots = [path for path in closure.roots if f"lib/{path.resolve().name}" not in draft.entries]
    for path in roots:
        if component_of(path.name, vendor.components):
            elf = closure.files[path]
            add_library(draft, path, needed=elf.soname or path.name, packages=[])
    for path in closure.files:
        destination = f"lib/{path.resolve().name}"
        entry = draft.entries.get(destination)
        if entry is None or entry.origin == LLAMA or destination in placed:
            continue
        placed[destination] = path
        if component := component_of(path.name, vendor.components):
            add_component(draft, path, vendor, component=component)
    add_kpacks(draft, placed, vendor)
    users: dict[str, set[str]] = {}
    for edge in closure.edges:
        if edge.target is not None and (target := draft.places.get(edge.target.resolve())):
            users.setdefault(target, set()).add(draft.places.get(edge.source.resolve(), ""))
    assign_parts(draft, users)


def _note_other_trees(draft: Draft, closure: Closure, vendor: Vendor) -> None:
    """Say which of the vendor's libraries come from elsewhere, because the tree has none of the name that is needed."""
    folders = {folder.resolve() for folder in vendor.folders}
    for edge in closure.by_origin("outside"):
        found = edge.target
        if found is None or not component_of(edge.needed, vendor.components) or found.parent.resolve() in folders:
            continue
        draft.notes.append(f"{vendor.root} has no {edge.needed}, so {found} is taken")


def _thin_own(draft: Draft, closure: Closure, vendor: Vendor | None) -> None:
    """llama.cpp's HIP code is thinned as the vendor's libraries are, as it may be for ten archs.

    It is in the plugin, or in every program where all is linked into them.
    """
    if vendor is None or not vendor.thin or not vendor.arch:
        return
    with_code = {path.resolve() for path, elf in closure.files.items() if elf.section(SECTION)}
    for destination, entry in draft.entries.items():
        if entry.origin == LLAMA and entry.source and entry.source.resolve() in with_code:
            draft.entries[destination] = replace(entry, thin=vendor.archs)


def add_closure(draft: Draft, closure: Closure, *, packages: Sequence[PackageFiles]) -> None:
    """Put every library that is found outside into ``lib`` with its link chain and its licence.

    Raises BundleError for libraries that are missing.
    """
    if missing := closure.by_origin("missing"):
        lines = tuple(sorted({_told_missing(edge) for edge in missing}))
        count = len({edge.needed for edge in missing})
        raise BundleError(
            f"{count} libraries were not found: {lines[0]}, and others."
            if count > 1
            else f"A library was not found: {lines[0]}.",
            hint="Install what holds them, or name the tree that has them (--rocm).",
            details=lines,
        )
    planned = set(draft.places)
    for edge in closure.edges:
        if edge.target is None or edge.target.resolve() in planned:
            continue
        add_library(draft, edge.target, needed=edge.needed, packages=packages)


def _told_missing(edge: Edge) -> str:
    note = f" ({edge.note.removesuffix('.')})" if edge.note else ""
    return f"{edge.needed}, needed by {edge.source.name}{note}"


def add_library(draft: Draft, path: Path, *, needed: str, packages: Sequence[PackageFiles]) -> None:
    """Put one system library into ``lib``: the real file, the links that lead to it, its licence."""
    hops = link_chain(path)
    real = hops[-1]
    names = list(dict.fromkeys([needed, *(hop.name for hop in hops)]))
    # Distributions lead through folders of alternatives, often back to the first name: there the chain is complete.
    names = names[: names.index(real.name) + 1]
    owner, licenses = _licenses(real, packages, names=names)
    draft.add(Entry(f"lib/{real.name}", real, None, owner or "system", edit=True))
    for name, following in itertools.pairwise(names):
        draft.add(Entry(f"lib/{name}", None, following, owner or "system", edit=False))
    for destination, file in licenses.items():
        draft.add(Entry(destination, file, None, owner or "system", edit=False))
    # A vendor's component brings its licences itself.
    if packages and not licenses and component_of(real.name, load_components()) is None:
        draft.notes.append(f"no licence file was found for {real.name}")


def _licenses(
    library: Path, packages: Sequence[PackageFiles], *, names: Sequence[str]
) -> tuple[str | None, dict[str, Path]]:
    """The package that a library comes from, and its licence files by destination."""
    for system in packages:
        owner = system.owner(library, names=names)
        files = system.licenses(owner) if owner else ()
        if files:
            own = {f"licenses/{owner}/{file.name}": file.resolve() for file in files}
            return owner, own | {f"licenses/common/{file.name}": file.resolve() for file in system.common(files)}
    return None, {}


def add_upstream_licenses(draft: Draft, source: Path) -> None:
    """The tree's own licence and those of what it holds of others."""
    for path in sorted([*source.glob("LICENSE*"), *source.glob("licenses/*")]):
        if path.is_file():
            draft.add(Entry(f"licenses/{LLAMA}/{path.name}", path, None, LLAMA, edit=False))
    if f"licenses/{LLAMA}/LICENSE" not in draft.entries:
        draft.notes.append("the source tree has no LICENSE file")


def _same_bytes(one: Path | None, other: Path | None) -> bool:
    if one is None or other is None:
        return False
    if one.samefile(other):
        return True
    return one.stat().st_size == other.stat().st_size and sha256_file(one) == sha256_file(other)
