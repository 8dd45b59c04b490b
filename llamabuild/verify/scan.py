"""One pass over a folder: every file is read once, and digest, ELF facts, device code and content patterns share it.

Files are spread over threads (hashing releases the interpreter's lock); a file is held in memory by the block.
"""

from __future__ import annotations

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import LlamabuildError
from llamabuild.elf.device_code import read_device_code
from llamabuild.elf.read import ElfFile, read_elf
from llamabuild.verify.patterns import OVERLAP, Patterns
from llamabuild.verify.subject import File

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llamabuild.verify.subject import Hit

_BLOCK = 4 << 20
_HEAD = 64
_TEXT_LIMIT = 16 << 20
"""Files without ELF headers are searched up to this size: beyond it they are data, kernels or weights."""
_NOT_SEARCHED = (
    ".nv_fatbin",
    "__nv_relfatbin",
    ".hip_fatbin",
    ".text",
    ".eh_frame",
    ".gnu.hash",
    ".rela.dyn",
    ".dynsym",
)
_KERNEL_SUFFIXES = (".co", ".hsaco", ".dat", ".zlib", ".kpack", ".kdb", ".cubin")


@dataclass(frozen=True)
class Tree:
    """What a folder holds, by path relative to it."""

    files: dict[str, File]
    links: dict[str, str]
    folders: dict[str, int]
    special: tuple[str, ...]
    unreadable: dict[str, str]


def scan_tree(
    root: Path,
    *,
    patterns: Patterns,
    workers: int | None = None,
    digests: bool = True,
    on_bytes: Callable[[int], None] | None = None,
) -> Tree:
    """Read everything below ``root``.

    Without ``digests`` only headers are read, and contents are not searched. ``on_bytes`` gets the size of each block
    read, from any thread.
    """
    regular: list[tuple[str, Path, os.stat_result]] = []
    links: dict[str, str] = {}
    folders = {"": root.stat().st_mode}
    special: list[str] = []
    unreadable: dict[str, str] = {}
    for folder, names, leaves in os.walk(root, onerror=lambda exc: _note(unreadable, exc, root)):
        for name in sorted([*names, *leaves]):
            path = Path(folder, name)
            relative = os.path.relpath(path, root)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                links[relative] = os.readlink(path)  # noqa: PTH115 - a Path would tidy the text
            elif stat.S_ISDIR(status.st_mode):
                folders[relative] = status.st_mode
            elif stat.S_ISREG(status.st_mode):
                regular.append((relative, path, status))
            else:
                special.append(relative)
    # The biggest first: a library of a gigabyte that is begun last would leave the other cores idle.
    regular.sort(key=lambda each: -each[2].st_size)
    with ThreadPoolExecutor(max_workers=workers or os.cpu_count() or 1) as pool:
        results = list(
            pool.map(lambda each: _read_or_note(*each, patterns=patterns, digests=digests, on_bytes=on_bytes), regular)
        )
    files: dict[str, File] = {}
    for (relative, _, _), result in zip(regular, results, strict=True):
        if isinstance(result, File):
            files[relative] = result
        else:
            unreadable[relative] = result
    return Tree(
        files=dict(sorted(files.items())),
        links=dict(sorted(links.items())),
        folders=dict(sorted(folders.items())),
        special=tuple(sorted(special)),
        unreadable=dict(sorted(unreadable.items())),
    )


def _note(unreadable: dict[str, str], exc: OSError, root: Path) -> None:
    unreadable[os.path.relpath(exc.filename or root, root)] = exc.strerror or str(exc)


def _read_or_note(
    relative: str,
    path: Path,
    status: os.stat_result,
    *,
    patterns: Patterns,
    digests: bool,
    on_bytes: Callable[[int], None] | None,
) -> File | str:
    try:
        return read_file(relative, path, status, patterns=patterns, digests=digests, on_bytes=on_bytes)
    except OSError as exc:
        return exc.strerror or str(exc)


def read_file(
    relative: str,
    path: Path,
    status: os.stat_result,
    *,
    patterns: Patterns,
    digests: bool = True,
    on_bytes: Callable[[int], None] | None = None,
) -> File:
    """Read one file; without ``digests`` its headers alone.

    A damaged ELF file is no error here: its reason is kept for a check to tell.
    """
    with path.open("rb") as handle:
        head = handle.read(_HEAD)
    elf: ElfFile | None = None
    elf_error = ""
    device = None
    if head[:4] == b"\x7fELF":
        try:
            elf = read_elf(path)
            device = read_device_code(elf)
        except LlamabuildError as exc:
            elf_error = exc.message.replace(str(path), relative)
    digest = ""
    hits: tuple[Hit, ...] = ()
    if digests:
        ranges = _ranges(relative, elf, head, status.st_size) if patterns.searching else ()
        digest, hits = _digest_and_search(path, ranges=ranges, patterns=patterns, on_bytes=on_bytes)
    return File(
        path=relative,
        real=path,
        size=status.st_size,
        mode=status.st_mode,
        sha256=digest,
        head=head,
        elf=elf,
        elf_error=elf_error,
        device=device,
        hits=hits,
    )


def _ranges(relative: str, elf: ElfFile | None, head: bytes, size: int) -> tuple[tuple[int, int], ...]:
    """Which bytes are worth searching: not machine code, not code for a GPU."""
    if relative.endswith(_KERNEL_SUFFIXES):
        return ()
    if elf is None:
        return ((0, size),) if size <= _TEXT_LIMIT and head[:4] != b"\x7fELF" else ()
    if elf.machine in {"EM_AMDGPU", "EM_CUDA", "224", "190"}:
        return ()
    if not elf.sections:
        return tuple((part.offset, part.offset + part.file_size) for part in elf.loads if "x" not in part.flags)
    return tuple(
        (section.offset, section.offset + section.size)
        for section in sorted(elf.sections, key=lambda each: each.offset)
        if section.kind not in {"SHT_NOBITS", "SHT_RELA"} and section.name not in _NOT_SEARCHED and section.size
    )


def _digest_and_search(
    path: Path,
    *,
    ranges: Sequence[tuple[int, int]],
    patterns: Patterns,
    on_bytes: Callable[[int], None] | None,
) -> tuple[str, tuple[Hit, ...]]:
    digest = hashlib.sha256()
    hits: dict[Hit, None] = {}
    place = 0
    tail = b""
    with path.open("rb", buffering=0) as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
            if on_bytes is not None:
                on_bytes(len(block))
            for start, stop in ranges:
                if start < place + len(block) and stop > place:
                    # A match may straddle two blocks, so the end of the one before is searched again.
                    before = tail if start < place else b""
                    text = before + block[max(0, start - place) : stop - place]
                    base = max(start, place) - len(before)
                    hits.update(dict.fromkeys(patterns.search(text, base=base)))
            tail = block[-OVERLAP:]
            place += len(block)
    return digest.hexdigest(), tuple(hits)
