"""AMD archs in the names of files and folders."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ARCH = re.compile(r"gfx(?:[0-9]+-(?:[0-9]+-)?generic|[0-9]+[0-9a-f]*)(?:-xnack[+-])?(?![0-9A-Za-z])")


def arch_of(name: str) -> str | None:
    """The arch in a file's or folder's name, with its xnack variant; None for a name without one.

    ``Kernels.so-000-gfx90a-xnack+.hsaco`` → ``gfx90a-xnack+``.
    """
    found = _ARCH.search(name)
    return found[0] if found else None


def base_arch(arch: str) -> str:
    """Without features: ``gfx90a:sramecc+:xnack-`` and ``gfx90a-xnack+`` → ``gfx90a``."""
    return arch.partition(":")[0].partition("-xnack")[0]


def available_archs(folder: Path) -> tuple[str, ...]:
    """Archs with an index file in a ``library`` folder or in its folders of single archs, sorted; no variants."""
    found = {
        base_arch(arch)
        for path in (*folder.glob("TensileLibrary_lazy_*"), *folder.glob("*/TensileLibrary_lazy_*"))
        if (arch := arch_of(path.name))
    }
    return tuple(sorted(found, key=arch_order))


def arch_order(arch: str) -> tuple[int, str]:
    """Sorts gfx803, gfx90a, gfx1030, gfx1100 as people list them."""
    return len(arch), arch
