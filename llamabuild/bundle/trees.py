"""Vendor trees: a ROCm or CUDA runtime on disk, found from a path or from what a build was linked with."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from llamabuild.build.rocm import RocmTree, find_rocm
from llamabuild.bundle.archs import available_archs, base_arch
from llamabuild.bundle.links import link_chain
from llamabuild.bundle.rules import Component, component_of, load_components
from llamabuild.bundle.tensile import literals
from llamabuild.core.errors import BundleError, ToolError
from llamabuild.elf.read import read_elf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.build.model import BuildTree, Target
    from llamabuild.elf.closure import Closure

_SONAME = re.compile(rb"(?<![\w./-])lib[\w+-]+\.so(?:\.[0-9]+)*(?![\w.-])")


@dataclass(frozen=True)
class Vendor:
    """A vendor's runtime, and what is wanted of it."""

    root: Path
    """The tree's root, where licences are looked for."""
    folders: tuple[Path, ...]
    """Its library folders, in search order."""
    components: tuple[Component, ...]
    arch: str
    keep: tuple[str, ...] = ()
    """Archs kept besides ``arch``."""
    thin: bool = True

    @property
    def archs(self) -> tuple[str, ...]:
        """All archs that are wanted."""
        return tuple(dict.fromkeys([self.arch, *self.keep]))

    def find(self, name: str) -> Path | None:
        """The first library of this name in the tree."""
        return next((folder / name for folder in self.folders if (folder / name).exists()), None)

    def library_of(self, component: Component) -> Path | None:
        """The first library of a component in the tree."""
        candidates = (
            path
            for folder in self.folders
            for pattern in component.libraries
            for path in sorted(folder.glob(pattern), key=lambda path: len(path.name))
        )
        return next(candidates, None)

    def always(self) -> tuple[Path, ...]:
        """Libraries of the components that come along where the tree has them, by their sonames' links.

        Raises BundleError for a link that leads nowhere, ElfError for a damaged file.
        """
        wanted = [pattern for component in self.components if component.always for pattern in component.libraries]
        found: dict[str, Path] = {}
        for pattern in wanted:
            listed = (sorted(folder.glob(f"{pattern}.[0-9]*")) for folder in self.folders)
            # Wheels for several families of archs have it once each: the first folder's is meant.
            for path in sorted(next(filter(None, listed), []), key=lambda path: len(path.name)):
                # Where links were unpacked as copies, each copy has the one soname.
                found.setdefault(read_elf(link_chain(path)[-1]).soname or path.name, path)
        return tuple(found.values())

    def opened_names(self, library: Path) -> tuple[str, ...]:
        """What a component's library opens by name: the names are read from it, the rules say which of them count.

        A required one is returned even where the tree does not have it, so that it turns up as missing.
        """
        component = component_of(library.name, self.components)
        if component is None or not component.opens:
            return ()
        written = {found.decode() for block in literals(library) for found in _SONAME.findall(block)}
        names = []
        for opened in component.opens:
            matching = sorted(name for name in written if PurePosixPath(name).match(opened.pattern))
            here = [name for name in matching if name != library.name and self.find(name)]
            names += here or (matching[:1] if opened.required else [])
        return tuple(dict.fromkeys(names))


def wanted_components(components: Sequence[Component], backends: Sequence[str]) -> tuple[Component, ...]:
    """The components of the backends that are built."""
    return tuple(component for component in components if component.backend in backends)


def detect_vendor(closure: Closure, build: BuildTree) -> Vendor | None:
    """The tree that a build's own libraries lead to, which may be the build folder itself: releases are often flat.

    None where no vendor library is needed or found.
    """
    components = wanted_components(load_components(), build.target.backends)
    folders = [
        edge.target.parent
        for edge in closure.edges
        if edge.target is not None and component_of(edge.needed, components)
    ]
    if not folders:
        return None
    if "hip" in build.target.backends:
        return rocm_vendor(_rocm_tree(folders[0]).root, arch=build.target.arch)
    found = cuda_vendor(folders[0])
    # NVIDIA's wheels for CUDA 12 are a folder each.
    return replace(found, folders=tuple(dict.fromkeys([*found.folders, *folders])))


def cuda_vendor(path: Path) -> Vendor:
    """The CUDA libraries at ``path``: a toolkit, its library folder, or a site-packages with NVIDIA's wheels.

    Raises BundleError when there are none.
    """
    places = ("lib64", "lib", "targets/*/lib", "nvidia/*/lib")
    folders = [
        folder
        for folder in (path, *(folder for place in places for folder in sorted(path.glob(place))))
        if any(folder.glob("libcudart.so*")) or any(folder.glob("libcublas*.so*"))
    ]
    if not folders:
        raise BundleError(
            f"{path} holds no CUDA runtime: no libcudart.so in it or in {', '.join(places)}.",
            hint="Name a CUDA toolkit such as /usr/local/cuda, or the folder that NVIDIA's wheels were installed in.",
        )
    unique = {folder.resolve(): folder for folder in reversed(folders)}
    return Vendor(
        root=path.parent if path.name in {"lib", "lib64"} else path,
        folders=tuple(sorted(unique.values(), key=folders.index)),
        components=wanted_components(load_components(), ("cuda",)),
        arch="",
        thin=False,
    )


def target_vendor(
    target: Target, *, rocm: Path | None, folders: Sequence[Path], keep: tuple[str, ...] = (), thin: bool = True
) -> Vendor | None:
    """The ROCm tree that a target is built with; None where the build's own libraries are to be followed.

    ``rocm`` is the tree that was named; ``folders`` are where preflight found the toolkits' libraries. Raises
    BundleError for a path that holds no ROCm.
    """
    tree = rocm or next(iter(folders), None)
    if "hip" not in target.backends or tree is None:
        return None
    return rocm_vendor(tree, arch=target.arch, keep=keep, thin=thin)


def rocm_vendor(path: Path, *, arch: str, keep: tuple[str, ...] = (), thin: bool = True) -> Vendor:
    """The ROCm tree at or around ``path``, in any of its layouts.

    Where wheels for several families of archs are installed, the one that ``path`` names is taken, else the one with
    rocBLAS's kernels for ``arch``. Raises BundleError when there is none.
    """
    tree = _rocm_tree(path)
    folders = tree.library_folders
    if not any(folder.name.startswith("_rocm_sdk_libraries") for folder in (path, path.parent)):
        folders = tuple(sorted(folders, key=lambda folder: _is_of_others(folder, arch)))
    return Vendor(
        root=tree.root,
        folders=folders,
        components=wanted_components(load_components(), ("hip",)),
        arch=arch,
        keep=keep,
        thin=thin,
    )


def rocblas_archs(folder: Path) -> tuple[str, ...]:
    """The archs that rocBLAS's files in a library folder have an index for."""
    libraries = (*folder.glob("rocblas/library"), *folder.glob("rocblas/*/library"))
    return tuple(dict.fromkeys(arch for library in libraries for arch in available_archs(library)))


def _is_of_others(folder: Path, arch: str) -> bool:
    archs = rocblas_archs(folder)
    return bool(archs) and base_arch(arch) not in archs


def _rocm_tree(path: Path) -> RocmTree:
    try:
        return find_rocm(path)
    except ToolError as exc:
        raise BundleError(exc.message, hint=exc.hint) from exc
