"""The header of a GGUF file, read without its arrays.

The layout is that of ``ggml/include/gguf.h``: nothing is aligned between key-value pairs (``general.alignment`` is for
the tensor data alone), an array is a type, a count and its elements, and arrays of arrays are legal. Versions 2 and 3
have the same layout; big-endian files show themselves by a version that is a multiple of 65,536.

Every count is held against the bytes that are left before anything is read, so that a lying header costs neither time
nor memory.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import UsageError
from llamabuild.runtime.ggml_types import GGML_TYPES, GgmlType
from llamabuild.runtime.gguf_source import open_source, short_name, split_names

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
_MOST_KEYS = 1 << 16
_MOST_TENSORS = 1 << 18
_MOST_STRINGS = 1 << 24
"""No vocabulary has as many; a sparse file of zeros could claim a string in every eight bytes."""
_LONGEST_NAME = 1 << 16
_DEEPEST = 4
_MOST_DIMS = 4


class GgufError(UsageError):
    """A file that is no GGUF, is cut short, or has a header that contradicts itself."""


@dataclass(frozen=True)
class Array:
    """An array of the header: its element type and count; its values only where it is short."""

    element: str
    count: int
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Tensor:
    """A tensor as the header describes it. ``shape`` is in ggml's order: the row's length first."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int
    """From the start of the data section, in bytes."""
    size: int
    """In bytes; for a type that is not known here, up to the next tensor."""

    @property
    def type(self) -> str:
        """``Q4_K``, or ``type 99`` for one that is not known here."""
        known = GGML_TYPES.get(self.type_number)
        return known.name if known else f"type {self.type_number}"


@dataclass(frozen=True)
class GgufFile:
    """One file's header."""

    name: str
    size: int
    version: int
    big_endian: bool
    keys: dict[str, Any]
    """Scalars, strings and `Array`."""
    tensors: tuple[Tensor, ...]
    data_offset: int
    """Where the data section starts, in bytes."""
    read_bytes: int = field(compare=False, default=0)
    """How much of the file was read to know all this."""

    @property
    def missing(self) -> int:
        """Bytes by which the file is too short for its tensors; 0 when it is whole."""
        end = max((tensor.offset + tensor.size for tensor in self.tensors), default=0)
        return max(0, self.data_offset + end - self.size) if self.tensors else 0


def read_gguf(name: str) -> tuple[GgufFile, ...]:
    """Read the headers of a file, or of all parts of a split one, from a path or an HTTP address.

    Raises GgufError (one sentence that names the place) for anything that is no sound header, UsageError when a part
    cannot be read.
    """
    files = []
    for part in split_names(name):
        with open_source(part) as source:
            files.append(read_header(source))
    count = files[0].keys.get("split.count")
    if isinstance(count, int) and count > 1 and count != len(files):
        raise GgufError(
            f"{short_name(name)} says that it is one of {count} parts, and its name does not.",
            hint="Give the parts their names back: NAME-00001-of-0000N.gguf.",
        )
    return tuple(files)


def read_header(source: ByteSource) -> GgufFile:
    """Read one header. Raises GgufError."""
    cursor = _Cursor(source)
    if cursor.take(4, "the magic") != b"GGUF":
        raise cursor.error("it does not start with GGUF", hint="Give a model file in GGUF format.")
    version = cursor.number("I", "the version")
    big_endian = version & 0xFFFF == 0 and version != 0
    if big_endian:
        cursor.swap()
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in {2, 3}:
        raise cursor.error(f"it is version {version}; 2 and 3 are known", hint="Convert the model again.")
    tensor_count = cursor.count("tensors", least=24, most=_MOST_TENSORS)
    key_count = cursor.count("keys", least=13, most=_MOST_KEYS)
    keys: dict[str, Any] = {}
    for number in range(key_count):
        key = cursor.text(f"key {number}", longest=_LONGEST_NAME)
        if not key or key in keys:
            raise cursor.error(f"key {number} ({key[:60]!r}) is {'there twice' if key else 'empty'}")
        keys[key] = cursor.value(cursor.number("I", f"the type of {key[:60]!r}"), key)
    alignment = keys.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 30 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {str(alignment)[:40]}, not a power of two")
    raw = _read_tensors(cursor, tensor_count)
    start = cursor.position + (-cursor.position % alignment if raw else 0)
    return GgufFile(
        name=source.name,
        size=source.size,
        version=version,
        big_endian=big_endian,
        keys=keys,
        tensors=_with_sizes(raw, room=max(0, source.size - start)),
        data_offset=start,
        read_bytes=cursor.read_bytes,
    )


def _read_tensors(cursor: _Cursor, count: int) -> list[Tensor]:
    tensors: list[Tensor] = []
    seen = set()
    for number in range(count):
        name = cursor.text(f"the name of tensor {number}", longest=_LONGEST_NAME)
        if not name or name in seen:
            raise cursor.error(f"tensor {number} ({name[:60]!r}) is {'there twice' if name else 'without a name'}")
        seen.add(name)
        dims = cursor.number("I", f"the dimensions of {name[:60]!r}")
        if dims > _MOST_DIMS:
            raise cursor.error(f"tensor {name[:60]!r} has {dims} dimensions; ggml has {_MOST_DIMS}")
        shape = tuple(cursor.number("Q", f"the shape of {name[:60]!r}") for _ in range(dims))
        kind = cursor.number("I", f"the type of {name[:60]!r}")
        offset = cursor.number("Q", f"the offset of {name[:60]!r}")
        known = GGML_TYPES.get(kind)
        size = _size_of(shape, known) if known else -1
        if size >= 1 << 63 or offset >= 1 << 63:
            raise cursor.error(f"tensor {name[:60]!r} of shape {'x'.join(map(str, shape))} is larger than any file")
        tensors.append(Tensor(name, shape, kind, offset, size))
    return tensors


def _size_of(shape: tuple[int, ...], kind: GgmlType) -> int:
    return kind.row_bytes(shape[0] if shape else 1) * prod(shape[1:])


def _with_sizes(tensors: list[Tensor], *, room: int) -> tuple[Tensor, ...]:
    """Give tensors of an unknown type the bytes up to the next one."""
    if all(tensor.size >= 0 for tensor in tensors):
        return tuple(tensors)
    starts = sorted({tensor.offset for tensor in tensors} | {room})
    following = dict(itertools.pairwise(starts))
    return tuple(
        tensor
        if tensor.size >= 0
        else Tensor(
            tensor.name,
            tensor.shape,
            tensor.type_number,
            tensor.offset,
            max(0, following.get(tensor.offset, room) - tensor.offset),
        )
        for tensor in tensors
    )


class _Cursor:
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
        return self._base + self._at

    def error(self, what: str, *, hint: str = "The file is damaged or no model; get it again.") -> GgufError:
        return GgufError(f"{short_name(self._source.name)}: {what} (at byte {self.position}).", hint=hint)

    def swap(self) -> None:
        self._order = ">"

    def take(self, size: int, what: str) -> bytes:
        if self._at + size > len(self._window):
            self._fill(size, what)
        self._at += size
        return self._window[self._at - size : self._at]

    def number(self, code: str, what: str) -> Any:
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
        size: int = self.number("Q", what)
        if size > self._source.size - self.position:
            raise self.error(f"{what} is {size} bytes long, past the end of the file")
        if size > longest:
            raise self.error(f"{what} is {size} bytes long; {longest} is the most")
        return self.take(size, what).decode(errors="replace")

    def value(self, kind: int, key: str) -> Any:
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
            count = self.count(f"arrays of {key[:60]!r}", least=12, most=_MOST_KEYS)
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
