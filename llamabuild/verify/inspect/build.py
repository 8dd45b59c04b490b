"""Inspect a build folder or a CMakeCache.txt: what was asked for, what the tree took, what is compiled."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.build.cmake_cache import CMakeCache, is_false, read_cache
from llamabuild.build.option_names import (
    BACKENDS,
    DEPRECATED,
    given_undeclared,
    is_read_undeclared,
    suggest,
    synonyms,
)
from llamabuild.verify.archs import parse_archs
from llamabuild.verify.inspect.compile_commands import Compiled, read_compile_commands
from llamabuild.verify.inspect.details import build_details
from llamabuild.verify.inspect.model import Backend, Ignored, Inspection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_GPU_BACKEND = re.compile(r"^GPU_BACKEND_([A-Z0-9]+)$")
"""A field note greps for these; llama.cpp has none, but a fork may."""
_NATIVE_WORD = re.compile(r"-m(?:arch|cpu)=native\b")
_TARGET_OF = {"hip": ("ggml-hip", "ggml-rocm"), "metal": ("ggml-metal",)}
_NOT_TOOLS = frozenset({"CMAKE_DLLTOOL", "CMAKE_TAPI", "CMAKE_MT"})
"""Searched by CMake for every project on Linux, and never found there."""
_CUDA_TOOLKIT = re.compile(r"^(?:CUDA_\w+_LIBRARY|CUDAToolkit_\w+_INCLUDE_DIR)$")
"""What FindCUDAToolkit searches for whoever asks: every library that a toolkit can have."""
_CUDA_NEEDED = ("CUDA_cudart_", "CUDA_cublas_L", "CUDA_cublasLt_L", "CUDA_cuda_driver_")
_SIBLINGS = 3
"""So many other backends' options make a cache one of a whole, recent tree."""
_LEFT_BY = (
    ("cuda", ("CMAKE_CUDA_COMPILER", "CUDAToolkit_BIN_DIR")),
    ("vulkan", ("Vulkan_LIBRARY", "Vulkan_GLSLC_EXECUTABLE")),
    ("hip", ("hip_DIR", "hipblas_DIR", "CMAKE_HIP_COMPILER")),
)


def inspect_build(path: Path) -> Inspection:
    """Inspect a folder with a CMakeCache.txt, or that file alone. Raises OSError where it cannot be read."""
    alone = path.is_file()
    folder = path.parent if alone else path
    cache = read_cache(path if alone else folder / "CMakeCache.txt")
    commands = folder / "compile_commands.json"
    compiled: Compiled | str | None = None
    if not alone or _belongs(cache, folder):
        compiled = read_compile_commands(commands) if commands.is_file() else None
    problem = compiled if isinstance(compiled, str) else ""
    built = compiled if isinstance(compiled, Compiled) else None
    backends = _backends(cache, built)
    native, native_from = _native(cache, built)
    ignored = tuple(_ignored(cache, backends))
    return Inspection(
        subject=str(path),
        kind="cmake-cache" if alone else "build",
        backends=backends,
        archs=_archs(cache, backends),
        native=native,
        native_from=native_from,
        rccl=_collective(cache, built, backends, backend="hip", library="rccl"),
        nccl=_collective(cache, built, backends, backend="cuda", library="nccl"),
        missing_tools=tuple(_missing_tools(cache)),
        ignored_options=ignored,
        leftovers=tuple(_leftovers(cache, backends)),
        disagreements=tuple(_disagreements(cache, built, backends)),
        details=build_details(
            cache,
            built,
            folder,
            problems=[problem] if problem else [],
            optional=list(_missing_tools(cache, optional=True)),
        ),
    )


def _belongs(cache: CMakeCache, folder: Path) -> bool:
    """Whether the folder that a lone cache lies in is the build folder it was written for."""
    made_for = cache.value("CMAKE_CACHEFILE_DIR")
    return bool(made_for) and Path(made_for).resolve() == folder.resolve()


