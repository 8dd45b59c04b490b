"""Kernel libraries of rocBLAS and hipBLASLt: played through as the libraries themselves look for them, for the arch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.bundle.archs import arch_of, base_arch
from llamabuild.bundle.tensile import simulate_hipblaslt, simulate_rocblas
from llamabuild.core.errors import LlamabuildError
from llamabuild.verify.archs import parse_archs
from llamabuild.verify.build_info import source_archs
from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from llamabuild.bundle.tensile import SearchResult
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import File, Subject

NO_KERNELS = Kind(
    "tensile.no-kernels-for-arch",
    "error",
    "rocBLAS will not find its kernels for the arch. Everything loads, /health answers, and the first request aborts "
    "with 'rocBLAS error: Cannot read …TensileLibrary.dat'. A folder with nothing but arch-less fallback files serves "
    "no GPU, and 'cp -r' into an existing folder puts the files one level too deep.",
    "Take the vendor's library files for this arch, at the depth that the evidence names.",
)
HIPBLASLT = Kind(
    "tensile.hipblaslt-missing",
    "error",
    "hipBLASLt is bundled, serves this arch, and will not find its kernels: every matrix product that would use it "
    "falls back with an error line, slowly.",
    "Copy hipblaslt/library for the arch beside libhipblaslt.so.",
)
HIPBLASLT_NONE = Kind(
    "tensile.hipblaslt-not-for-arch",
    "note",
    "The hipBLASLt that was bundled has no kernels for this arch in its own tree either (gfx1030 is served by no "
    "release), so rocBLAS does the work.",
    "Nothing; rocBLAS's own kernels have to be there.",
)
SHADOW = Kind(
    "tensile.shadow",
    "error",
    "A folder stands before the right one in the library's search and is taken in its place: a flattened copy, or a "
    "stray one beside the bundle's lib.",
    "Remove the folder; keep only the one that the library names.",
)
HASHED = Kind(
    "tensile.hashed-name",
    "error",
    "rocBLAS finds itself by 'rocblas.' in its file name. Under the hashed name that wheel repair tools give it, it "
    "looks in /opt/rocm/lib, whatever is bundled.",
    "Keep the name librocblas.so.N.",
)
MISDIRECTED = Kind(
    "tensile.misdirected",
    "error",
    "Something else has 'rocblas.' in its path and is taken for rocBLAS, so the search starts in the wrong folder.",
    "Rename it.",
)
MISDIRECTED_HERE = Kind(
    "tensile.misdirected-here",
    "warning",
    "A folder above the bundle has 'rocblas.' in its name. rocBLAS then takes every object of the bundle for itself "
    "and searches from the folder of the one that was loaded last, which need not be lib/.",
    "Move the bundle to a path without 'rocblas.' in it.",
)
COMPRESSED = Kind(
    "tensile.compressed",
    "note",
    "The index is compressed (.dat.zlib), which only releases of ROCm from 7.14 on look for.",
    "Bundle the libraries of the same release as the files.",
)
STALE = Kind(
    "tensile.stale",
    "warning",
    "An index and its compressed form lie side by side: the uncompressed one is read, and may be an older release's.",
    "Remove the one that is not of this release.",
)
WRONG_ARCH = Kind("tensile.wrong-arch", "warning", "A file for one arch lies in the folder of another.", "Remove it.")
NOT_CHECKED = Kind(
    "tensile.not-checked",
    "warning",
    "The search for kernels could not be played through: no arch is known, or the library could not be read.",
    "Name the arch with --arch.",
)

KINDS = (
    NO_KERNELS,
    HIPBLASLT,
    HIPBLASLT_NONE,
    SHADOW,
    HASHED,
    MISDIRECTED,
    MISDIRECTED_HERE,
    COMPRESSED,
    STALE,
    WRONG_ARCH,
    NOT_CHECKED,
)

_OF_PROBLEM = {
    "shadow": SHADOW,
    "hashed-name": HASHED,
    "misdirected": MISDIRECTED,
    "compressed": COMPRESSED,
    "stale": STALE,
    "wrong-arch": WRONG_ARCH,
    "unreadable": NOT_CHECKED,
}
_HIPBLASLT_ARCHS = frozenset(
    {
        "gfx908",
        "gfx90a",
        "gfx942",
        "gfx950",
        "gfx1100",
        "gfx1101",
        "gfx1103",
        "gfx1150",
        "gfx1151",
        "gfx1200",
        "gfx1201",
    }
)
"""Archs that some release of hipBLASLt (6.3 to 7.2, Debian's included) has an index for.

Only for bundles that do not say what their own hipBLASLt had: one built for fewer archs is as good."""


def check(subject: Subject) -> Iterator[Finding]:
    """Simulate each library's search from its own place, for every arch the bundle is for."""
    libraries = [(file, _is_rocblas(file.name)) for file in subject.elves if _is_kernel_library(file.name)]
    if not libraries:
        return
    if any(rocblas for _, rocblas in libraries):
        yield from _folders_above(subject)
    archs = _archs(subject)
    if not archs:
        yield NOT_CHECKED.at(
            libraries[0][0].path, "No gfx arch is known, so the search for kernels was not played through."
        )
        return
    for file, rocblas in libraries:
        for arch in archs:
            try:
                simulate = simulate_rocblas if rocblas else simulate_hipblaslt
                result = simulate(subject.root, _loaded_as(file), arch)
            except (LlamabuildError, OSError) as exc:
                yield NOT_CHECKED.at(file.path, f"{file.path} could not be read.", evidence=str(exc))
                continue
            yield from _problems(result)
            yield from _rocblas(subject, file, result) if rocblas else _hipblaslt(subject, file, result)


def _is_rocblas(name: str) -> bool:
    return name.startswith("librocblas")


def _is_kernel_library(name: str) -> bool:
    return _is_rocblas(name) or name.startswith(("libhipblaslt.", "libhipblaslt-"))


def _loaded_as(file: File) -> Path:
    """The path under which the loader opens it: by its soname, where there is such a link."""
    soname = file.elf.soname if file.elf else None
    link = file.real.with_name(soname) if soname else file.real
    return link if link.exists() else file.real


def _archs(subject: Subject) -> tuple[str, ...]:
    promised = parse_archs(subject.expected.arch).gfx
    if promised:
        return promised
    embedded = (
        arch
        for file in subject.elves
        if file.device is not None and file.name.startswith("libggml")
        for arch, _ in file.device.gfx
    )
    return tuple(sorted({base_arch(arch) for arch in embedded}))


def _folders_above(subject: Subject) -> Iterator[Finding]:
    """RocBLAS looks for its name in whole paths: the bundle's own folder counts, and in place all those above it."""
    if "rocblas." in subject.name:
        yield MISDIRECTED.at(
            "",
            f"The bundle's folder {subject.name} has 'rocblas.' in its name, and rocBLAS takes all in it for itself.",
        )
    for folder in subject.root.parents if subject.in_place else ():
        if "rocblas." in folder.name:
            yield MISDIRECTED_HERE.at("", f"The bundle lies below {folder}, whose name has 'rocblas.' in it.")


def _problems(result: SearchResult) -> Iterator[Finding]:
    for problem in result.problems:
        kind = _OF_PROBLEM[problem.kind]
        yield kind.at(problem.path, f"{problem.path}: {problem.message}", severity=problem.severity)


def _rocblas(subject: Subject, file: File, result: SearchResult) -> Iterator[Finding]:
    there = ", ".join(result.archs) or "none"
    if result.opened is None:
        yield NO_KERNELS.at(
            file.path,
            f"rocBLAS has no kernels for {result.arch}: none of {', '.join(result.candidates)} is in {result.folder}.",
            evidence=f"archs there: {there}; looked in: {', '.join(result.tried)}",
        )
    elif not _code_objects(subject, result):
        yield NO_KERNELS.at(
            result.opened,
            f"rocBLAS has an index for {result.arch} and not one code object beside it.",
            evidence=f"archs there: {there}; folder: {result.folder}",
        )


def _hipblaslt(subject: Subject, file: File, result: SearchResult) -> Iterator[Finding]:
    if result.opened is not None:
        if not _code_objects(subject, result):
            yield HIPBLASLT.at(
                result.opened, f"hipBLASLt has an index for {result.arch} and not one code object beside it."
            )
        return
    name = base_arch(result.arch)
    if _serves(subject, file, name):
        yield HIPBLASLT.at(
            file.path,
            f"hipBLASLt has no kernels for {result.arch} in {result.folder or 'any folder that it looks in'}.",
            evidence=f"archs there: {', '.join(result.archs) or 'none'}; looked in: {', '.join(result.tried)}",
        )
    else:
        yield HIPBLASLT_NONE.at(file.path, f"hipBLASLt serves no {result.arch}; rocBLAS does the work.")


def _serves(subject: Subject, file: File, name: str) -> bool:
    """Whether this hipBLASLt has kernels for the arch, by what its tree had; where nobody wrote that down, by rule."""
    recorded = source_archs(subject.build_info or {}, "hipblaslt")
    if recorded is not None:
        return name in recorded
    own = file.device is not None and any(base_arch(arch) == name for arch, _ in file.device.gfx)
    return own or name in _HIPBLASLT_ARCHS


def _code_objects(subject: Subject, result: SearchResult) -> bool:
    """Whether a code object for the arch lies in the folder; one outside the bundle is not looked at."""
    if result.folder.startswith("/"):
        return True
    name = base_arch(result.arch)
    return any(
        path.startswith(f"{result.folder}/")
        and path.endswith((".co", ".hsaco", ".co.zlib", ".hsaco.zlib"))
        and base_arch(arch_of(path.rpartition("/")[2]) or "") == name
        for path in (*subject.files, *subject.links)
    )
