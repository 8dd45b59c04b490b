"""A walk through a GGUF file's header in windows: what is skipped is not read, and nothing is believed unchecked."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import UsageError
from llamabuild.runtime.gguf_source import short_name

if TYPE_CHECKING:
    from llamabuild.runtime.gguf_source import ByteSource

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TYPE_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")

_KEPT_NUMBERS = 4096
"""Arrays up to this length are kept: they hold a value a layer. Vocabularies are far longer."""
_KEPT_STRINGS = 64
_KEPT_BYTES = 8 << 20
"""All kept strings together: a chat template is 20 KiB."""
MOST_KEYS = 1 << 16
_MOST_STRINGS = 1 << 24
"""No vocabulary has as many; a sparse file of zeros could claim a string in every eight bytes."""
LONGEST_NAME = 1 << 16
_DEEPEST = 4


class GgufError(UsageError):
    """A file that is no GGUF, is cut short, or has a header that contradicts itself."""


@dataclass(frozen=True)
class Array:
    """An array of the header: its element type and count; its values only where it is short."""

    element: str
    count: int
    values: tuple[Any, ...] | None = None


class Cursor:
    """Walks through a file in windows; what is skipped is not read."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._window = b""
        self._base = 0
        self._at = 0
        self._order = "<"
        self._kept = 0
        self.read_bytes = 0

    @property
    def position(self) -> int:
        """Where it stands, in bytes from the file's start."""
        return self._base + self._at

    def error(self, what: str, *, hint: str = "The file is damaged or no model; get it again.") -> GgufError:
        """An error that names the file and the place."""
        return GgufError(f"{short_name(self._source.name)}: {what} (at byte {self.position}).", hint=hint)

    def swap(self) -> None:
        """Read big-endian from here on."""
        self._order = ">"

    def take(self, size: int, what: str) -> bytes:
        """The next ``size`` bytes; an error that names ``what`` where the file ends before."""
        if self._at + size > len(self._window):
            self._fill(size, what)
        self._at += size
        return self._window[self._at - size : self._at]

    def number(self, code: str, what: str) -> Any:
        """A number in one of struct's formats."""
        form = self._order + code
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def count(self, what: str, *, least: int, most: int) -> int:
        """A count whose items take at least ``least`` bytes each."""
        count: int = self.number("Q", f"the number of {what}")
        self._hold(count, least, what)
        if count > most:
            raise self.error(f"it claims {count} {what}; no model has more than {most}")
        return count

    def text(self, what: str, *, longest: int) -> str:
        """A string with its length before it; bytes that are no UTF-8 are replaced."""
        size: int = self.number("Q", what)
        if size > self._source.size - self.position:
            raise self.error(f"{what} is {size} bytes long, past the end of the file")
        if size > longest:
            raise self.error(f"{what} is {size} bytes long; {longest} is the most")
        return self.take(size, what).decode(errors="replace")

    def value(self, kind: int, key: str) -> Any:
        """A key's value of one of the file format's types."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], f"{key[:60]!r}")
        if kind == _STRING:
            return self._kept_text(key)
        if kind == _ARRAY:
            return self._array(key, depth=1)
        raise self.error(f"{key[:60]!r} has the type {kind}, which does not exist")

    def _kept_text(self, key: str) -> str:
        value = self.text(f"{key[:60]!r}", longest=_KEPT_BYTES)
        self._kept += len(value)
        if self._kept > _KEPT_BYTES:
            raise self.error(f"its strings are larger than {_KEPT_BYTES >> 20} MiB together")
        return value

    def _array(self, key: str, *, depth: int) -> Array:
        kind = self.number("I", f"the element type of {key[:60]!r}")
        if kind in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[kind])
            count: int = self.number("Q", f"the length of {key[:60]!r}")
            self._hold(count, width, f"elements of {key[:60]!r}")
            if depth == 1 and count <= _KEPT_NUMBERS:
                raw = self.take(count * width, f"{key[:60]!r}")
                return Array(TYPE_NAMES[kind], count, struct.unpack(f"{self._order}{count}{_SCALARS[kind]}", raw))
            self._skip_to(self.position + count * width)
            return Array(TYPE_NAMES[kind], count)
        if kind == _STRING:
            count = self.count(f"strings of {key[:60]!r}", least=8, most=_MOST_STRINGS)
            if depth == 1 and count <= _KEPT_STRINGS:
                return Array("string", count, tuple(self._kept_text(key) for _ in range(count)))
            self._skip_strings(count, key)
            return Array("string", count)
        if kind == _ARRAY:
            if depth >= _DEEPEST:
                raise self.error(f"{key[:60]!r} has arrays in arrays deeper than {_DEEPEST}")
            count = self.count(f"arrays of {key[:60]!r}", least=12, most=MOST_KEYS)
            for _ in range(count):
                self._array(key, depth=depth + 1)
            return Array("array", count)
        raise self.error(f"{key[:60]!r} has the element type {kind}, which does not exist")

    def _hold(self, count: int, least: int, what: str) -> None:
        left = self._source.size - self.position
        if count * least > left:
            raise self.error(f"it claims {count} {what}, and {left} bytes are left")

    def _skip_strings(self, count: int, key: str) -> None:
        # The one loop that runs a vocabulary's length: locals, no calls but one.
        unpack = struct.Struct(self._order + "Q").unpack_from
        while count:
            self._fill(8, f"the strings of {key[:60]!r}")
            window, at = self._window, self._at
            last = len(window) - 8
            while count and at <= last:
                at += 8 + unpack(window, at)[0]
                count -= 1
            self._skip_to(self._base + at)

    def _skip_to(self, position: int) -> None:
        if position > self._source.size:
            raise self.error(f"a string or array runs to byte {position}, past the end of the file")
        ahead = position - self._base
        if ahead <= len(self._window):
            self._at = ahead
        else:
            self._window, self._base, self._at = b"", position, 0

    def _fill(self, size: int, what: str) -> None:
        """Make ``size`` bytes from here available."""
        if self._at + size <= len(self._window):
            return
        position = self.position
        if position + size > self._source.size:
            raise self.error(f"it ends in {what}")
        rest = self._window[self._at :]
        want = max(size, min(self._source.block, self._source.size - position)) - len(rest)
        more = self._source.read(position + len(rest), want)
        self.read_bytes += len(more)
        self._window, self._base, self._at = rest + more, position, 0
        if len(self._window) < size:
            raise self.error(f"it ends in {what}")
