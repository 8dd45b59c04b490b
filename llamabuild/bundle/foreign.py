"""Describe a build folder that this tool did not make, so that it can be bundled like one of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llamabuild.build.cmake_cache import CMakeCache, read_cache
from llamabuild.build.model import BuildTree, BuiltFile, Target
from llamabuild.bundle.rules import component_of, load_components
from llamabuild.core.errors import UsageError
from llamabuild.elf.policy import LibraryPolicy
from llamabuild.elf.read import ElfFile, is_elf, read_elf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_PLUGIN = re.compile(r"^libggml-(?!base)(?P<backend>[a-z0-9]+)(?:-[a-z0-9_]+)?\.so$")
_PROGRAM = re.compile(r"^(?:llama(?:-.+)?|(?:ggml-)?rpc-server)$")
"""``llama`` holds all tools of newer versions; tests and generators beside them are not for users."""
_FOLDERS = ("bin", "lib", "lib64", ".")
_DRIVERS = {"libcuda.so.1": "cuda", "libvulkan.so.1": "vulkan"}
"""Libraries that no component brings, and that one backend alone needs."""
_BACKENDS = ("cpu", "cuda", "vulkan", "hip")


def foreign_build(
    folder: Path, *, arch: str, note: Callable[[str], None], rpath: Literal["rpath", "runpath"] = "rpath"
) -> BuildTree:
    """Read a llama.cpp build folder: programs, libraries and plugins by looking at the files, options by its cache.

    A file is a plugin when ggml would open it (``libggml-<backend>.so``) and nothing in the folder needs it by name.
    A vendor's libraries beside them are no files of the build, only found in its ``runtime_folders``; those that are
    the host's are left out, and ``note`` is told so. Raises UsageError for a folder without a program of llama.cpp,
    ElfError for damaged files.
    """
    found = [path for place in _FOLDERS for path in _elf_files(folder / place)]
    everything = {path: read_elf(path) for path in found}
    facts, vendors = _sort_out(everything, note=note)
    facts |= {link: read_elf(link) for link in _linked_programs(folder, facts)}
    needed = {name for elf in facts.values() for name in elf.needed}
    files = tuple(
        BuiltFile(
            target=path.name.removeprefix("lib").partition(".so")[0],
            kind=_kind(elf, plugin=plugin),
            path=path,
            plugin=plugin,
        )
        for path, elf in sorted(facts.items())
        if (plugin := _is_plugin(path, elf, needed)) or elf.kind == "shared" or _PROGRAM.match(path.name)
    )
    if not any(file.kind == "executable" for file in files):
        raise UsageError(
            f"{folder} holds no program of llama.cpp: nothing named llama or llama-* in {', '.join(_FOLDERS[:3])}.",
            hint="Name the folder that CMake was run in, the one with bin/llama-server below it.",
        )
    text = folder / "CMakeCache.txt"
    cache = read_cache(text) if text.is_file() else CMakeCache(entries={}, problems=())
    plugins = {match["backend"] for file in files if (match := _PLUGIN.match(file.path.name))}
    # Where all is linked into the programs, what they need tells; the CPU's code needs nothing.
    inside = _linked_backends(facts[file.path] for file in files) | (set() if plugins else {"cpu"})
    backends = tuple(name for name in _BACKENDS if name in plugins | inside or _on(cache, name))
    target = Target(
        name="-".join(backend for backend in backends if backend != "cpu") or "cpu",
        backends=backends,
        arch=arch,
        entries=(),
        programs=tuple(file.path.name for file in files if file.kind == "executable"),
        rpath=rpath,
        glibc_floor=None,
        rccl=_on(cache, "hip_rccl"),
        nccl=_on(cache, "cuda_nccl"),
    )
    number = cache.value("LLAMA_BUILD_NUMBER")
    return BuildTree(
        folder=folder,
        source=Path(cache.value("CMAKE_HOME_DIRECTORY", str(folder))),
        target=target,
        files=files,
        tools=(),
        cache_entries=tuple(
            (name, cache.value(name)) for name in sorted(cache.entries) if name.startswith(("GGML_", "LLAMA_"))
        ),
        build_number=int(number) if number.isdecimal() else 0,
        build_commit=cache.value("LLAMA_BUILD_COMMIT", "unknown"),
        network="unknown",
        log=folder,
        runtime_folders=tuple(dict.fromkeys(path.parent for path in vendors)),
    )


def _sort_out(
    found: Mapping[Path, ElfFile], *, note: Callable[[str], None]
) -> tuple[dict[Path, ElfFile], tuple[Path, ...]]:
    """The files that may be the build's own, and those of vendors' runtimes."""
    components = load_components()
    policy = LibraryPolicy(vulkan=any(path.name.startswith("libggml-vulkan") for path in found))
    own: dict[Path, ElfFile] = {}
    vendors: list[Path] = []
    for path, elf in found.items():
        names = {path.name, elf.soname or path.name}
        whose = next((kind for name in sorted(names) if (kind := policy.classify(name))), None)
        if elf.kind == "shared" and whose:
            note(f"{path} is left out: it is the host's own" + (" driver" if whose == "driver" else ""))
        elif elf.kind == "shared" and any(component_of(name, components) for name in names):
            vendors.append(path)
        else:
            own[path] = elf
    return own, tuple(vendors)


def _elf_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if not path.is_symlink() and is_elf(path)]


def _linked_programs(folder: Path, files: Mapping[Path, ElfFile]) -> list[Path]:
    """Programs that are links, such as ``llama-server -> ../app/llama``, to what the scanned folders do not hold.

    A link beside its program comes along with it.
    """
    real = {path.resolve(): path for path in files if _PROGRAM.match(path.name)}
    names = {path.name for path in real.values()}
    found = []
    for place in _FOLDERS:
        for path in sorted((folder / place).glob("*")):
            if not path.is_symlink() or not _PROGRAM.match(path.name) or path.name in names or not is_elf(path):
                continue
            program = real.get(path.resolve())
            names.add(path.name)
            if program is None or program.parent.resolve() != path.parent.resolve():
                found.append(path)
    return found


def _is_plugin(path: Path, elf: ElfFile, needed: set[str]) -> bool:
    return bool(_PLUGIN.match(path.name)) and elf.kind == "shared" and (elf.soname or path.name) not in needed


def _kind(elf: ElfFile, *, plugin: bool) -> Literal["executable", "shared", "module"]:
    if elf.kind == "executable":
        return "executable"
    return "module" if plugin else "shared"


def _linked_backends(files: Iterable[ElfFile]) -> set[str]:
    components = load_components()
    needed = {name for elf in files for name in elf.needed}
    found = {component.backend for name in needed if (component := component_of(name, components))}
    return found | {backend for name, backend in _DRIVERS.items() if name in needed}


def _on(cache: CMakeCache, name: str) -> bool:
    entry = cache.declared(f"GGML_{name.upper()}")
    return entry is not None and entry.is_on
