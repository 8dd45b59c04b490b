"""The grammar of arch names: what CUDA and HIP take in a recipe and on the command line, and what they must not get."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CUDA = re.compile(r"[1-9]\d{1,2}[af]?(?:-real|-virtual)?", re.ASCII)
"""What ``CMAKE_CUDA_ARCHITECTURES`` takes for one arch."""
_CUDA_OTHER = re.compile(
    r"(?:sm_|compute_)?(?P<major>\d{1,2})\.?(?P<minor>\d)(?P<rest>[af]?(?:-real|-virtual)?)", re.ASCII
)
_GFX = re.compile(r"(?P<gfx>gfx[1-9][0-9a-f]{2,3})(?P<features>(?::(?:sramecc|xnack)[+-])*)")

FAMILIES: dict[str, tuple[str, ...]] = {
    "gfx90x": ("gfx900", "gfx906", "gfx908", "gfx90a"),
    "gfx94x": ("gfx940", "gfx941", "gfx942"),
    "gfx101x": ("gfx1010", "gfx1011", "gfx1012"),
    "gfx103x": ("gfx1030", "gfx1031", "gfx1032", "gfx1034"),
    "gfx110x": ("gfx1100", "gfx1101", "gfx1102", "gfx1103"),
    "gfx115x": ("gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    "gfx120x": ("gfx1200", "gfx1201"),
    "gfx10-3-generic": ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"),
    "gfx11-generic": ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}
"""Families as TheRock (``gfx110X-all``, ``gfx110X-dgpu``) and LLVM's AMDGPU target list (``-generic``) name them."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with an arch as written."""

    message: str
    """A clause that names it."""
    advice: str
    """What to write in its place: a clause in lower case, without a full stop."""


def arch_fault(arch: str, *, backend: str, single: bool) -> Fault | None:
    """What is wrong with ``arch`` for a backend (``cuda`` or ``hip``); None when it can be used as it is.

    ``single`` is the target's ``single-arch``. AMD's targets take one arch whatever it says: the kernels of the bundled
    libraries are those of one.
    """
    names = [name for name in re.split(r"[,;\s]+", arch) if name]
    if len(names) < 2:
        names = [arch]
    elif backend == "hip":
        return Fault(
            f"{arch!r} is a list, and an AMD target takes exactly one arch", "make a target for each, with its own arch"
        )
    elif single:
        return Fault(
            f"{arch!r} is a list, and this target takes exactly one arch",
            "choose one of them, or set single-arch = false in the recipe's target",
        )
    elif arch != ",".join(names):
        # The list is a part of file names.
        return Fault(f"{arch!r} is a list with more than commas between the archs", f"write {','.join(names)}")
    check = _cuda_fault if backend == "cuda" else _gfx_fault
    fault = next((found for name in names if (found := check(name)) is not None), None)
    if fault is None and len(set(names)) != len(names):
        fault = Fault(f"{arch!r} names an arch twice", "name each arch once")
    return fault


def family_members(name: str) -> tuple[str, ...] | None:
    """The archs of a family by any of its usual names, or None for what is no family."""
    key = name.lower()
    for family, members in FAMILIES.items():
        if key == family or (family.endswith("x") and key.startswith(f"{family}-")):
            return members
    return None


def listed(words: Iterable[str]) -> str:
    """Words as in a sentence: ``a, b or c``."""
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last


def _cuda_fault(name: str) -> Fault | None:
    if _CUDA.fullmatch(name):
        return None
    other = _CUDA_OTHER.fullmatch(name)
    if other:
        advice = f"write it as CMake does: {other['major']}{other['minor']}{other['rest']}"
    elif name in {"native", "all", "all-major"}:
        advice = "a pinned build names its arch; --arch auto takes the one of the GPU in this host"
    elif name.startswith("gfx"):
        advice = "that is an AMD arch; this target has the backend cuda"
    else:
        advice = "write it as CMake does: 86, 86-real (SASS alone), 86-virtual (PTX alone), 120a"
    return Fault(f"{name!r} is not a CUDA arch", advice)


def _gfx_fault(name: str) -> Fault | None:
    members = family_members(name)
    if members is not None:
        return Fault(
            f"{name} is a family, and code for a sibling arch links, loads and then crashes",
            f"choose the card's own: {listed(members)}",
        )
    found = _GFX.fullmatch(name)
    if found is None:
        return Fault(f"{name!r} is not an AMD arch", "write one gfx name, such as gfx1201")
    if found["features"]:
        return Fault(
            f"{name!r} names a mode of the arch beside it", f"write {found['gfx']}: code without a mode runs in each"
        )
    return None
