"""The oldest NVIDIA driver that a bundle runs on, from what is embedded in it and the toolkit that made it.

Source: NVIDIA's CUDA toolkit release notes, tables "CUDA Toolkit and Corresponding Driver Versions" and "Minimum
Required Driver Version for CUDA Minor Version Compatibility".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAJOR = {12: "525.60.13", 13: "580.65.06"}
"""SASS runs on the floor of its toolkit's major version."""

_TOOLKIT = {
    (12, 4): "550.54.14",
    (12, 5): "555.42.02",
    (12, 6): "560.28.03",
    (12, 8): "570.26",
    (12, 9): "575.51.03",
    (13, 0): "580.65.06",
    (13, 1): "590.44.01",
    (13, 2): "595.45.04",
    (13, 3): "610.43.02",
    (13, 4): "616.00",
}
"""PTX is compiled by the driver, which has to be as new as the toolkit. The last one is from a preview's notes."""

_BLACKWELL = "570"
"""Cards from compute capability 10.0 on are known to no older driver, whatever the toolkit."""


def driver_floor(*, sass: Sequence[str], ptx: Sequence[str], toolkit: str) -> str:
    """The floor in words, for ``sass`` and ``ptx`` archs (``86``, ``120a``) made by toolkit ``13.0`` or ``13.0.88``.

    Empty where there is no code for NVIDIA cards; says so where the toolkit's floor is not known.
    """
    if not sass and not ptx:
        return ""
    found = re.match(r"(\d+)\.(\d+)", toolkit)
    if found is None:
        return "unknown: the toolkit's version is not recorded"
    major, minor = int(found[1]), int(found[2])
    parts = []
    if sass:
        floor = _MAJOR.get(major, f"unknown for CUDA {major}")
        if min(map(_number, sass)) >= 100 and floor in _MAJOR.values():
            floor = max(floor, _BLACKWELL, key=_key)
        parts.append(floor)
        if floor in _MAJOR.values() and _key(floor) < _key(_BLACKWELL) and max(map(_number, sass)) >= 100:
            parts.append(f"{_BLACKWELL} for sm_100 and later")
    beyond = [arch for arch in ptx if arch not in sass]
    if beyond or not sass:
        floor = _TOOLKIT.get((major, minor), f"unknown for CUDA {major}.{minor}")
        parts.append(f"{floor} for cards that are served by PTX" if sass else floor)
    return ", ".join(parts)


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch) or 0)


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
