"""The oldest NVIDIA driver that a bundle runs on, from what is embedded in it and the toolkit that made it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamabuild.build.drivers import BLACKWELL_FLOOR, MAJOR_FLOORS, TOOLKIT_FLOORS, driver_key

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        floor = MAJOR_FLOORS.get(major, f"unknown for CUDA {major}")
        if min(map(_number, sass)) >= 100 and floor in MAJOR_FLOORS.values():
            floor = max(floor, BLACKWELL_FLOOR, key=driver_key)
        parts.append(floor)
        if (
            floor in MAJOR_FLOORS.values()
            and driver_key(floor) < driver_key(BLACKWELL_FLOOR)
            and max(map(_number, sass)) >= 100
        ):
            parts.append(f"{BLACKWELL_FLOOR} for sm_100 and later")
    beyond = [arch for arch in ptx if arch not in sass]
    if beyond or not sass:
        floor = TOOLKIT_FLOORS.get((major, minor), f"unknown for CUDA {major}.{minor}")
        parts.append(f"{floor} for cards that are served by PTX" if sass else floor)
    return ", ".join(parts)


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch) or 0)
