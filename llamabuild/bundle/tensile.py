"""Where rocBLAS and hipBLASLt look for their device code, found out from the libraries and played over a folder tree.

Nothing is run. The search orders were observed (``strace`` on rocBLAS 6.4.4 and hipBLASLt 7.1.1 of Debian, with a
stand-in for the HIP runtime that claims one GPU) and agree with the sources:

rocBLAS (``library/src/tensile_host.cpp``): from the folder of the last loaded object whose path contains ``rocblas.``
(``/opt/rocm/lib`` where there is none), the first that exists of: Debian's ``rocblas/<version>/library`` where the
library names it, ``../../Tensile/library``, ``library``, ``../rocblas/library``, in some builds ``../Tensile/library``
(Debian's never looks there); else, without looking, ``rocblas/library``. In it the folder ``<arch>-<xnack>`` or
``<arch>``, where there is one. In that
``TensileLibrary_lazy_<arch>.dat``, ``TensileLibrary_<arch>.dat``, ``TensileLibrary.dat``.

hipBLASLt (``library/src/amd_detail/rocblaslt/src/tensile_host.cpp``): from the folder of the library itself, whatever
its name, the first that exists of ``hipblaslt/library``, ``../Tensile/library``, ``library``; in it ``<arch>``, where
there is such a folder; in that ``TensileLibrary_lazy_<arch>.dat``. Where none of the three exists, the file is opened
by its bare name: in the current folder of whatever process that is.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llamabuild.bundle.archs import arch_of, available_archs, base_arch
from llamabuild.bundle.kpack import relative_name
from llamabuild.elf.read import ElfError, ElfFile, is_elf, read_elf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from llamabuild.bundle.model import BundlePlan

_ROCBLAS_OWN = re.compile(rb"\0/(rocblas/[^/\0]+/library)\0")
_ROCBLAS_ORDER = ("../../Tensile/library", "library", "../rocblas/library")
_SOME_BUILDS = "../Tensile/library"
_NAMES_IT = b"\0/../Tensile/library\0"
"""A literal of its own. As the end of ``/../../Tensile/library`` it says nothing: linkers share the ends of strings."""
_ROCBLAS_LAST = "rocblas/library"
_HIPBLASLT_ORDER = ("hipblaslt/library", "../Tensile/library", "library")
_BLOCK = 1 << 22
_OVERLAP = 512
_MOST_STRINGS = 64 << 20
"""Read-only data beyond this is tables, not the literals of the code that searches."""


@dataclass(frozen=True)
class SearchProblem:
    """Something about the tree that leads the search astray, or would."""

    kind: Literal["shadow", "hashed-name", "misdirected", "compressed", "stale", "wrong-arch", "unreadable"]
    severity: Literal["error", "warning", "note"]
    path: str
    """Relative to the root that was searched."""
    message: str


@dataclass(frozen=True)
class SearchResult:
    """Which file a library would open first for one arch."""

    library: str
    """Relative to the root, as all paths here; one outside of it starts with ``/``."""
    arch: str
    folder: str
    """Where the search ends, the arch's folder included, whether it exists or not; empty for the current folder."""
    tried: tuple[str, ...]
    """Folders looked for, in order, up to the one that was taken."""
    candidates: tuple[str, ...]
    """Files looked for in ``folder``, in order."""
    opened: str | None
    """The first of them that exists; None means that the library fails for this arch."""
    archs: tuple[str, ...]
    """Archs that the place has an index for, sorted."""
    problems: tuple[SearchProblem, ...]


def rocblas_depth(library: Path) -> str:
    """The folder, relative to the library's, where this build of rocBLAS keeps its files.

    Read from its strings: ``rocblas/4.4.1/library`` for Debian's, ``rocblas/library`` where no other is named.
    """
    own = _own_folder(library)
    return own or _ROCBLAS_LAST


