"""Arch names as users write them: what CUDA and HIP take, and what they must not be given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_CUDA = re.compile(r"(?P<number>[1-9]\d{1,2})(?P<feature>[af]?)(?P<kind>-real|-virtual)?")
_CUDA_OTHER = re.compile(
    r"(?:sm_|compute_)?(?P<major>\d{1,2})\.?(?P<minor>\d)(?P<rest>[af]?(?:-real|-virtual)?)", re.ASCII
)
_GFX = re.compile(r"gfx[1-9][0-9a-f]{2,3}")

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


_APUS = frozenset(
    (
        *("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037"),
        *("gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    )
)
"""AMD's processors with a GPU inside, from Raven Ridge on (LLVM's AMDGPU target list; 1037 is the kernel's alone)."""
_CARDS = frozenset(
    (
        *("gfx803", "gfx900", "gfx904", "gfx906", "gfx908", "gfx90a", "gfx941", "gfx950"),
        *("gfx1010", "gfx1011", "gfx1012", "gfx1030", "gfx1031", "gfx1032", "gfx1034"),
        *("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"),
    )
)
"""AMD's GPUs with memory of their own. Not here: gfx940 and gfx942, which are MI300A (an APU) and MI300X at once."""


def check_archs(arch: str, *, backend: str, single: bool, where: str) -> tuple[str, ...]:
    """Split an arch as written into single archs, each checked; ``backend`` is ``cuda`` or ``hip``.

    Raises UsageError for a list where one arch is wanted, for a family, and for anything that is no arch name.
    """
    names = tuple(name.strip() for name in re.split(r"[,;]", arch))
    if single and len(names) > 1:
        raise UsageError(
            f"{where}: {arch!r} is a list, and this target takes exactly one arch.",
            hint="Choose one of them, or set single-arch = false in the recipe's target.",
        )
    check = _check_cuda if backend == "cuda" else _check_gfx
    for name in names:
        check(name, where=where)
    if len(set(names)) != len(names):
        raise UsageError(f"{where}: {arch!r} names an arch twice.", hint="Name each arch once.")
    return names


def gfx_name(target_version: int) -> str:
    """The gfx name of a ``gfx_target_version`` of the kernel's topology files, such as 110000 or 90010.

    Decimal ``MMmmss`` with minor and stepping written in hex in the name (Linux, ``kfd_topology.c``).
    """
    major, minor, stepping = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def shares_memory(gfx: str) -> bool | None:
    """Whether a GPU of that gfx name works in the system's memory; None where the name does not tell."""
    return True if gfx in _APUS else False if gfx in _CARDS else None


def family_members(name: str) -> tuple[str, ...] | None:
    """The archs of a family by any of its usual names, or None for what is no family."""
    key = name.lower()
    for family, members in FAMILIES.items():
        if key == family or (family.endswith("x") and key.startswith(f"{family}-")):
            return members
    return None


def _check_cuda(name: str, *, where: str) -> None:
    if _CUDA.fullmatch(name):
        return
    other = _CUDA_OTHER.fullmatch(name)
    if other:
        hint = f"Write it as CMake does: {other['major']}{other['minor']}{other['rest']}."
    elif name in {"native", "all", "all-major"}:
        hint = "A pinned build names its arch; --arch auto takes the one of the GPU in this host."
    elif name.startswith("gfx"):
        hint = "That is an AMD arch; this target has the backend cuda."
    else:
        hint = "Write it as CMake does: 86, 86-real (SASS alone), 86-virtual (PTX alone), 120a; or auto."
    raise UsageError(f"{where}: {name!r} is not a CUDA arch.", hint=hint)


def _check_gfx(name: str, *, where: str) -> None:
    members = family_members(name)
    if members is not None:
        raise UsageError(
            f"{where}: {name} is a family, and code for a sibling arch links, loads and then crashes.",
            hint=f"Choose the card's own: {listed(members)}.",
        )
    if not _GFX.fullmatch(name):
        raise UsageError(f"{where}: {name!r} is not an AMD arch.", hint="Write one gfx name, such as gfx1201, or auto.")


def listed(words: Iterable[str]) -> str:
    """Words as in a sentence: ``a, b or c``."""
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last
