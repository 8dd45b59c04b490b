"""What an arch, as a recipe or CMake spells it, asks of the device code in a file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llamabuild.bundle.thin import serves

_CUDA = re.compile(r"^(?:sm_|compute_)?(\d{2,3}[af]?)(-real|-virtual)?$")
_GFX = re.compile(r"^gfx[0-9a-f]{3,5}(?:-generic|-[0-9]+-generic)?(?::[a-z]+[+-])*$")


@dataclass(frozen=True)
class Wanted:
    """Archs asked for: SASS and PTX by CUDA's numbers, gfx by name."""

    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    gfx: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Words that name no single arch (``native``, ``all-major``, …)."""


def parse_archs(text: str) -> Wanted:
    """Parse ``86``, ``86-real``, ``86-virtual;90a``, ``gfx1100,gfx1201`` as CMake takes them.

    A plain CUDA number means both SASS and PTX.
    """
    sass: list[str] = []
    ptx: list[str] = []
    gfx: list[str] = []
    unknown: list[str] = []
    for word in filter(None, re.split(r"[;,\s]+", text)):
        cuda = _CUDA.match(word)
        if cuda:
            if cuda[2] != "-virtual":
                sass.append(cuda[1])
            if cuda[2] != "-real":
                ptx.append(cuda[1])
        elif _GFX.match(word):
            gfx.append(word)
        else:
            unknown.append(word)
    return Wanted(tuple(sass), tuple(ptx), tuple(gfx), tuple(unknown))


def suits(asked: str, embedded: str) -> bool:
    """Whether embedded CUDA code is what was asked for.

    ``120`` asked and ``120a`` embedded is upstream's own rewriting; ``120a`` asked and ``120`` embedded is a mismatch.
    """
    return embedded == asked or (asked.isdigit() and embedded.rstrip("af") == asked)


def runs_on(embedded: str, arch: str) -> bool:
    """Whether SASS for ``embedded`` runs on a GPU of ``arch``: same major, not newer; ``a`` binds to one."""
    if embedded.endswith("a"):
        return embedded.rstrip("a") == arch.rstrip("af")
    have, want = int(embedded.rstrip("f")), int(arch.rstrip("af"))
    return have // 10 == want // 10 and have <= want


def gfx_suits(asked: str, embedded: str) -> bool:
    """Whether gfx code runs on the arch asked for: by its name or its family, and no feature (``xnack``) against it."""
    features = embedded.split(":")[1:]
    settings = asked.split(":")[1:]
    return serves(embedded, asked) and all(
        f"{each[:-1]}{'-' if each[-1] == '+' else '+'}" not in features for each in settings
    )
