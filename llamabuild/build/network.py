"""Keep a build off the network: in a namespace without one, else by looking for its downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.build.cmake_cache import is_false, read_cache

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from llamabuild.build.host import Host

_DOWNLOADING = (
    "GGML_CPU_KLEIDIAI",
    "GGML_CUDA_CUB_3DOT2",
    "GGML_OPENMP_FETCH",
    "LLAMA_BUILD_UI",
    "LLAMA_BUILD_BORINGSSL",
    "LLAMA_BUILD_LIBRESSL",
    "LLAMA_LLGUIDANCE",
    "LLAMA_USE_PREBUILT_UI",
)
"""Options of llama.cpp v0.5.0 that make its lists fetch something when they are on."""


def namespace_prefix(host: Host) -> tuple[str, ...]:
    """The words before a command that run it without a network, or none where the kernel does not let us.

    A plain network namespace as root, else one inside a user namespace of our own.
    """
    for flags in ("-n", "-rn"):
        unshare = host.which("unshare")
        if unshare is not None and host.run([str(unshare), flags, "true"]).ok:
            return (str(unshare), flags)
    return ()


def downloads_asked(entries: Mapping[str, str]) -> tuple[str, ...]:
    """The entries, names to values, that would have the configure step fetch something."""
    return tuple(sorted(name for name in _DOWNLOADING if not is_false(entries.get(name, ""))))


def downloads_found(folder: Path) -> tuple[str, ...]:
    """What a configured build folder would fetch: options that are on, and CMake's own download scripts."""
    cache = read_cache(folder / "CMakeCache.txt")
    options = sorted(name for name in _DOWNLOADING if name in cache.entries and cache.entries[name].is_on)
    # ExternalProject and FetchContent write a script for each download when they configure.
    scripts = [*folder.rglob("*-gitclone.cmake"), *folder.rglob("download-*.cmake")]
    return (*options, *sorted(str(script.relative_to(folder)) for script in scripts))
