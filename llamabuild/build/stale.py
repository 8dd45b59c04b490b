"""Whether a build folder may be used again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llamabuild.build.cmake_cache import read_cache
from llamabuild.core.files import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.build.model import Target, Toolchain

STAMP = ".llamabuild-build.json"
"""What a build folder was configured for; written before configuring, so that a killed run is recognised too."""

_ENTRIES = "set of CMake entries"


def stamp_of(source: Path, target: Target, toolchain: Toolchain) -> dict[str, str]:
    """What must be unchanged for a build folder to be used again, by the name it is called in the note."""
    compilers = {
        label: f"{tool.path} {tool.version}"
        for label, name in (
            ("C compiler", "cc"),
            ("C++ compiler", "cxx"),
            ("CUDA compiler", "nvcc"),
            ("HIP compiler", "hipcc"),
            ("ROCm", "rocm"),
            ("shader compiler", "glslc"),
        )
        if (tool := toolchain.tool(name))
    }
    return {
        "source tree": str(source),
        "generator": "Ninja",
        **compilers,
        "toolkit": " ".join("=".join(entry) for entry in toolchain.entries),
        "launcher": f"{toolchain.options.launcher} {toolchain.options.farm or ''}".strip(),
        _ENTRIES: " ".join("=".join(entry) for entry in target.entries),
    }


def write_stamp(folder: Path, stamp: dict[str, str]) -> None:
    """Say in a build folder what it is for."""
    write_json(folder / STAMP, stamp)


def stale_reason(folder: Path, stamp: dict[str, str]) -> str | None:
    """Why a build folder cannot be used for ``stamp``, as the rest of a sentence; None when it can."""
    if not folder.exists():
        return None
    was = _read_stamp(folder)
    if was is None:
        was = _stamp_of_cache(folder)
        if was is None:
            return None
        stamp = {label: value.partition(" ")[0] for label, value in stamp.items() if label in was}
        return _first_difference(was, stamp) or "it was not configured by llamabuild"
    return _first_difference(was, stamp)


def _first_difference(was: dict[str, str], now: dict[str, str]) -> str | None:
    for label in (*now, *was):
        before, after = was.get(label, "none"), now.get(label, "none")
        if before == after:
            continue
        if label == _ENTRIES:
            return f"it was configured with other CMake entries ({_changes(before, after)})"
        return f"it was configured with another {label} ({before}, now {after})"
    return None


def _read_stamp(folder: Path) -> dict[str, str] | None:
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def _stamp_of_cache(folder: Path) -> dict[str, str] | None:
    """A folder that was configured by hand, as far as its cache tells; None where there is no cache."""
    try:
        cache = read_cache(folder / "CMakeCache.txt")
    except OSError:
        return None
    names = {
        "source tree": "CMAKE_HOME_DIRECTORY",
        "generator": "CMAKE_GENERATOR",
        "C compiler": "CMAKE_C_COMPILER",
        "C++ compiler": "CMAKE_CXX_COMPILER",
    }
    return {label: entry.value for label, name in names.items() if (entry := cache.entries.get(name))}


def _changes(before: str, now: str) -> str:
    old, new = set(before.split()), set(now.split())
    changed = sorted(new - old) or [f"without {entry}" for entry in sorted(old - new)]
    return ", ".join(changed[:3])
