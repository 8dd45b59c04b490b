"""Archs on the command line and in hosts: refused where they cannot be used, and what a GPU's name tells about it."""

from __future__ import annotations

from llamabuild.core.errors import UsageError
from llamabuild.recipe.archs import arch_fault, listed

__all__ = ["check_archs", "gfx_name", "listed", "shares_memory"]

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


def check_archs(arch: str, *, backend: str, single: bool, where: str) -> None:
    """Refuse an arch as written that a target cannot take; ``backend`` is ``cuda`` or ``hip``.

    Raises UsageError for a list where one arch is wanted, for a family, and for anything that is no arch name.
    """
    fault = arch_fault(arch, backend=backend, single=single)
    if fault is not None:
        raise UsageError(f"{where}: {fault.message}.", hint=f"{fault.advice[0].upper()}{fault.advice[1:]}.")


def gfx_name(target_version: int) -> str:
    """The gfx name of a ``gfx_target_version`` of the kernel's topology files, such as 110000 or 90010.

    Decimal ``MMmmss`` with minor and stepping written in hex in the name (Linux, ``kfd_topology.c``).
    """
    major, minor, stepping = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def shares_memory(gfx: str) -> bool | None:
    """Whether a GPU of that gfx name works in the system's memory; None where the name does not tell."""
    return True if gfx in _APUS else False if gfx in _CARDS else None
