"""ROCm trees in the layouts of AMD's packages, TheRock's archives, Debian, and the Python wheels of the ROCm SDK."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llamabuild.core.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Layout = Literal["amd", "therock", "debian", "wheels"]

_MARKERS = ("libamdhip64.so*", "librocblas.so*", "libhipblas.so*", "libhipblaslt.so*", "libhsa-runtime64.so*")
_LIBRARY_FOLDERS = (
    "lib",
    "lib64",
    "lib/rocm_sysdeps/lib",
    "lib/llvm/lib",
    "lib/*-linux-gnu",
    "usr/lib/*-linux-gnu",
    "_rocm_sdk_*/lib",
    "_rocm_sdk_*/lib/rocm_sysdeps/lib",
    "_rocm_sdk_*/lib/llvm/lib",
)
"""Where libraries lie below the root of a tree, in the layouts that are in the field."""
_HELPERS = ("rocm_sysdeps/lib", "llvm/lib")
"""Folders that belong to a tree although no library of ours marks them."""
_CLANGS = (
    "lib/llvm/bin/clang++",
    "llvm/bin/clang++",
    "_rocm_sdk_*/lib/llvm/bin/clang++",
    "usr/bin/clang++-[0-9]*",
    "bin/clang++-[0-9]*",
)
_PREFIXES = ("usr", "_rocm_sdk_devel", "_rocm_sdk_*")
_VERSION_FILES = (".info/version", "_rocm_sdk_core/.info/version", "share/rocm/version", "usr/share/rocm/version")


@dataclass(frozen=True)
class RocmTree:
    """A ROCm installation, each part where it was seen."""

    root: Path
    layout: Layout
    library_folders: tuple[Path, ...]
    """Folders with shared libraries, the ones with ROCm's own first."""
    rocblas_library: Path | None
    """The folder of rocBLAS's kernel files; below it ``TensileLibrary_lazy_<arch>.dat`` or a folder for each arch."""
    hipblaslt_library: Path | None
    kpack: Path | None
    """TheRock's folder of split-off device code."""
    clang: Path | None
    """The HIP compiler; None in a tree of run-time libraries alone."""
    prefix: Path | None
    """The folder with ``include/hip`` and the CMake packages; None in a tree of run-time libraries alone."""
    version: str
    """The release's, else HIP's own (the same major and minor); empty where the tree does not say it."""

    def library(self, name: str) -> Path | None:
        """The first file or link of that name (``librocblas.so.5``), in search order."""
        return next((folder / name for folder in self.library_folders if (folder / name).exists()), None)


def find_rocm(path: Path) -> RocmTree:
    """Find the parts of the ROCm tree at ``path`` by looking: it may be the root, its ``lib``, or a site-packages.

    A flat folder, with all libraries and kernels in it, will do as well. Reads the file system, changes
    nothing. Raises ToolError when there is no ROCm library.
    """
    start = path.absolute()
    # Releases of llama.cpp often have all of ROCm in one folder with the programs. That comes last: /opt/rocm/lib alone
    # is not all of the tree around it.
    places = [(root, _below(root)) for root in _possible_roots(start)]
    for root, candidates in (*places, (start, [start])):
        folders = _library_folders(candidates)
        if folders:
            prefix = _prefix(root)
            # Of several wheels with the same libraries, each for its own archs, the one that was named comes first.
            folders = tuple(sorted(folders, key=lambda folder: not folder.is_relative_to(start)))
            return RocmTree(
                root=root,
                layout=_layout(root, folders),
                library_folders=folders,
                rocblas_library=_kernels(folders, "rocblas"),
                hipblaslt_library=_kernels(folders, "hipblaslt"),
                kpack=_first(folder.parent / ".kpack" for folder in folders),
                clang=_clang(root),
                prefix=prefix,
                version=_version(root) or _hip_version(prefix),
            )
    raise ToolError(
        f"{path} holds no ROCm: none of {', '.join(_MARKERS)} in it or in {', '.join(_LIBRARY_FOLDERS[:2])}, …",
        hint="Point --rocm at the folder that has lib/librocblas.so.* below it, such as /opt/rocm or /usr.",
    )


def _possible_roots(path: Path) -> Iterator[Path]:
    """The roots that a person may mean by ``path``."""
    for folder in (path, path.parent):
        if folder.name.startswith("_rocm_sdk_"):
            # One wheel's folder is a tree of its own, without the libraries of the other wheels.
            yield folder.parent
    yield path
    if path.name in {"lib", "lib64"}:
        yield path.parent
    elif path.name.endswith("-linux-gnu"):
        yield path.parent.parent


def _below(root: Path) -> list[Path]:
    return [folder for pattern in _LIBRARY_FOLDERS for folder in sorted(root.glob(pattern)) if folder.is_dir()]


def _library_folders(candidates: Sequence[Path]) -> tuple[Path, ...]:
    own = [folder for folder in candidates if any(any(folder.glob(marker)) for marker in _MARKERS)]
    helpers = [folder for folder in candidates if str(folder).endswith(_HELPERS)]
    # A link such as lib64 -> lib, or /lib -> /usr/lib, is the same folder again.
    seen = {folder.resolve(): folder for folder in reversed([*own, *helpers])} if own else {}
    return tuple(sorted(seen.values(), key=[*own, *helpers].index))


def _layout(root: Path, folders: Iterable[Path]) -> Layout:
    names = [str(folder.relative_to(root)) for folder in folders]
    if any(name.startswith("_rocm_sdk_") for name in names):
        return "wheels"
    if any(name.endswith("-linux-gnu") for name in names):
        return "debian"
    if "lib/rocm_sysdeps/lib" in names or (root / ".kpack").is_dir():
        return "therock"
    return "amd"


def _kernels(folders: Iterable[Path], library: str) -> Path | None:
    """The kernel folder beside a library: plain, or below a version as Debian's rocBLAS wants it."""
    places = (
        place
        for folder in folders
        for pattern in (f"{library}/library", f"{library}/*/library")
        for place in sorted(folder.glob(pattern), reverse=True)
    )
    return _first(places)


def _first(places: Iterable[Path]) -> Path | None:
    return next((place for place in places if place.is_dir()), None)


def _clang(root: Path) -> Path | None:
    def release(place: Path) -> int:
        number = re.search(r"-(\d+)$", place.name)
        return int(number[1]) if number else 0

    for pattern in _CLANGS:
        found = sorted(root.glob(pattern), key=release, reverse=True)
        if found:
            return found[0]
    return None


def _prefix(root: Path) -> Path | None:
    places = (root, *(place for pattern in _PREFIXES for place in sorted(root.glob(pattern))))
    return next((place for place in places if (place / "include/hip/hip_runtime.h").is_file()), None)


def _version(root: Path) -> str:
    for name in _VERSION_FILES:
        place = root / name
        if place.is_file():
            found = re.match(r"\d+(?:\.\d+)*", place.read_text(encoding="utf-8", errors="replace").strip())
            if found:
                return found[0]
    return ""


def _hip_version(prefix: Path | None) -> str:
    """What HIP's header says: Debian's trees have no file with the release."""
    header = prefix / "include/hip/hip_version.h" if prefix else None
    if header is None or not header.is_file():
        return ""
    text = header.read_text(encoding="utf-8", errors="replace")
    numbers = [re.search(rf"#define HIP_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(number[1] for number in numbers if number)
