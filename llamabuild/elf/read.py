"""Read an ELF file's facts with pyelftools: what it needs, where it looks, what it demands of its host.

Nothing is read that is not asked for. A library of gigabytes costs what its headers, its dynamic section and its
version tables cost; symbols are read by their own function.
"""

from __future__ import annotations

import contextlib
import errno
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from llamabuild.core.errors import LlamabuildError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_MAGIC = b"\x7fELF"

DEVICE_SECTIONS = frozenset({".nv_fatbin", ".nvFatBinSegment", "__nv_relfatbin", ".hip_fatbin", ".hipFatBinSegment"})
"""Sections that hold code for a GPU, or point at it (clang's and nvcc's names)."""

_VERSION = re.compile(r"^(?P<family>[A-Za-z_]+)_(?P<number>\d+(?:\.\d+)*)$")


class ElfError(LlamabuildError):
    """A file is not an ELF file, is cut short, or its tables contradict each other."""


@dataclass(frozen=True)
class Segment:
    """A program header: sizes and addresses in bytes, flags as ``rwx``."""

    kind: str
    """``PT_LOAD``, ``PT_DYNAMIC``, … as the ELF specification names it."""
    offset: int
    address: int
    file_size: int
    memory_size: int
    align: int
    flags: str


@dataclass(frozen=True)
class Section:
    """A section header."""

    name: str
    kind: str
    address: int
    offset: int
    size: int
    """Bytes in memory; a ``SHT_NOBITS`` section has none in the file."""


@dataclass(frozen=True)
class ElfFile:
    """What a loader, a packager and a reviewer want to know about one ELF file."""

    path: Path
    kind: Literal["executable", "shared", "other"]
    """A position-independent executable is an executable: it has an interpreter, or is marked as one."""
    machine: str
    """``EM_X86_64``, ``EM_AARCH64``, …"""
    bits: Literal[32, 64]
    little_endian: bool
    interp: str | None
    soname: str | None
    needed: tuple[str, ...]
    rpath: str | None
    """DT_RPATH as written; the loader ignores it where DT_RUNPATH stands beside it."""
    runpath: str | None
    version_needs: tuple[tuple[str, str], ...]
    """``(library, version)`` such as ``("libc.so.6", "GLIBC_2.34")``, in the file's order; weak ones left out."""
    segments: tuple[Segment, ...]
    sections: tuple[Section, ...]
    """Empty where the section headers were stripped."""
    dynamic: bool
    """Whether there is a dynamic section at all; a static program has none."""
    textrel: bool
    """The loader has to write into code: refused by hardened kernels and by SELinux."""
    bind_now: bool

    @property
    def execstack(self) -> bool:
        """The file asks for an executable stack, or does not say that it needs none (glibc then grants one)."""
        return not any(segment.kind == "PT_GNU_STACK" and "x" not in segment.flags for segment in self.segments)

    @property
    def relro(self) -> Literal["none", "partial", "full"]:
        """What of the relocated data is read-only once loaded."""
        if not any(segment.kind == "PT_GNU_RELRO" for segment in self.segments):
            return "none"
        return "full" if self.bind_now else "partial"

    @property
    def debug_sections(self) -> tuple[str, ...]:
        """Names of the sections that only a debugger reads; the static symbol table counts."""
        return tuple(
            section.name
            for section in self.sections
            if section.name.startswith((".debug", ".zdebug", ".gnu.debuglto_")) or section.kind == "SHT_SYMTAB"
        )

    @property
    def device_sections(self) -> tuple[Section, ...]:
        """Sections of code for a GPU."""
        return tuple(section for section in self.sections if section.name in DEVICE_SECTIONS)

    @property
    def loads(self) -> tuple[Segment, ...]:
        """The segments that are mapped."""
        return tuple(segment for segment in self.segments if segment.kind == "PT_LOAD")

    def section(self, name: str) -> Section | None:
        """The first section with this name."""
        return next((section for section in self.sections if section.name == name), None)

    def version_floor(self) -> Mapping[str, str]:
        """The highest version this file needs of each family (``GLIBC``, ``GLIBCXX``, ``CXXABI``, …), numbers alone.

        Compared number by number, because ``2.4`` is older than ``2.34``. Names without a number
        (``GLIBC_ABI_DT_RELR``) set no floor.
        """
        floors: dict[str, str] = {}
        for _, version in self.version_needs:
            if found := _VERSION.match(version):
                family, number = found["family"], found["number"]
                if family not in floors or version_key(number) > version_key(floors[family]):
                    floors[family] = number
        return floors


