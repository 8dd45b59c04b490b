"""TOML with positions: the values from the standard library, the line of each key from a scan of the text."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Location = tuple[str | int, ...]

_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.?)""")
_QUOTES = ('"""', "'''", '"', "'")


@dataclass(frozen=True)
class Document:
    """A TOML file: its values, and the line where each key stands."""

    path: Path
    values: dict[str, Any]
    lines: dict[Location, int]

    def line_of(self, where: Sequence[str | int]) -> int:
        """The line of a key, or of the nearest thing around it that has one (1 for the file)."""
        place = tuple(where)
        while place:
            if place in self.lines:
                return self.lines[place]
            place = place[:-1]
        return 1


def read_document(path: Path) -> Document:
    """Read a TOML file.

    Raises RecipeError, with the line, for text that is no TOML, and for a file that cannot be read.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as exc:
        raise RecipeError(f"{path} is not UTF-8 text (byte {exc.start}).", hint="Save the file as UTF-8.") from exc
    except OSError as exc:
        raise RecipeError(
            f"{path} cannot be read: {exc.strerror}.", hint="Check the path and its permissions."
        ) from exc
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(exc))
        line = found.group(1) if found else str(text.count("\n") + 1)
        reason = re.sub(r"\s*\(at [^)]*\)", "", str(exc))
        raise RecipeError(
            f"{path}:{line}: not valid TOML: {reason}.", hint="Mend that line; strings need quotes."
        ) from exc
    return Document(path=path, values=values, lines=_locate(text))


def _locate(text: str) -> dict[Location, int]:
    """The line of every table header and key; the text is known to be valid TOML."""
    lines: dict[Location, int] = {}
    counts: dict[Location, int] = {}
    table: Location = ()
    open_quote = ""
    depth = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not open_quote and not depth:
            stripped = line.strip()
            if stripped.startswith("[["):
                table = _enter(_keys(stripped[2:]), counts, array=True)
                lines.setdefault(table, number)
                continue
            if stripped.startswith("["):
                table = _enter(_keys(stripped[1:]), counts, array=False)
                lines.setdefault(table, number)
                continue
            if stripped and not stripped.startswith("#"):
                keys = _keys(stripped)
                for end in range(1, len(keys) + 1):
                    lines.setdefault((*table, *keys[:end]), number)
        open_quote, depth = _scan(line, open_quote, depth)
    return lines


def _keys(text: str) -> tuple[str, ...]:
    keys: list[str] = []
    position = 0
    while match := _PART.match(text, position):
        keys.append(next(group for group in match.groups()[:3] if group is not None))
        position = match.end()
        if not match.group(4):
            break
    return tuple(keys)


def _enter(keys: tuple[str, ...], counts: dict[Location, int], *, array: bool) -> Location:
    """A header's location: names, each followed by the index of the last element where it is an array of tables."""
    place: Location = ()
    for index, key in enumerate(keys):
        place = (*place, key)
        if array and index == len(keys) - 1:
            counts[place] = counts.get(place, -1) + 1
        if place in counts:
            place = (*place, counts[place])
    return place


def _scan(line: str, quote: str, depth: int) -> tuple[str, int]:
    """Follow strings and brackets through a line: the quote still open at its end, and the depth of brackets."""
    position = 0
    while position < len(line):
        if quote:
            if line[position] == "\\" and quote[0] == '"':
                position += 2
                continue
            if line.startswith(quote, position):
                position += len(quote)
                quote = ""
                continue
        else:
            quote = next((each for each in _QUOTES if line.startswith(each, position)), "")
            if quote:
                position += len(quote)
                continue
            if line[position] == "#":
                break
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(line[position], 0)
        position += 1
    return (quote if len(quote) == 3 else ""), depth
