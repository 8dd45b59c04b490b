"""GPU code inside an ELF file, found without any vendor's tool: SASS, PTX, gfx, and references to split-off kernels."""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.elf import fatbin_hip, fatbin_nv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llamabuild.elf.read import ElfFile

KPACK_SECTION = ".rocm_kpack_ref"
"""Where a library whose kernels were split off (TheRock) says which ``.kpack`` files hold them."""


@dataclass(frozen=True)
class DeviceCode:
    """What one ELF file carries. Counts are numbers of images, by arch, sorted by arch."""

    sass: tuple[tuple[str, int], ...] = ()
    ptx: tuple[tuple[str, int], ...] = ()
    gfx: tuple[tuple[str, int], ...] = ()
    emptied: tuple[tuple[str, int], ...] = ()
    """gfx code objects that were overwritten by zeros, to thin a file to one arch; not counted in ``gfx``."""
    compressed: int = 0
    """How many of all images are compressed."""
    split_off: bool = False
    """The kernels are in ``.kpack`` files beside the library, which ``bundle/kpack.py`` finds."""
    problem: str = ""
    """Why the lists are not complete; empty when they are."""

    @property
    def carried(self) -> bool:
        """Whether there is device code here, or should be."""
        return bool(self.sass or self.ptx or self.gfx or self.emptied or self.split_off or self.problem)


def read_device_code(elf: ElfFile) -> DeviceCode | None:
    """Read the device code of a file whose headers were read.

    None where it has no section that could hold any. Memory use does not depend on the file's size.
    """
    names = (fatbin_nv.SECTION, fatbin_hip.SECTION, KPACK_SECTION)
    found = {
        section.name: (section.offset, section.size)
        for section in elf.sections
        if section.name in names and section.kind != "SHT_NOBITS"
    }
    if not found:
        return None
    with elf.path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _read(data, found)


def _read(data: mmap.mmap, sections: Mapping[str, tuple[int, int]]) -> DeviceCode:
    counts: dict[str, Counter[str]] = {"sass": Counter(), "ptx": Counter(), "gfx": Counter(), "emptied": Counter()}
    compressed = 0
    problem = ""
    try:
        if fatbin_nv.SECTION in sections:
            offset, size = sections[fatbin_nv.SECTION]
            for image in fatbin_nv.iter_images(data, offset=offset, size=size):
                if image.kind != "other":
                    counts[image.kind][image.arch] += 1
                compressed += image.compressed
        if fatbin_hip.SECTION in sections:
            offset, size = sections[fatbin_hip.SECTION]
            for code in fatbin_hip.iter_images(data, offset=offset, size=size):
                counts["emptied" if code.emptied else "gfx"][code.arch] += 1
                compressed += code.compressed
    except ValueError as exc:
        problem = str(exc)
    return DeviceCode(
        sass=tuple(sorted(counts["sass"].items())),
        ptx=tuple(sorted(counts["ptx"].items())),
        gfx=tuple(sorted(counts["gfx"].items())),
        emptied=tuple(sorted(counts["emptied"].items())),
        compressed=compressed,
        split_off=KPACK_SECTION in sections,
        problem=problem,
    )
