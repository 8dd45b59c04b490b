"""The rpath of each ELF in a bundle: to the folders that hold what it needs, from its own place, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from llamabuild.elf.read import read_elf

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from llamabuild.bundle.plan import Draft
    from llamabuild.elf.closure import Closure
    from llamabuild.elf.read import ElfFile


def set_rpaths(draft: Draft, closure: Closure, *, own: str) -> None:
    """Give every ELF that needs something of the bundle the entries that lead there from its own place.

    A library that needs nothing from it and looks nowhere is not touched at all. Files of the origin ``own`` always get
    one, because they may open each other by name.
    """
    facts: dict[Path, ElfFile] = {path.resolve(): elf for path, elf in closure.files.items()}
    asked: dict[str, set[str]] = {}
    for edge in closure.edges:
        source = draft.places.get(edge.source.resolve())
        target = draft.places.get(edge.target.resolve()) if edge.target else None
        if source and target:
            asked.setdefault(source, set()).add(str(PurePosixPath(target).parent))
    for destination, entry in draft.entries.items():
        if not entry.edit or entry.source is None:
            continue
        real = entry.source.resolve()
        elf = facts.get(real) or read_elf(entry.source)
        wanted = asked.get(draft.places[real], set()) | ({"lib"} if entry.origin == own else set())
        rpath = rpath_from(str(PurePosixPath(destination).parent), wanted)
        touched = entry.origin == own or rpath is not None or elf.rpath is not None or elf.runpath is not None
        draft.entries[destination] = replace(entry, rpath=rpath, edit=touched and elf.dynamic)


def rpath_from(home: str, folders: Iterable[str]) -> str | None:
    """The rpath that leads from one folder of a bundle to others, the own one first; None where there are none."""
    entries = []
    for folder in sorted(folders, key=lambda name: (name != home, name)):
        relative = os.path.relpath(folder, home)
        entries.append("$ORIGIN" if relative == "." else f"$ORIGIN/{relative}")
    return ":".join(entries) or None
