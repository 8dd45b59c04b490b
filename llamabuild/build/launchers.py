"""Compile caches and compile farms: what stands before the compiler, and how it is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
