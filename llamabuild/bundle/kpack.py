"""Libraries whose device code was split off into ``.kpack`` archives, as TheRock does it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.bundle.archs import base_arch
from llamabuild.elf.read import is_elf, read_elf

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class KpackResult:
    """The archives of device code that a library was split from."""

    library: str
    wanted: tuple[str, ...]
    """Paths as the library names them, with ``@GFXARCH@`` replaced, relative to the root."""
    present: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there is device code for the arch: one archive, or no need for one."""
        return not self.wanted or bool(self.present)


def simulate_kpack(root: Path, library: Path, arch: str) -> KpackResult:
    """Which ``.kpack`` archives a library asks for, and which of them are there.

    The section ``.rocm_kpack_ref`` holds a MessagePack map whose ``kpack_search_paths`` are relative to the library's
    folder; the runtime puts the arch for ``@GFXARCH@`` (ROCm's ``rocm-kpack``). Raises ElfError for a damaged library.
    """
    paths = kpack_paths(library)
    wanted = [Path(os.path.normpath(library.parent / path.replace("@GFXARCH@", base_arch(arch)))) for path in paths]
    return KpackResult(
        library=relative_name(library, root),
        wanted=tuple(relative_name(path, root) for path in wanted),
        present=tuple(relative_name(path, root) for path in wanted if path.is_file()),
    )


def kpack_paths(library: Path) -> tuple[str, ...]:
    """The archives that a library names, as written; empty for one that carries its own device code."""
    if not is_elf(library):
        return ()
    section = read_elf(library).section(".rocm_kpack_ref")
    if section is None:
        return ()
    with library.open("rb") as handle:
        data = os.pread(handle.fileno(), min(section.size, 1 << 20), section.offset)
    key = data.find(b"kpack_search_paths")
    return tuple(_packed_strings(data, key + len(b"kpack_search_paths"))) if key >= 0 else ()


def _packed_strings(data: bytes, place: int) -> Iterator[str]:
    """The strings of the MessagePack array at ``place``; stops where the data does not read as one."""
    if place >= len(data):
        return
    head = data[place]
    if head & 0xF0 == 0x90:
        count, place = head & 0x0F, place + 1
    elif head == 0xDC:
        count, place = int.from_bytes(data[place + 1 : place + 3], "big"), place + 3
    else:
        return
    for _ in range(count):
        if place >= len(data):
            return
        head = data[place]
        if head & 0xE0 == 0xA0:
            length, place = head & 0x1F, place + 1
        elif head in {0xD9, 0xDA}:
            width = head - 0xD8
            length, place = int.from_bytes(data[place + 1 : place + 1 + width], "big"), place + 1 + width
        else:
            return
        yield data[place : place + length].decode(errors="replace")
        place += length


def relative_name(path: Path, root: Path) -> str:
    """A path below ``root`` by its name there; any other as it is."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
