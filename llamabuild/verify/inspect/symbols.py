"""Facts that llama.cpp's binaries carry as symbols: build number, commit, and which backends are linked in."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

from llamabuild.bundle.tensile import literals
from llamabuild.core.errors import LlamabuildError
from llamabuild.elf.read import opened, read_symbols

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.elf.read import DynamicSymbol

_R_RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027}
_REGISTRAR = re.compile(r"^ggml_backend_([a-z0-9]+)_reg$")
_NO_BACKENDS = frozenset({"dev", "buft", "load", "is", "get", "set", "register", "device"})


def linked_backends(path: Path) -> dict[str, bool]:
    """Backends by their registration function: name → whether the file defines it (False: it needs another to).

    Static symbols are looked at where there are any, so that a program that exports nothing is understood too.
    """
    found: dict[str, bool] = {}
    for name, defined in _all_symbols(path):
        match = _REGISTRAR.match(name)
        if match and match[1] not in _NO_BACKENDS:
            found[match[1]] = found.get(match[1], False) or defined
    return found


def holds_backend(path: Path, name: str) -> bool:
    """Whether a backend is linked into a program or library, which may be stripped.

    By its registration function where there are symbols; else by the names of its source files, which ggml's
    assertions leave in every build (``ggml/src/ggml-cpu/ops.cpp``). HIP's are CUDA's.
    """
    if linked_backends(path).get("cuda" if name == "hip" else name):
        return True
    mark = f"ggml-{'cuda' if name == 'hip' else name}/".encode()
    return any(mark in block for block in literals(path))


def build_identity(path: Path) -> tuple[int | None, str | None]:
    """The build number and commit that llama.cpp's common library was compiled with, read from its data.

    ``LLAMA_BUILD_NUMBER`` is an int, ``LLAMA_COMMIT`` a pointer to a text (upstream's ``common/build-info.cpp.in``).
    """
    try:
        wanted = {
            symbol.name: symbol
            for symbol in read_symbols(path)
            if symbol.defined and symbol.name in {"LLAMA_BUILD_NUMBER", "LLAMA_COMMIT"}
        }
        if not wanted:
            return None, None
        with opened(path) as elf:
            return _number(elf, wanted.get("LLAMA_BUILD_NUMBER")), _text(elf, wanted.get("LLAMA_COMMIT"))
    except LlamabuildError:
        return None, None


def _all_symbols(path: Path) -> list[tuple[str, bool]]:
    try:
        names = [(symbol.name, symbol.defined) for symbol in read_symbols(path)]
        with opened(path) as elf:
            table = next((section for section in elf.iter_sections() if section["sh_type"] == "SHT_SYMTAB"), None)
            if table is not None:
                texts: bytes = elf.get_section(table["sh_link"]).data()
                # A symbol table of a static program has a hundred thousand names: only those looked for are decoded.
                found = re.finditer(rb"\0(ggml_backend_[a-z0-9]+_reg)(?=\0)", texts)
                names += [(match[1].decode(), True) for match in found]
    except LlamabuildError:
        return []
    return names


def _at(elf: Any, address: int, size: int) -> bytes:
    for segment in elf.iter_segments("PT_LOAD"):
        start = address - segment["p_vaddr"]
        if start >= 0 and start + size <= segment["p_filesz"]:
            elf.stream.seek(segment["p_offset"] + start)
            return bytes(elf.stream.read(size))
    return b""


def _number(elf: Any, symbol: DynamicSymbol | None) -> int | None:
    data = _at(elf, symbol.value, 4) if symbol is not None else b""
    return int(struct.unpack("<i", data)[0]) if len(data) == 4 else None


def _text(elf: Any, symbol: DynamicSymbol | None) -> str | None:
    if symbol is None:
        return None
    address = _pointer(elf, symbol.value)
    if not address:
        return None
    text = _at(elf, address, 41).partition(b"\0")[0] or _at(elf, address, 10).partition(b"\0")[0]
    return text.decode("ascii", errors="replace") or None


def _pointer(elf: Any, place: int) -> int:
    """The address that a relocation puts at ``place``, or what stands there in a file that needs no relocation."""
    kind = _R_RELATIVE.get(elf.header["e_machine"])
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_RELA" or kind is None:
            continue
        data = section.data()
        for offset, info, addend in struct.iter_unpack("<QQq", data[: len(data) - len(data) % 24]):
            if offset == place and info & 0xFFFFFFFF == kind:
                return int(addend)
    stored = _at(elf, place, 8)
    return int(struct.unpack("<Q", stored)[0]) if len(stored) == 8 else 0
