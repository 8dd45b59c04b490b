"""Compile caches and compile farms: what stands before the compiler, and how it is set."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.build import shader_cache
from llamabuild.core.files import atomic_write, key_of

if TYPE_CHECKING:
    from llamabuild.build.model import BuildOptions, Target, Toolchain
    from llamabuild.core.context import Context


def needs_network(options: BuildOptions) -> bool:
    """Whether the compile step itself talks to other machines, so that it cannot be cut off from them."""
    return options.farm is not None or options.remote_cache is not None


def _languages(target: Target) -> list[str]:
    return ["C", "CXX", *(name.upper() for name in ("cuda", "hip") if name in target.backends)]


def launcher_entries(target: Target, toolchain: Toolchain) -> dict[str, str]:
    """CMake's launcher entries for the languages of a target."""
    tool = toolchain.tool(toolchain.options.launcher)
    languages = _languages(target)
    return {f"CMAKE_{language}_COMPILER_LAUNCHER": str(tool.path) for language in languages} if tool else {}


def path_flags(target: Target, options: BuildOptions, *, source: Path) -> dict[str, str]:
    """Compiler flags that keep the source tree's path out of ``__FILE__``, added to what the recipe sets.

    None with ccache, which hands the compiler relative paths: there a map would spoil what two trees share.
    """
    if options.launcher == "ccache":
        return {}
    map_ = f"-ffile-prefix-map={source}=."
    flags = {"C": map_, "CXX": map_, "CUDA": f"-Xcompiler={map_}", "HIP": map_}
    written = dict(target.entries)
    names = {f"CMAKE_{language}_FLAGS": flags[language] for language in _languages(target)}
    return {name: f"{written.get(name, '')} {flag}".strip() for name, flag in names.items()}


def shader_entries(toolchain: Toolchain, context: Context) -> dict[str, str]:
    """Glslc behind our own cache of shaders, at a place that is the same for every tree."""
    glslc = toolchain.tool("glslc")
    if glslc is None or toolchain.options.launcher == "none":
        return {}
    state = glslc.path.resolve().stat()
    identity = f"{glslc.path.resolve()} {glslc.version} {state.st_size} {state.st_mtime_ns}"
    script = Path(shader_cache.__file__)
    words = [sys.executable, "-I", "-S", str(script), str(glslc.path), identity, str(context.home.root / "shaders")]
    text = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    wrapper = context.home.root / "tools" / f"glslc-{key_of(identity)[:12]}" / "glslc"
    if not wrapper.is_file() or wrapper.read_text(encoding="utf-8") != text:
        with atomic_write(wrapper, mode=0o755) as handle:
            handle.write(text.encode())
    return {"Vulkan_GLSLC_EXECUTABLE": str(wrapper)}


def launcher_env(options: BuildOptions, *, source: Path, context: Context) -> dict[str, str]:
    """Environment of the launcher.

    ccache: paths relative to the folder that holds all source trees, and the working folder left out of the hash, so
    that the same file in another tree is a hit. A prefix map would differ between the trees and spoil it.
    """
    if options.launcher != "ccache":
        return {}
    common = context.home.src.resolve()
    settings = {
        "CCACHE_DIR": str(context.home.ccache),
        "CCACHE_BASEDIR": str(common if source.is_relative_to(common) else source.parent),
        "CCACHE_NOHASHDIR": "1",
    }
    if options.remote_cache:
        settings["CCACHE_REMOTE_STORAGE"] = options.remote_cache
    return settings