def simulate_rocblas(root: Path, library: Path, arch: str) -> SearchResult:
    """Play rocBLAS's search for ``arch`` over the tree at ``root`` that holds ``library``."""
    name = base_arch(arch)
    own = _own_folder(library)
    problems: list[SearchProblem] = []
    base = library.parent
    if "rocblas." not in str(library.name):
        problems.append(
            SearchProblem(
                "hashed-name",
                "error",
                relative_name(library, root),
                f"rocBLAS does not recognise itself under the name {library.name} and looks in /opt/rocm/lib.",
            )
        )
        base = Path("/opt/rocm/lib")
    problems += _misdirections(root, library)
    order = ((own,) if own else ()) + _ROCBLAS_ORDER
    if any(_NAMES_IT in block for block in literals(library)):
        order += (_SOME_BUILDS,)
    found, tried = _first_folder(base, order)
    folder = found or base / _ROCBLAS_LAST
    if folder not in tried:
        tried.append(folder)
    home = own or _ROCBLAS_LAST
    problems += _shadows(root, base, dict.fromkeys((*order, _SOME_BUILDS)), home=home, taken=folder)
    folder = _arch_folder(folder, (f"{name}-{xnack}" if (xnack := _xnack(arch)) else "", name))
    candidates = (f"TensileLibrary_lazy_{name}.dat", f"TensileLibrary_{name}.dat", "TensileLibrary.dat")
    opened, more = _first_file(root, folder, candidates, library=library)
    problems += more
    problems += _folder_problems(root, folder)
    return SearchResult(
        library=relative_name(library, root),
        arch=arch,
        folder=relative_name(folder, root),
        tried=tuple(relative_name(one, root) for one in tried),
        candidates=candidates,
        opened=opened,
        archs=available_archs(base / home),
        problems=tuple(problems),
    )


def simulate_hipblaslt(root: Path, library: Path, arch: str) -> SearchResult:
    """Play hipBLASLt's search for ``arch`` over the tree at ``root`` that holds ``library``.

    A library without kernels for the arch is no failure of its own: it says an error and rocBLAS does the work.
    """
    name = base_arch(arch)
    base = library.parent
    folder, tried = _first_folder(base, _HIPBLASLT_ORDER)
    problems = list(_shadows(root, base, _HIPBLASLT_ORDER, home=_HIPBLASLT_ORDER[0], taken=folder))
    candidates = (f"TensileLibrary_lazy_{name}.dat",)
    opened = None
    if folder is not None:
        folder = _arch_folder(folder, (name,))
        opened, more = _first_file(root, folder, candidates, library=library)
        problems += [*more, *_folder_problems(root, folder)]
    return SearchResult(
        library=relative_name(library, root),
        arch=arch,
        folder="" if folder is None else relative_name(folder, root),
        tried=tuple(relative_name(one, root) for one in tried),
        candidates=candidates,
        opened=opened,
        archs=available_archs(base / _HIPBLASLT_ORDER[0]),
        problems=tuple(problems),
    )


def source_archs(plan: BundlePlan) -> dict[str, list[str]]:
    """Archs that hipBLASLt has an index for in the tree it is taken from, by its component's name; sorted.

    A bundle that lacks one of these was cut short; one that lacks another was made of a release that does not serve
    it. Empty where the plan has no hipBLASLt, or its tree no files for it.
    """
    for entry in plan.entries:
        if entry.source is None or not entry.source.name.startswith("libhipblaslt.so"):
            continue
        folders = [*entry.source.parent.glob("hipblaslt/library"), *entry.source.parent.glob("hipblaslt/*/library")]
        if folders:
            return {"hipblaslt": list(available_archs(folders[0]))}
    return {}


def _xnack(arch: str) -> str:
    found = re.search(r"[:-]xnack([+-])", arch)
    return f"xnack{found[1]}" if found else ""


def _first_folder(base: Path, order: Iterable[str]) -> tuple[Path | None, list[Path]]:
    tried = []
    for relative in order:
        folder = Path(os.path.normpath(base / relative))
        tried.append(folder)
        if folder.is_dir():
            return folder, tried
    return None, tried


def _arch_folder(folder: Path, names: Iterable[str]) -> Path:
    return next((folder / name for name in names if name and (folder / name).is_dir()), folder)


