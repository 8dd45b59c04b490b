"""How the libraries of a build are looked up while its bundle is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llamabuild.bundle.links import sibling_links
from llamabuild.bundle.rules import component_of, load_components
from llamabuild.bundle.trees import Vendor, wanted_components
from llamabuild.elf.closure import Closure, Search, resolve_closure, system_folders
from llamabuild.elf.policy import LibraryPolicy
from llamabuild.elf.read import read_elf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from llamabuild.build.model import BuildTree
    from llamabuild.bundle.options import Runtime
    from llamabuild.elf.read import ElfFile


def search_of(build: BuildTree, *, root: Path, vendor: Vendor | None, runtime: Runtime) -> Search:
    """The search for ``resolve_closure``; ``root``, ``vendor``, ``runtime`` as ``plan_bundle`` takes them.

    The build's own libraries win over every other file of their name, then those of the vendor's tree: a build keeps
    the RUNPATH to the tree that it was linked with, which the user may have named another one in place of.
    """
    own = dict.fromkeys(built.path.parent for built in build.files)
    components = wanted_components(load_components(), build.target.backends)
    left_out = tuple(pattern for component in components for pattern in component.libraries)
    machine = next((read_elf(built.path).machine for built in build.files), "EM_X86_64")
    return Search(
        inside=build.folder,
        own={**(_vendor_names(vendor) if vendor else {}), **_own_names(build)},
        extra_folders=(*own, *(vendor.folders if vendor else build.runtime_folders)),
        system_folders=system_folders(root, machine=machine),
        platform=machine.removeprefix("EM_").lower(),
        policy=LibraryPolicy(
            vulkan="vulkan" in build.target.backends, left_out=left_out if runtime == "system" else ()
        ),
        follow_outside=True,
    )


def _own_names(build: BuildTree) -> dict[str, Path]:
    """The build's libraries by soname and by name: rpaths may still lead to the folder that a build was moved from."""
    found = {}
    for built in build.files:
        if built.kind != "executable":
            elf = read_elf(built.path)
            found[built.path.name] = built.path
            found[elf.soname or built.path.name] = built.path
    for built in build.files:
        for link, _ in sibling_links(built.path):
            found.setdefault(link, built.path)
    return found


def _vendor_names(vendor: Vendor) -> dict[str, Path]:
    """The libraries of a vendor's components by file name, the first folder's where several have one."""
    found: dict[str, Path] = {}
    for folder in vendor.folders:
        for path in sorted(folder.glob("lib*.so*")):
            if component_of(path.name, vendor.components) and path.exists():
                found.setdefault(path.name, path)
    return found


def closure_with_opened(paths: Sequence[Path], search: Search, vendor: Vendor) -> Closure:
    """The closure, libraries opened by name included: each round may reach libraries that open more."""
    opened: dict[str, tuple[str, ...]] = {}
    cache: dict[Path, ElfFile] = {}

    def read(path: Path) -> ElfFile:
        if path not in cache:
            cache[path] = read_elf(path)
        return cache[path]

    while True:
        closure = resolve_closure(paths, search=replace(search, opened_by_name=opened), read=read)
        found = {
            elf.soname or path.name: names
            for path, elf in closure.files.items()
            if (names := vendor.opened_names(path)) and (elf.soname or path.name) not in opened
        }
        if not found:
            return closure
        opened.update(found)