@dataclass(frozen=True)
class DynamicSymbol:
    """A dynamic symbol."""

    name: str
    defined: bool
    binding: Literal["local", "global", "weak", "other"]
    value: int
    size: int
    info: int
    other: int
    version: int
    """Index into the version tables as ``.gnu.version`` holds it, the hidden bit included; 1 where there is none."""


def version_key(number: str) -> tuple[int, ...]:
    """A dotted number in an order: ``2.4`` before ``2.34``."""
    return tuple(int(part) for part in number.split("."))


def is_elf(path: Path) -> bool:
    """Whether a regular file (links are followed) starts as an ELF file does; unreadable and missing ones do not."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as handle:
            return handle.read(4) == _MAGIC
    except OSError:
        return False


def read_elf(path: Path) -> ElfFile:
    """Read one file's facts.

    Raises ElfError for whatever cannot be parsed and OSError for what cannot be opened.
    """
    with opened(path) as elf:
        return _facts(path, elf)


def read_symbols(path: Path) -> tuple[DynamicSymbol, ...]:
    """Read the dynamic symbols in the table's order, the null symbol left out.

    Raises ElfError for whatever cannot be parsed.
    """
    with opened(path) as elf:
        return tuple(_symbols(elf))


def exported_names(path: Path) -> frozenset[str]:
    """Names that other objects can bind to: defined, and not local.

    Raises ElfError for whatever cannot be parsed.
    """
    return frozenset(symbol.name for symbol in read_symbols(path) if symbol.defined and symbol.binding != "local")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Yield pyelftools' ``ELFFile``; whatever it throws at a damaged file becomes an ElfError.

    pyelftools trusts the counts of the headers, so those are held against the file's size first.
    """
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as handle:
        size = _check_header(path, handle)
        try:
            elf = ELFFile(handle)
            _check_tables(path, elf, size=size)
            yield elf
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            # Damaged offsets: pyelftools seeks to places that no file has.
            raise _damaged(path, "a table lies at an impossible place") from exc
        except (LlamabuildError, KeyboardInterrupt):
            raise
        except Exception as exc:
            # Besides its own errors pyelftools lets through whatever bad numbers provoke (assertions, KeyError,
            # UnicodeDecodeError, OverflowError, …), and a damaged file must never end in a traceback.
            raise _damaged(path, str(exc) or type(exc).__name__) from exc


def _damaged(path: Path, why: str) -> ElfError:
    return ElfError(
        f"{path} is a damaged ELF file: {why.splitlines()[0][:200]}.",
        hint="Build or fetch it again; a copy or a download may have been cut short.",
    )


def _check_header(path: Path, handle: BinaryIO) -> int:
    head = handle.read(64)
    if head[:4] != _MAGIC:
        raise ElfError(f"{path} is not an ELF file.", hint="Name a program or a shared library for Linux.")
    if len(head) < 52 or head[4] not in {1, 2} or head[5] not in {1, 2}:
        raise _damaged(path, "its header is cut short or names no known class")
    size = handle.seek(0, 2)
    handle.seek(0)
    return size


def _check_tables(path: Path, elf: Any, *, size: int) -> None:
    header = elf.header
    for what, offset, entry, count in (
        ("program headers", header["e_phoff"], header["e_phentsize"], header["e_phnum"]),
        ("section headers", header["e_shoff"], header["e_shentsize"], header["e_shnum"]),
    ):
        if count and offset + entry * count > size:
            raise _damaged(path, f"its {what} lie past its end ({size} bytes)")
    for segment in elf.iter_segments():
        if segment["p_type"] in {"PT_LOAD", "PT_DYNAMIC"} and segment["p_offset"] + segment["p_filesz"] > size:
            raise _damaged(path, f"a segment lies past its end ({size} bytes)")