def _backends(cache: CMakeCache, compiled: Compiled | None) -> dict[str, Backend]:
    found: dict[str, Backend] = {}
    plugins = _is_on(cache, "GGML_BACKEND_DL")
    for name, options in BACKENDS.items():
        backend = _declared(cache, options) or _undeclared(cache, name, options)
        if backend is not None:
            found[name] = backend
    for option, entry in cache.entries.items():
        if (match := _GPU_BACKEND.match(option)) and entry.is_declared:
            found.setdefault(match[1].lower(), Backend("on" if entry.is_on else "off", option))
    if compiled is not None:
        for name, backend in list(found.items()):
            targets = _TARGET_OF.get(name, (f"ggml-{name}",))
            there = any(target in compiled.targets or f"{target}-x64" in compiled.targets for target in targets)
            if there and backend.state != "on":
                note = f"compiled all the same (target {targets[0]})"
                found[name] = replace(backend, state="on", note=note)
    if "cpu" not in found and found:
        # The CPU backend was no option in old trees: it is always there.
        found["cpu"] = Backend("on", note="not an option in this tree")
    for name, backend in found.items():
        if backend.state == "on":
            found[name] = replace(backend, kind="plugin" if plugins else "linked")
    return dict(sorted(found.items()))


def _declared(cache: CMakeCache, options: tuple[str, ...]) -> Backend | None:
    present = [entry for option in options if (entry := cache.declared(option)) is not None]
    if not present:
        return None
    on = next((entry for entry in present if entry.is_on), None)
    if on is not None:
        return Backend("on", on.name)
    asked = _asked(cache, options)
    if asked:
        return Backend("ignored", asked, note=f"this tree reads {present[0].name}")
    near = next(
        (
            other
            for other in given_undeclared(cache)
            if cache.entries[other].is_on and not is_read_undeclared(other) and suggest(other, cache) == present[0].name
        ),
        "",
    )
    if near:
        return Backend("ignored", near, note=f"this tree reads {present[0].name}")
    return Backend("off", present[0].name)


def _undeclared(cache: CMakeCache, name: str, options: tuple[str, ...]) -> Backend | None:
    asked = _asked(cache, options)
    if not asked:
        return None
    others = sum(cache.declared(group[0]) is not None for group in BACKENDS.values())
    if asked in DEPRECATED and others >= _SIBLINGS:
        # llama_option_depr in upstream's CMakeLists.txt sets the new name as a plain variable, and option() then
        # leaves no cache entry of that name: its absence beside the other GGML_ options is the sign (seen on v0.5.0).
        return Backend("on", asked, note=f"a deprecated name of {options[0]}")
    return Backend("ignored", asked, note=f"this tree has no {name} option")


def _asked(cache: CMakeCache, options: tuple[str, ...]) -> str:
    return next(
        (
            option
            for option in options
            if (entry := cache.entries.get(option)) and not entry.is_declared and entry.is_on
        ),
        "",
    )


def _is_on(cache: CMakeCache, name: str) -> bool:
    entry = cache.declared(name)
    return entry is not None and entry.is_on


def _archs(cache: CMakeCache, backends: Mapping[str, Backend]) -> tuple[str, ...]:
    archs: list[str] = []
    for backend, options in (
        ("cuda", ("CMAKE_CUDA_ARCHITECTURES",)),
        ("hip", ("CMAKE_HIP_ARCHITECTURES", "GPU_TARGETS", "AMDGPU_TARGETS")),
        ("musa", ("MUSA_ARCHITECTURES",)),
    ):
        if backend in backends and backends[backend].state == "on":
            text = next((value for option in options if (value := cache.value(option))), "")
            archs += [word for word in text.split(";") if word]
    return tuple(dict.fromkeys(archs))


def _native(cache: CMakeCache, compiled: Compiled | None) -> tuple[bool | None, str]:
    if compiled is not None and compiled.commands:
        return bool(compiled.native_files), "compile commands"
    flags = " ".join(
        entry.value for name, entry in cache.entries.items() if re.match(r"^CMAKE_(?:C|CXX)_FLAGS(?:_[A-Z]+)?$", name)
    )
    if _NATIVE_WORD.search(flags):
        return True, "compiler flags in the cache"
    for option in ("GGML_NATIVE", "LLAMA_NATIVE"):
        entry = cache.declared(option)
        if entry is not None:
            return entry.is_on, "cache"
    return None, ""


