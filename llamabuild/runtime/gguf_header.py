"""The header of a GGUF file, read without its arrays.

The layout is that of ``ggml/include/gguf.h``: nothing is aligned between key-value pairs (``general.alignment`` is for
the tensor data alone), an array is a type, a count and its elements, and arrays of arrays are legal. Versions 2 and 3
have the same layout; big-endian files show themselves by a version that is a multiple of 65,536.

Every count is held against the bytes that are left before anything is read, so that a lying header costs neither time
nor memory.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from llamabuild.runtime.ggml_types import GGML_TYPES, GgmlType
from llamabuild.runtime.gguf_cursor import LONGEST_NAME, MOST_KEYS, Cursor, GgufError
from llamabuild.runtime.gguf_source import open_source, short_name, split_names

if TYPE_CHECKING:
    from llamabuild.runtime.gguf_source import ByteSource

_MOST_TENSORS = 1 << 18
_MOST_DIMS = 4


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
    cursor = Cursor(source)
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
    key_count = cursor.count("keys", least=13, most=MOST_KEYS)
    keys: dict[str, Any] = {}
    for number in range(key_count):
        key = cursor.text(f"key {number}", longest=LONGEST_NAME)
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


def _read_tensors(cursor: Cursor, count: int) -> list[Tensor]:
    tensors: list[Tensor] = []
    seen = set()
    for number in range(count):
        name = cursor.text(f"the name of tensor {number}", longest=LONGEST_NAME)
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