def _first_file(
    root: Path, folder: Path, names: Iterable[str], *, library: Path
) -> tuple[str | None, list[SearchProblem]]:
    for name in names:
        path = folder / name
        if path.is_file():
            return relative_name(path, root), []
        packed = path.with_name(f"{name}.zlib")
        if packed.is_file():
            reads = _reads_zlib(library)
            where = relative_name(packed, root)
            if reads is False:
                problem = SearchProblem(
                    "compressed",
                    "error",
                    where,
                    f"{library.name} cannot read compressed indexes, and {name} is one.",
                )
                return None, [problem]
            problem = SearchProblem(
                "compressed", "note", where, f"Only releases of ROCm from 7.14 on look for {packed.name}."
            )
            return where, [problem]
    return None, []


def _reads_zlib(library: Path) -> bool | None:
    """Whether the library knows compressed files; None where it shows no sign of reading any (not a real one)."""
    strings = b"".join(literals(library))
    if b"TensileLibrary_lazy_" not in strings and b"ensile" not in strings:
        return None
    return b".zlib" in strings or b".dat.z" in strings


def _shadows(root: Path, base: Path, order: Iterable[str], *, home: str, taken: Path | None) -> Iterator[SearchProblem]:
    """Folders that stand before the library's own one in the search order, or in that of some builds."""
    right = Path(os.path.normpath(base / home))
    for relative in order:
        folder = Path(os.path.normpath(base / relative))
        if folder == right:
            return
        if not folder.is_dir():
            continue
        where, own = relative_name(folder, root), relative_name(right, root)
        if folder == taken:
            yield SearchProblem("shadow", "error", where, f"It is searched before {own}.")
        elif relative == _SOME_BUILDS:
            yield SearchProblem("shadow", "warning", where, f"Some builds of rocBLAS search it before {own}.")
        else:
            yield SearchProblem("shadow", "warning", where, f"It is searched before {own}.")


def _misdirections(root: Path, library: Path) -> Iterator[SearchProblem]:
    """Other objects of the tree that rocBLAS would take for itself."""
    for path in sorted(root.rglob("*rocblas.*")):
        inside = path.relative_to(root)
        if path.is_dir():
            message = "A folder with `rocblas.` in its name makes rocBLAS take every object in it for itself."
        elif path.parent == library.parent or not is_elf(path):
            continue
        else:
            message = "rocBLAS takes it for itself when it is loaded later, and searches from its folder."
        yield SearchProblem("misdirected", "error", inside.as_posix(), message)


def _folder_problems(root: Path, folder: Path) -> Iterator[SearchProblem]:
    """Stale files beside compressed ones, and files of another arch than their folder's."""
    if not folder.is_dir():
        return
    home = arch_of(folder.name)
    for path in sorted(folder.iterdir()):
        arch = arch_of(path.name)
        where = relative_name(path, root)
        if path.name.endswith(".dat.zlib") and path.with_name(path.name.removesuffix(".zlib")).exists():
            stale = path.name.removesuffix(".zlib")
            yield SearchProblem("stale", "warning", where, f"{stale} lies beside it and is read in its place.")
        if home and arch and base_arch(arch) != base_arch(home) and not path.is_dir():
            yield SearchProblem("wrong-arch", "warning", where, f"It is for {arch} and lies in the folder of {home}.")


def _own_folder(library: Path) -> str | None:
    for block in literals(library):
        if found := _ROCBLAS_OWN.search(block):
            return found[1].decode()
    return None


def literals(library: Path) -> Iterator[bytes]:
    """The read-only data of a library, where its string literals are, in overlapping blocks.

    Of a file that is no ELF file, the first bytes.
    """
    try:
        elf: ElfFile | None = read_elf(library) if is_elf(library) else None
    except ElfError:
        elf = None
    sections = [] if elf is None else [one for one in elf.sections if one.name.startswith(".rodata")]
    places = [(one.offset, min(one.size, _MOST_STRINGS)) for one in sections] or [(0, _BLOCK)]
    with library.open("rb") as handle:
        for offset, size in places:
            for at in range(0, size, _BLOCK):
                yield os.pread(handle.fileno(), min(_BLOCK, size - at) + _OVERLAP, offset + at)
