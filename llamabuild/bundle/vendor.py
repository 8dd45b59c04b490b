"""Put vendor runtimes into a plan: libraries by closure, device files by the depth their library looks at, trimmed."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from llamabuild.bundle.archs import arch_of, arch_order, base_arch
from llamabuild.bundle.kpack import kpack_paths
from llamabuild.bundle.model import Entry
from llamabuild.bundle.rules import READ_FROM_ROCBLAS, Component, DataFolder
from llamabuild.bundle.tensile import rocblas_depth
from llamabuild.bundle.thin import serves
from llamabuild.bundle.trees import rocblas_archs
from llamabuild.core.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llamabuild.bundle.plan import Draft
    from llamabuild.bundle.trees import Vendor


def add_component(draft: Draft, library: Path, vendor: Vendor, *, component: Component) -> None:
    """Mark a planned library as its component's, and add the component's data folders and licences.

    ``library`` is the path it was found under. Raises BundleError for a required folder that is missing, an arch
    without kernels, and a file that no rule claims.
    """
    real = f"lib/{library.resolve().name}"
    for destination in (real, *_links_to(draft, real)):
        entry = draft.entries[destination]
        thin = vendor.archs if component.thin and vendor.thin and entry.link is None and vendor.arch else ()
        edit = entry.edit and component.edit
        draft.entries[destination] = replace(
            entry, origin=component.name, part=component.part, thin=thin, edit=edit and entry.link is None
        )
    add_data_folders(draft, library, vendor, component=component)
    # Where a release has all in one folder, the LICENSE there is llama.cpp's.
    upstream = {path for path, place in draft.places.items() if place.startswith("licenses/llama.cpp/")}
    licenses = [path for path in component_licenses(component, vendor.root) if path.resolve() not in upstream]
    if not licenses and not any(name.startswith(f"licenses/{component.name}/") for name in draft.entries):
        draft.notes.append(f"no licence file was found for {component.title}")
    names = [path.name for path in licenses]
    for path in licenses:
        # Debian's are all called copyright, NVIDIA's all License.txt: then the package's folder tells them apart.
        name = path.name if names.count(path.name) == 1 else f"{path.parent.name}-{path.name}"
        destination = f"licenses/{component.name}/{name}"
        draft.add(Entry(destination, path.resolve(), None, component.name, part=component.part))


def add_data_folders(draft: Draft, library: Path, vendor: Vendor, *, component: Component) -> None:
    """Add the files that the component's ``library`` reads at run time, trimmed to the wanted archs.

    Raises BundleError as ``add_component`` does.
    """
    for folder in component.folders:
        _add_folder(draft, library, vendor, component=component, folder=folder)


def _links_to(draft: Draft, real: str) -> Iterator[str]:
    """Destinations of the links that lead to a file of ``lib``, by any number of steps."""
    names = {PurePosixPath(real).name}
    grown = True
    while grown:
        more = {
            PurePosixPath(destination).name
            for destination, entry in draft.entries.items()
            if entry.link in names and destination.startswith("lib/")
        }
        grown = not more <= names
        names |= more
    yield from (f"lib/{name}" for name in sorted(names) if f"lib/{name}" in draft.entries and f"lib/{name}" != real)


def component_licenses(component: Component, root: Path) -> tuple[Path, ...]:
    """The component's licence files in its tree."""
    found = [
        path
        for pattern in component.licenses
        for base in (root, root / "usr")
        for path in sorted(base.glob(pattern))
        if path.is_file()
    ]
    return tuple(dict.fromkeys(found))


def _add_folder(draft: Draft, library: Path, vendor: Vendor, *, component: Component, folder: DataFolder) -> None:
    place = rocblas_depth(library) if folder.place == READ_FROM_ROCBLAS else folder.place
    source = _data_folder(library, place, component=component)
    if source is None:
        if folder.required:
            raise BundleError(
                f"{library} is to be bundled, and there is no {place} beside it.",
                hint=f"Install all of {component.title}, device files included, or name a tree that has them.",
            )
        return
    if not source.as_posix().endswith(f"/{place}"):
        draft.notes.append(
            f"{library.name} looks for its files in {place}, which is not there: those of {source} are taken, and may "
            "be another version's"
        )
    served: set[str] = set()
    indexed: set[str] = set()
    for path in sorted(source.rglob("*")):
        if path.is_dir():
            continue
        inside = path.relative_to(source)
        arch = arch_of(path.name) or (arch_of(inside.parts[0]) if len(inside.parts) > 1 else None)
        nested = len(inside.parts) > 2 or (len(inside.parts) == 2 and arch_of(inside.parts[0]) is None)
        if nested or not folder.claims(path.name):
            raise BundleError(
                f"{path} belongs to no rule of {component.title}.",
                hint="This release has files that the program does not know; report its version.",
            )
        if arch:
            served.add(base_arch(arch))
        if arch and not any(serves(arch, wanted) for wanted in vendor.archs):
            continue
        if arch and any(
            PurePosixPath(path.name).match(pattern.format(arch=base_arch(arch))) for pattern in folder.index
        ):
            indexed.add(base_arch(arch))
        if not path.is_file():
            raise BundleError(
                f"{path} of {component.title} is no file, or a link that leads nowhere.",
                hint=f"Install all of {component.title} again, or name a tree that has it.",
            )
        destination = os.path.normpath(f"lib/{place}/{inside.as_posix()}")
        draft.add(Entry(destination, path.resolve(), None, component.name, part=component.part))
    _judge_archs(draft, vendor, component=component, folder=folder, source=source, served=served, indexed=indexed)


