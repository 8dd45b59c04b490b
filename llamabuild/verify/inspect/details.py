"""What a build folder tells beside its backends: compilers, toolkit, source, commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamabuild.build.cmake_cache import is_false

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.build.cmake_cache import CMakeCache
    from llamabuild.verify.inspect.compile_commands import Compiled


def build_details(
    cache: CMakeCache, compiled: Compiled | None, folder: Path, *, problems: Sequence[str], optional: Sequence[str]
) -> dict[str, Any]:
    """Keys of the JSON document as they are; ``optional``: searches that found nothing and that nobody misses."""
    compilers = {
        language.lower(): cache.value(f"CMAKE_{language}_COMPILER")
        for language in ("C", "CXX", "CUDA", "HIP")
        if cache.value(f"CMAKE_{language}_COMPILER")
    }
    source = cache.value("CMAKE_HOME_DIRECTORY")
    number = cache.value("LLAMA_BUILD_NUMBER")
    details: dict[str, Any] = {
        "configured": _is_configured(folder),
        "build_type": cache.value("CMAKE_BUILD_TYPE") or None,
        "generator": cache.value("CMAKE_GENERATOR") or None,
        "compilers": compilers,
        "toolkit": _toolkit(cache),
        "shared": shared.is_on if (shared := cache.declared("BUILD_SHARED_LIBS")) else None,
        "plugins": bool((plugins := cache.declared("GGML_BACKEND_DL")) and plugins.is_on),
        "source": source or None,
        "commit": cache.value("LLAMA_BUILD_COMMIT") or _commit_of(Path(source) if source else None),
        "build_number": int(number) if number.isdigit() else None,
        "optional_not_found": list(optional),
        "cmake_problems": [*cache.problems, *problems],
    }
    if compiled is not None:
        details["compiled"] = {
            "commands": compiled.commands,
            "native_files": len(compiled.native_files),
            "sass": list(compiled.sass),
            "ptx": list(compiled.ptx),
            "gfx": list(compiled.gfx),
        }
    moved = cache.value("CMAKE_CACHEFILE_DIR")
    details["moved_from"] = moved if moved and Path(moved).resolve() != folder.resolve() else None
    return details


def _is_configured(folder: Path) -> bool:
    """Whether configuring reached its end: the files for the build tool are written last."""
    return any((folder / name).exists() for name in ("build.ninja", "Makefile", "ALL_BUILD.vcxproj"))


def _toolkit(cache: CMakeCache) -> str | None:
    for name in ("CUDAToolkit_BIN_DIR", "CMAKE_CUDA_COMPILER", "ROCM_PATH", "hip_DIR", "Vulkan_LIBRARY"):
        value = cache.value(name)
        if value and not is_false(value):
            return value
    return None


def _commit_of(source: Path | None) -> str | None:
    """The commit that the source tree has checked out now, read from its files; it may have moved on since."""
    if source is None:
        return None
    git = source / ".git"
    try:
        if git.is_file():
            git = (source / git.read_text().partition(":")[2].strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head or None
        name = head.partition(":")[2].strip()
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        for place in (git / name, common / name):
            if place.is_file():
                return place.read_text().strip()
        for line in (common / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split()[0]
    except OSError:
        return None
    return None