def _collective(
    cache: CMakeCache, compiled: Compiled | None, backends: Mapping[str, Backend], *, backend: str, library: str
) -> bool | None:
    """Whether the backend is built with its collectives; None where neither cache nor commands tell."""
    option = next(
        (
            entry
            for name in (f"GGML_{backend.upper()}_{library.upper()}", f"GGML_{library.upper()}")
            if (entry := cache.declared(name))
        ),
        None,
    )
    state = backends.get(backend)
    if state is None or state.state != "on":
        return None if option is None else False
    if compiled is not None and compiled.commands:
        return bool({"GGML_USE_NCCL", f"GGML_USE_{library.upper()}"} & compiled.defines)
    if option is None:
        return None
    found = cache.entries.get(f"{library.upper()}_LIBRARY")
    # The option only permits it: upstream links NCCL where the library was found.
    return option.is_on and not (found is not None and found.is_missing)


def _missing_tools(cache: CMakeCache, *, optional: bool = False) -> Iterator[str]:
    """Searches that found nothing; with ``optional`` those that llama.cpp does not miss, else the others."""
    for name, entry in cache.entries.items():
        if entry.is_missing and entry.kind in {"FILEPATH", "PATH", "STRING"} and name not in _NOT_TOOLS:
            unused = bool(_CUDA_TOOLKIT.match(name)) and not name.startswith(_CUDA_NEEDED)
            if unused is optional:
                yield name


def _ignored(cache: CMakeCache, backends: Mapping[str, Backend]) -> Iterator[Ignored]:
    taken = {backend.option for backend in backends.values() if backend.state == "on"}
    for name in given_undeclared(cache):
        if name in taken or is_read_undeclared(name):
            continue
        entry = cache.entries[name]
        target = suggest(name, cache)
        note = ""
        if name == "LLAMA_CURL":
            note, target = "upstream dropped curl; downloads need LLAMA_OPENSSL", suggest(name, cache)
        elif target is None and any(other in cache.entries for other in synonyms(name) if other != name):
            note = "another name of it was given too"
        yield Ignored(name, entry.value, target, note)


def _leftovers(cache: CMakeCache, backends: Mapping[str, Backend]) -> Iterator[str]:
    listed = [each for each in cache.value("GGML_AVAILABLE_BACKENDS").split(";") if each]
    for each in listed:
        name = each.removeprefix("ggml-").partition("-")[0]
        state = backends.get(name)
        if state is not None and state.state != "on":
            yield f"GGML_AVAILABLE_BACKENDS still names {each}, which is {state.state}: that list only ever grows."
    for name, traces in _LEFT_BY:
        state = backends.get(name)
        if state is None or state.state == "on":
            continue
        for trace in traces:
            entry = cache.entries.get(trace)
            if entry is not None and entry.is_declared and not is_false(entry.value):
                yield f"{trace} is still set to {entry.value}, and {name} is {state.state}."


def _disagreements(cache: CMakeCache, compiled: Compiled | None, backends: Mapping[str, Backend]) -> Iterator[str]:
    if compiled is None or not compiled.commands:
        return
    option = cache.declared("GGML_NATIVE") or cache.declared("LLAMA_NATIVE")
    if option is not None and option.is_on != bool(compiled.native_files):
        how = f"{len(compiled.native_files)} files are compiled" if compiled.native_files else "no file is compiled"
        yield f"{option.name} is {option.value}, and {how} for the building machine's own processor."
    wanted = parse_archs(";".join(_archs(cache, backends)))
    for label, asked, real in (("SASS", wanted.sass, compiled.sass), ("PTX", wanted.ptx, compiled.ptx)):
        if (compiled.sass or compiled.ptx) and not wanted.unknown and set(asked) != set(real):
            yield (
                f"CMAKE_CUDA_ARCHITECTURES asks for {label} {_list(set(asked))}, and the commands compile "
                f"{label} {_list(set(real))}."
            )
    gfx = {word for word in _archs(cache, backends) if word.startswith("gfx")}
    if gfx and compiled.gfx and gfx != set(compiled.gfx):
        yield f"The cache asks for {_list(gfx)}, and the commands compile for {_list(set(compiled.gfx))}."
    for name, backend in backends.items():
        target = _TARGET_OF.get(name, (f"ggml-{name}",))[0]
        if backend.state == "on" and not any(each.startswith(target) for each in compiled.targets):
            yield f"{name} is on by {backend.option or 'default'}, and no command compiles it."


def _list(words: set[str]) -> str:
    return ", ".join(sorted(words)) or "none"
