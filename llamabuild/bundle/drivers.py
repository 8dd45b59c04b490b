"""The NVIDIA driver that a bundle's own CUDA code needs, arch by arch, told before anybody downloads a release."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamabuild.build.drivers import driver_floor
from llamabuild.elf.device_code import read_device_code
from llamabuild.elf.read import is_elf, read_elf

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

UNKNOWN = "unknown"

_RUNTIME = re.compile(r"^libcudart\.so\.(\d+)$")


def driver_floors(files: Iterable[Path], *, toolkit: str) -> dict[str, str]:
    """The oldest driver for each kind of code in ``files``: ``sm_86`` (SASS), ``compute_86`` (PTX) → ``525.60.13``.

    Cards of a SASS arch need that arch's floor; cards that no SASS is for run PTX, which the driver compiles and for
    which it has to be as new as the toolkit. ``toolkit``: the version of nvcc, empty for a build that does not tell;
    SASS is then judged by the CUDA major that the files are linked with. Floors that are not known are ``unknown``.

    Raises ElfError for a damaged file.
    """
    sass: set[str] = set()
    ptx: set[str] = set()
    linked = ""
    for path in files:
        if not is_elf(path):
            continue
        elf = read_elf(path)
        linked = next((match[1] for name in elf.needed if (match := _RUNTIME.match(name))), linked)
        if (code := read_device_code(elf)) is not None:
            sass.update(arch for arch, _ in code.sass)
            ptx.update(arch for arch, _ in code.ptx)
    # Machine code needs what the major's first release came with.
    by_major = toolkit or (f"{linked}.0" if linked else "")
    found = {f"sm_{arch}": driver_floor(by_major, (f"{arch}-real",)) for arch in sorted(sass, key=_order)}
    found |= {f"compute_{arch}": driver_floor(toolkit, (f"{arch}-virtual",)) for arch in sorted(ptx, key=_order)}
    return {name: floor or UNKNOWN for name, floor in found.items()}


def _order(arch: str) -> tuple[int, str]:
    return int(re.sub(r"\D", "", arch) or 0), arch
