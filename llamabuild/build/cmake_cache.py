"""Read CMakeCache.txt as CMake itself does (``cmCacheManager::LoadCache``, ``ParseEntry``), its oddities included.

Tests hold this reader against what ``cmake -LA -N`` makes of the same text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TYPES = frozenset({"BOOL", "PATH", "FILEPATH", "STRING", "INTERNAL", "STATIC", "UNINITIALIZED"})

_QUOTED = re.compile(r'^"([^"]*)":([^=]*)=(.*[^\r\t ]|[\r\t ]*)[\r\t ]*$', re.DOTALL)
_PLAIN = re.compile(r"^([^=:]*):([^=]*)=(.*[^\r\t ]|[\r\t ]*)[\r\t ]*$", re.DOTALL)
_UNTYPED_QUOTED = re.compile(r'^"([^"]*)"=(.*[^\r\t ]|[\r\t ]*)[\r\t ]*$', re.DOTALL)
_UNTYPED = re.compile(r"^([^=]*)=(.*[^\r\t ]|[\r\t ]*)[\r\t ]*$", re.DOTALL)
_GIVEN = "No help, variable specified on the command line."
_FALSE = frozenset({"", "0", "N", "NO", "OFF", "FALSE", "IGNORE", "NOTFOUND"})


@dataclass(frozen=True)
class CacheEntry:
    """One entry."""

    name: str
    kind: str
    """``BOOL``, ``STRING``, …; ``UNINITIALIZED`` for one that was given with -D and never declared by the tree."""
    value: str
    line: int
    help: str = ""

    @property
    def is_declared(self) -> bool:
        """Whether the tree (or CMake) declared it, and so may read it.

        -DNAME=VALUE leaves UNINITIALIZED, -DNAME:BOOL=VALUE this help text, until ``option()`` replaces either.
        """
        return self.kind != "UNINITIALIZED" and not (self.kind == "BOOL" and self.help.startswith(_GIVEN))

    @property
    def is_on(self) -> bool:
        """What ``if(NAME)`` makes of it: everything but a false constant is true."""
        return not is_false(self.value)

    @property
    def is_missing(self) -> bool:
        """Whether a search ended without a find (``…-NOTFOUND``)."""
        return self.value == "NOTFOUND" or self.value.endswith("-NOTFOUND")


@dataclass(frozen=True)
class CMakeCache:
    """A cache file's entries, and the lines that are none."""

    entries: Mapping[str, CacheEntry]
    problems: tuple[str, ...]
    """What CMake itself would complain of, by line."""

    def value(self, name: str, default: str = "") -> str:
        """An entry's value."""
        entry = self.entries.get(name)
        return default if entry is None else entry.value

    def declared(self, name: str) -> CacheEntry | None:
        """The entry, if the tree (or CMake) declared it."""
        entry = self.entries.get(name)
        return entry if entry is not None and entry.is_declared else None

    @property
    def advanced(self) -> frozenset[str]:
        """Names that a user is not shown."""
        ending = "-ADVANCED"
        return frozenset(
            name.removesuffix(ending)
            for name, entry in self.entries.items()
            if name.endswith(ending) and entry.kind == "INTERNAL" and entry.is_on
        )


def is_false(value: str) -> bool:
    """CMake's ``cmIsOff``: the false constants in any case, the empty text, and ``…-NOTFOUND`` in this case alone."""
    return value.upper() in _FALSE - {"NOTFOUND"} or value == "NOTFOUND" or value.endswith("-NOTFOUND")


def read_cache(path: Path) -> CMakeCache:
    """Read a file; bytes that are no UTF-8 are written with escapes. Raises OSError."""
    return parse_cache(path.read_bytes().decode(errors="backslashreplace"))


def parse_cache(text: str) -> CMakeCache:
    """Parse a cache's text."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    entries: dict[str, CacheEntry] = {}
    problems: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index].lstrip(" \t\r")
        if not line or line.startswith("#"):
            index += 1
            continue
        help_lines: list[str] = []
        while line.startswith("//"):
            help_lines.append(line[2:])
            # A help text goes on until a line that is none, and whatever that line is has to be an entry.
            index += 1
            line = lines[index] if index < len(lines) else ""
        entry = _parse_entry(line, index + 1, "".join(help_lines))
        if entry is None:
            problems.append(f"line {index + 1}: {line!r} is no entry")
        else:
            entries[entry.name] = entry
        index += 1
    return CMakeCache(entries=entries, problems=tuple(problems))


def _parse_entry(line: str, number: int, text: str) -> CacheEntry | None:
    if found := _QUOTED.match(line) or _PLAIN.match(line):
        name, kind, value = found.groups()
        kind = kind if kind in TYPES else "STRING"
    elif found := _UNTYPED_QUOTED.match(line) or _UNTYPED.match(line):
        name, value = found.groups()
        kind = "UNINITIALIZED"
    else:
        return None
    if len(value) >= 2 and value[0] == value[-1] == "'":
        value = value[1:-1]
    return CacheEntry(name, kind, value, number, text)
