"""What an edit must not change, read with pyelftools so that the writer's bugs cannot certify themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llamabuild.elf.read import DynamicSymbol, ElfFile, opened, read_elf, read_symbols

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_STT_TLS = 6


@dataclass(frozen=True)
class Snapshot:
    """An ELF file before or after an edit."""

    facts: ElfFile
    symbols: tuple[DynamicSymbol, ...]
    versions: tuple[tuple[object, ...], ...]
    """Every row of ``.gnu.version_r`` and ``.gnu.version_d``: library, name, index, flags, hash."""


def take_snapshot(path: Path) -> Snapshot:
    """Read what ``changes`` compares.

    Raises ElfError for whatever cannot be parsed.
    """
    with opened(path) as elf:
        versions = tuple(_version_rows(elf))
    return Snapshot(facts=read_elf(path), symbols=read_symbols(path), versions=versions)


def changes(before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """What differs apart from DT_RPATH and DT_RUNPATH, each in a few words; empty when nothing that counts does.

    A writer may add segments, and may make room by moving all that follows by one distance (LIEF does). Apart from
    that, what was mapped keeps its address and alignment, symbols with it, and every mapped segment's file offset and
    address stay equal modulo the alignment, without which the loader refuses the file.
    """
    old, new = before.facts, after.facts
    found = list(_symbol_changes(before.symbols, after.symbols))
    moved = _distances(before, after)
    if len(moved - {0}) > 1:
        found.append("symbols moved by different distances")
    if before.versions != after.versions:
        found.append("the version tables differ")
    names = ("needed", "soname", "interp", "machine", "kind", "textrel", "bind_now", "execstack")
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in names]
    found += [f"{name} was {was!r} and is {now!r}" for name, was, now in pairs if was != now]
    moved |= {0}
    kept = {(load.address - distance, load.align) for load in new.loads for distance in moved}
    if any((load.address, load.align) not in kept for load in old.loads if load.memory_size):
        found.append("a mapped segment lost its address or its alignment")
    if any(load.align > 1 and (load.offset - load.address) % load.align for load in new.loads):
        found.append("a mapped segment's offset and address disagree")
    for kind in ("PT_TLS", "PT_GNU_RELRO"):
        was, now = _sizes(old, kind), _sizes(new, kind)
        if was != now:
            found.append(f"{kind} was {was} bytes and is {now}")
    return tuple(found)


def _sizes(facts: ElfFile, kind: str) -> list[int]:
    return [segment.memory_size for segment in facts.segments if segment.kind == kind]


def _symbol_changes(old: tuple[DynamicSymbol, ...], new: tuple[DynamicSymbol, ...]) -> Iterator[str]:
    if len(old) != len(new):
        yield f"there were {len(old)} dynamic symbols and are {len(new)}"
        return
    for one, other in zip(old, new, strict=True):
        if replace(one, value=0) != replace(other, value=0):
            yield f"dynamic symbol {one.name} differs"
            return


def _distances(before: Snapshot, after: Snapshot) -> set[int]:
    """How far code and defined symbols moved; thread-local symbols are offsets and stay."""
    code = [[load.address for load in one.facts.loads if "x" in load.flags][:1] for one in (before, after)]
    return {new - old for old, new in zip(*code, strict=False)} | {
        new.value - old.value
        for old, new in zip(before.symbols, after.symbols, strict=False)
        if old.defined and old.value and old.info & 0xF != _STT_TLS
    }


def _version_rows(elf: Any) -> Iterator[tuple[object, ...]]:
    from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for need, rows in section.iter_versions():
                for row in rows:
                    yield need.name, row.name, row["vna_other"], row["vna_flags"], row["vna_hash"]
        elif isinstance(section, GNUVerDefSection):
            for definition, rows in section.iter_versions():
                names = tuple(row.name for row in rows)
                yield names, definition["vd_ndx"], definition["vd_flags"], definition["vd_hash"]
