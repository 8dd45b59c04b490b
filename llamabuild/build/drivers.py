"""NVIDIA drivers: the oldest that runs what a CUDA toolkit made, and the one that this host has.

Source: NVIDIA's CUDA toolkit release notes, tables "CUDA Toolkit and Corresponding Driver Versions" and "Minimum
Required Driver Version for CUDA Minor Version Compatibility".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamabuild.build.devices import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.build.host import Host
    from llamabuild.build.model import Target
    from llamabuild.core.console import Console

MAJOR_FLOORS = {12: "525.60.13", 13: "580.65.06"}
"""SASS runs on the floor of its toolkit's major version."""

TOOLKIT_FLOORS = {
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

BLACKWELL_FLOOR = "570"
"""Cards from compute capability 10.0 on are known to no older driver, whatever the toolkit."""


def driver_floor(toolkit: str, archs: Sequence[str]) -> str:
    """The oldest Linux driver that runs code of a toolkit (``13.0``) for archs as written; empty when unknown.

    A plain or ``-real`` arch has SASS, which the driver of the toolkit's major runs; ``-virtual`` alone has PTX, which
    needs a driver as new as the toolkit. Blackwell (100 and later) needs 570 whatever the toolkit.
    """
    numbers = re.findall(r"\d+", toolkit)[:2]
    if len(numbers) < 2:
        return ""
    major, minor = int(numbers[0]), int(numbers[1])
    if any(arch.endswith("-virtual") for arch in archs):
        floor = TOOLKIT_FLOORS.get((major, minor), "")
    else:
        floor = MAJOR_FLOORS.get(major, "")
    blackwell = any(int(number[0]) >= 100 for arch in archs if (number := re.match(r"\d+", arch)))
    return max(floor, BLACKWELL_FLOOR, key=driver_key) if blackwell and floor else floor


def driver_key(version: str) -> tuple[int, ...]:
    """A driver's version as something that compares."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def host_driver(host: Host) -> str:
    """The version of the NVIDIA driver that is loaded, as its kernel module says it; empty where there is none.

    The open module says ``… Open Kernel Module for x86_64  580.65.06  …``, the other one ``… x86_64 Kernel Module  …``.
    """
    told = re.search(r"Kernel Module\b.*?\s(\d{3,}(?:\.\d+)+)\s", readable(host, "/proc/driver/nvidia/version") + "\n")
    return told[1] if told else ""


def note_old_driver(target: Target, toolkit: str, host: Host, console: Console) -> None:
    """Say when this host's own driver is too old for what will be built; compiling needs none at all."""
    floor = driver_floor(toolkit, [arch.strip() for arch in re.split(r"[,;]", target.arch)])
    driver = host_driver(host)
    if driver and floor and driver_key(driver) < driver_key(floor):
        console.note(
            f"this host's NVIDIA driver {driver} is older than {floor}, which what CUDA {toolkit} makes for "
            f"{target.arch} needs: it is built, and does not run here"
        )