def _facts(path: Path, elf: Any) -> ElfFile:
    segments = tuple(_segment(segment) for segment in elf.iter_segments())
    sections = tuple(
        Section(
            name=section.name,
            kind=str(section["sh_type"]),
            address=section["sh_addr"],
            offset=section["sh_offset"],
            size=section["sh_size"],
        )
        for section in elf.iter_sections()
        if section["sh_type"] != "SHT_NULL"
    )
    tags = _dynamic(elf)
    flags = int(tags.get("DT_FLAGS", (0,))[0])
    flags_1 = int(tags.get("DT_FLAGS_1", (0,))[0])
    interp = next((segment.get_interp_name() for segment in elf.iter_segments("PT_INTERP")), None)
    kind: Literal["executable", "shared", "other"] = "other"
    if elf.header["e_type"] == "ET_EXEC" or (elf.header["e_type"] == "ET_DYN" and (interp or flags_1 & 0x08000000)):
        # libc.so.6 has an interpreter too, so that it can be run for its version; its soname tells it apart.
        kind = "shared" if "DT_SONAME" in tags and not flags_1 & 0x08000000 else "executable"
    elif elf.header["e_type"] == "ET_DYN":
        kind = "shared"
    return ElfFile(
        path=path,
        kind=kind,
        machine=str(elf.header["e_machine"]),
        bits=64 if elf.elfclass == 64 else 32,
        little_endian=bool(elf.little_endian),
        interp=interp,
        soname=_text(tags, "DT_SONAME"),
        needed=tuple(str(name) for name in tags.get("DT_NEEDED", ())),
        rpath=_text(tags, "DT_RPATH"),
        runpath=_text(tags, "DT_RUNPATH"),
        version_needs=tuple(_version_needs(elf)),
        segments=segments,
        sections=sections,
        dynamic=bool(tags),
        textrel="DT_TEXTREL" in tags or bool(flags & 0x4),
        bind_now="DT_BIND_NOW" in tags or bool(flags & 0x8) or bool(flags_1 & 0x1),
    )


def _segment(segment: Any) -> Segment:
    flags = segment["p_flags"]
    return Segment(
        kind=str(segment["p_type"]),
        offset=segment["p_offset"],
        address=segment["p_vaddr"],
        file_size=segment["p_filesz"],
        memory_size=segment["p_memsz"],
        align=segment["p_align"],
        flags="".join(letter for letter, bit in (("r", 4), ("w", 2), ("x", 1)) if flags & bit),
    )


def _text(tags: Mapping[str, tuple[str | int, ...]], name: str) -> str | None:
    values = tags.get(name)
    return str(values[0]) if values else None


def _dynamic(elf: Any) -> dict[str, tuple[str | int, ...]]:
    """Every dynamic tag with its values in order, up to DT_NULL: strings where the tag names one, numbers elsewhere."""
    named = {"DT_NEEDED": "needed", "DT_SONAME": "soname", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
    found: dict[str, tuple[str | int, ...]] = {}
    for segment in elf.iter_segments("PT_DYNAMIC"):
        for tag in segment.iter_tags():
            name = str(tag.entry.d_tag)
            if name == "DT_NULL":
                break
            value = getattr(tag, named[name]) if name in named else tag.entry.d_val
            found[name] = (*found.get(name, ()), value)
        break
    return found


def _version_needs(elf: Any) -> Iterator[tuple[str, str]]:
    from elftools.elf.gnuversions import GNUVerNeedSection

    for section in elf.iter_sections():
        if not isinstance(section, GNUVerNeedSection):
            continue
        if section["sh_info"] * 16 > section["sh_size"]:
            raise _damaged(elf.stream.name, "its version table is smaller than its own count")
        for need, versions in section.iter_versions():
            for version in versions:
                if not version["vna_flags"] & 0x2:
                    yield need.name, version.name


def _symbols(elf: Any) -> Iterator[DynamicSymbol]:
    """Unpack ``.dynsym`` whole: pyelftools takes seconds for the tens of thousands of symbols of a real library."""
    table = next((section for section in elf.iter_sections() if section["sh_type"] == "SHT_DYNSYM"), None)
    if table is None:
        return
    order = "<" if elf.little_endian else ">"
    names: bytes = elf.get_section(table["sh_link"]).data()
    versym = next((section for section in elf.iter_sections() if section["sh_type"] == "SHT_GNU_versym"), None)
    data = table.data()
    entry = struct.Struct(order + ("IBBHQQ" if elf.elfclass == 64 else "IIIBBH"))
    data = data[: len(data) - len(data) % entry.size]
    count = len(data) // entry.size
    versions = struct.unpack(f"{order}{count}H", versym.data()[: 2 * count]) if versym is not None else (1,) * count
    bindings: dict[int, Literal["local", "global", "weak"]] = {0: "local", 1: "global", 2: "weak"}
    for index, fields in enumerate(entry.iter_unpack(data)):
        if index == 0:
            continue
        if elf.elfclass == 64:
            name, info, other, home, value, size = fields
        else:
            name, value, size, info, other, home = fields
        end = names.index(0, name)
        yield DynamicSymbol(
            name=names[name:end].decode(errors="surrogateescape"),
            defined=home != 0,
            binding=bindings.get(info >> 4, "other"),
            value=value,
            size=size,
            info=info,
            other=other,
            version=versions[index],
        )
