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


def launcher_entries(target: Target, toolchain: Toolchain) -> dict[str, str]:
    """CMake's launcher entries for the languages of a target."""
    tool = toolchain.tool(toolchain.options.launcher)
    languages = ["C", "CXX", *(name.upper() for name in ("cuda", "hip") if name in target.backends)]
    return {f"CMAKE_{language}_COMPILER_LAUNCHER": str(tool.path) for language in languages} if tool else {}


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