def _judge_archs(
    draft: Draft,
    vendor: Vendor,
    *,
    component: Component,
    folder: DataFolder,
    source: Path,
    served: set[str],
    indexed: set[str],
) -> None:
    has = ", ".join(sorted(served, key=arch_order))
    for arch in vendor.archs:
        if base_arch(arch) in indexed:
            continue
        said = f"{component.title} in {source} has no kernels for {arch}" + (
            f"; it has them for {has}" if has else ", and for no other arch either"
        )
        if folder.index_required:
            others = {place: rocblas_archs(place) for place in vendor.folders if not source.is_relative_to(place)}
            raise BundleError(
                f"{said}.",
                details=tuple(f"{place} has them for {', '.join(archs)}" for place, archs in others.items() if archs),
                hint=f"Take a {component.title} that was built for {arch}, or bundle for one of the archs named.",
            )
        draft.notes.append(
            f"{component.title} has no kernels for {arch} (it has {has or 'none'}), so rocBLAS does the work"
        )


def _data_folder(library: Path, place: str, *, component: Component) -> Path | None:
    """Where the tree keeps a library's files: where the library looks, else another depth that trees are seen with."""
    for base in dict.fromkeys([library.parent, library.resolve().parent]):
        expected = base / place
        if expected.is_dir():
            return expected
        others = sorted(base.glob(f"{component.name}/*/library"), key=lambda path: _numbers(path.parent.name))
        if others := [*base.glob(f"{component.name}/library"), *reversed(others)]:
            return others[0]
    return None


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", version)]


def add_kpacks(draft: Draft, libraries: Mapping[str, Path], vendor: Vendor) -> None:
    """Add the ``.kpack`` archives that bundled libraries were split from, where each of them looks.

    ``libraries``: paths by destination. Raises BundleError for a library whose archive for the arch is missing.
    """
    for destination, path in libraries.items():
        wanted = kpack_paths(path)
        if not wanted or not vendor.arch:
            continue
        found = False
        for written in wanted:
            for arch in vendor.archs:
                relative = written.replace("@GFXARCH@", base_arch(arch))
                source = Path(os.path.normpath(path.resolve().parent / relative))
                named = arch_of(PurePosixPath(relative).name)
                if not source.is_file() or (named and not serves(named, arch)):
                    continue
                found = True
                target = os.path.normpath(PurePosixPath(destination).parent / relative)
                if target.startswith(("..", "/")):
                    raise BundleError(
                        f"{path.name} looks for {written}, which is outside of a bundle when it lies in {destination}.",
                        hint="Report the release: its layout is new.",
                    )
                part = draft.entries[destination].part
                draft.add(Entry(target, source, None, draft.entries[destination].origin, part=part))
        if not found:
            raise BundleError(
                f"{path.name} was split from its device code, and none of its archives for {vendor.arch} is there: "
                f"{', '.join(wanted)}.",
                hint="Take the .kpack folder of the same release along, or the packages for this arch.",
            )


def assign_parts(draft: Draft, users: Mapping[str, set[str]]) -> None:
    """Put a library that only a vendor's libraries need into the same archive as them, its licences with it.

    ``users``: for each destination of a file in ``lib``, the destinations of those that need it.
    """
    changed = True
    while changed:
        changed = False
        for destination, entry in list(draft.entries.items()):
            parts = {draft.entries[user].part for user in users.get(destination, ()) if user in draft.entries}
            if entry.part or entry.link is not None or len(parts) != 1 or parts == {""}:
                continue
            (part,) = parts
            for name in (destination, *_links_to(draft, destination)):
                draft.entries[name] = replace(draft.entries[name], part=part)
            changed = True
    _assign_licenses(draft)


def _assign_licenses(draft: Draft) -> None:
    """Put a package's licences into every archive that has a library of its.

    A package all of whose libraries became a component's goes where the vendor's are. The texts that licences only
    point at go wherever such licences are: which of them points at which is not looked up.
    """
    homes: dict[str, set[str]] = {}
    for destination, entry in draft.entries.items():
        if not destination.startswith("licenses/"):
            homes.setdefault(entry.origin, set()).add(entry.part)
    vendors = {entry.part for entry in draft.entries.values()} - {""}
    papers = [name for name, entry in draft.entries.items() if name.startswith("licenses/") and not entry.part]
    common = {name for name in papers if name.startswith("licenses/common/")}
    reached: set[str] = set()
    for name in papers:
        entry = draft.entries[name]
        if name not in common:
            parts = homes.get(entry.origin) or vendors or {""}
            reached |= parts
            _place(draft, name, parts)
    for name in common:
        _place(draft, name, reached or {""})


def _place(draft: Draft, name: str, parts: set[str]) -> None:
    first, *also = sorted(parts)
    draft.entries[name] = replace(draft.entries[name], part=first, also=tuple(also))
