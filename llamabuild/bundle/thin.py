"""Thin HIP libraries: code objects of other archs become holes, every offset and every kept byte stays.

``.hip_fatbin`` is a row of offload bundles (LLVM, ``clang/docs/ClangOffloadBundler.rst``), each with a table of code
objects, one for each arch. The HIP runtime reads the entry of its own target and no other, so the others can be
zeros; an archive and a file system then pay nothing for them. Only for libraries whose licence allows changes.
The reader here is not the one that verification judges by, so that a mistake of one does not pass the other.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.bundle.archs import arch_order, base_arch
from llamabuild.bundle.copy import punch_hole
from llamabuild.core.errors import BundleError
from llamabuild.elf.device_code import read_device_code
from llamabuild.elf.read import read_elf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SECTION = ".hip_fatbin"
_PLAIN = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED = b"CCOB"
_ENTRY = struct.Struct("<QQQ")
_BLOCK = 1 << 20
_HEAD = 1 << 16
_MOST_ENTRIES = 4096
_GENERIC = re.compile(r"^gfx(?P<family>\d+(?:-\d+)?)-generic$")

_GENERIC_COVERS = {
    "gfx9-generic": frozenset({"gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"}),
    "gfx9-4-generic": frozenset({"gfx940", "gfx941", "gfx942", "gfx950"}),
}
"""Families whose names do not tell their members (LLVM, ``AMDGPUUsage.rst``, "Generic processors")."""


@dataclass(frozen=True)
class CodeObject:
    """One arch's code in an offload bundle."""

    arch: str
    """As the bundle names it: ``gfx90a:xnack-``, ``gfx11-generic``."""
    offset: int
    """From the start of the file."""
    size: int


@dataclass(frozen=True)
class OffloadBundle:
    """A bundle that is not compressed."""

    offset: int
    objects: tuple[CodeObject, ...]
    """Those for a GPU that are not empty."""


@dataclass(frozen=True)
class ThinPlan:
    """What thinning will do to a file."""

    ranges: tuple[tuple[int, int], ...]
    """Offset and size of what becomes zeros, ascending, without overlaps."""
    kept: tuple[str, ...]
    zeroed: tuple[str, ...]
    """Archs of which something is zeroed, sorted."""
    whole: str = ""
    """Why nothing is thinned, where nothing is."""

    @property
    def size(self) -> int:
        """Bytes that become zeros."""
        return sum(size for _, size in self.ranges)


def plan_thinning(path: Path, keep: Sequence[str]) -> ThinPlan:
    """Decide which code objects of a library can go when only the archs in ``keep`` are wanted.

    A bundle without code for any of them keeps all it has; code for a generic arch stays where it could serve one of
    them; what is compressed or not understood is left whole. Reads tables only, no code.

    Raises ElfError for a damaged file.
    """
    section = read_elf(path).section(SECTION)
    if section is None:
        return ThinPlan((), (), (), whole="no device code")
    try:
        bundles = tuple(read_bundles(path))
    except ValueError as exc:
        return ThinPlan((), (), (), whole=str(exc))
    drop: list[CodeObject] = []
    held: list[CodeObject] = []
    for bundle in bundles:
        kept = [one for one in bundle.objects if any(serves(one.arch, arch) for arch in keep)] or list(bundle.objects)
        held += kept
        drop += [one for one in bundle.objects if one not in kept]
    ranges = _without(sorted((one.offset, one.size) for one in drop), sorted((one.offset, one.size) for one in held))
    return ThinPlan(
        ranges=ranges,
        kept=_archs(held),
        zeroed=_archs(drop),
        whole="" if ranges else "each of its offload bundles is for the target alone, or for others alone",
    )


def left_whole(path: Path, keep: Sequence[str]) -> str:
    """What a user should know of a library that keeps code for other archs because it cannot be thinned.

    Empty for one that is thinned, and for one that has no such code. Raises ElfError for a damaged file.
    """
    plan = plan_thinning(path, keep)
    code = read_device_code(read_elf(path)) if plan.whole else None
    if code is None:
        return ""
    others = sorted(
        {base_arch(arch) for arch, _ in code.gfx if not any(serves(arch, one) for one in keep)}, key=arch_order
    )
    if not others and not code.problem:
        return ""
    what = f"the device code of {', '.join(others)}" if others else "all of its device code"
    return f"{path.name} keeps {what}: {plan.whole}"


def serves(candidate: str, arch: str) -> bool:
    """Whether code for ``candidate`` could run on ``arch``: the same processor, or a generic one that may cover it.

    What is no ``gfx`` name (SPIR-V) serves all. Features (``xnack``) are not looked at. A generic name that LLVM's
    list did not have when this was written is taken by its family's first digits, so rather too much is kept than too
    little.
    """
    name, wanted = base_arch(candidate), base_arch(arch)
    if not name.startswith("gfx"):
        return True
    if name in _GENERIC_COVERS:
        return wanted == name or wanted in _GENERIC_COVERS[name]
    if generic := _GENERIC.match(name):
        return wanted.startswith("gfx" + generic["family"].replace("-", ""))
    return name == wanted


def apply_thinning(path: Path, plan: ThinPlan) -> None:
    """Zero the plan's ranges in place and give their blocks back where the file system can."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        for offset, size in plan.ranges:
            if not punch_hole(descriptor, offset=offset, size=size):
                for at in range(0, size, _BLOCK):
                    os.pwrite(descriptor, bytes(min(_BLOCK, size - at)), offset + at)
    finally:
        os.close(descriptor)


def prove_thinned(source: Path, thinned: Path, keep: Sequence[str]) -> None:
    """Compare the kept code objects byte for byte with those of the source, and the others with zeros.

    The two files may differ elsewhere (stripped, another rpath). Raises BundleError for the first difference.
    """
    before, after = tuple(read_bundles(source)), tuple(read_bundles(thinned))
    plan = plan_thinning(source, keep)
    zeroed = set(plan.ranges)
    if len(before) != len(after):
        raise _damaged(thinned, f"it had {len(before)} offload bundles and has {len(after)}")
    with source.open("rb") as one, thinned.open("rb") as other:
        for old, new in zip(before, after, strict=True):
            if [(o.arch, o.size) for o in old.objects] != [(n.arch, n.size) for n in new.objects]:
                raise _damaged(thinned, f"the table of its bundle at byte {new.offset} differs")
            for was, now in zip(old.objects, new.objects, strict=True):
                gone = (was.offset, was.size) in zeroed
                if not _same(one.fileno(), other.fileno(), was, now, zero=gone):
                    what = "is not empty" if gone else "differs"
                    raise _damaged(thinned, f"code for {now.arch} at byte {now.offset} {what}")


def _same(source: int, thinned: int, was: CodeObject, now: CodeObject, *, zero: bool) -> bool:
    at = 0
    while at < was.size:
        if zero and (start := _next_data(thinned, now.offset + at)) > now.offset + at:
            # A hole reads as zeros; reading gigabytes of them would only prove the kernel right.
            at = start - now.offset
            continue
        size = min(_BLOCK, was.size - at)
        block = os.pread(thinned, size, now.offset + at)
        if (block.count(0) != size) if zero else (block != os.pread(source, size, was.offset + at)):
            return False
        at += size
    return True


def _next_data(descriptor: int, offset: int) -> int:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as exc:
        if exc.errno == errno.ENXIO:
            return os.fstat(descriptor).st_size
        return offset


def _damaged(path: Path, why: str) -> BundleError:
    return BundleError(
        f"Thinning {path} went wrong: {why}.", hint="Bundle with --no-thin, and report the library's version."
    )


def read_bundles(path: Path) -> Iterator[OffloadBundle]:
    """The offload bundles of a library, in the file's order; none for a library without device code.

    Raises ValueError, saying why, when any part of the section is not a plain bundle or padding of zeros.
    """
    section = read_elf(path).section(SECTION)
    if section is None:
        return
    end = section.offset + section.size
    with path.open("rb") as handle:
        descriptor = handle.fileno()
        place = _next(descriptor, section.offset, end)
        while place is not None:
            bundle, reach = _bundle(descriptor, place, end)
            yield bundle
            place = _next(descriptor, reach, end)


def _next(descriptor: int, place: int, end: int) -> int | None:
    """The first byte from ``place`` on that is not padding; None at the end of the section."""
    while place < end:
        block = os.pread(descriptor, min(4096, end - place), place)
        if not block:
            return None
        rest = block.lstrip(b"\0")
        if rest:
            return place + len(block) - len(rest)
        place += len(block)
    return None


def _bundle(descriptor: int, start: int, end: int) -> tuple[OffloadBundle, int]:
    head = os.pread(descriptor, min(_HEAD, end - start), start)
    if head.startswith(_COMPRESSED):
        raise ValueError("its device code is compressed")
    if not head.startswith(_PLAIN) or len(head) < 32:
        raise ValueError(f"byte {start} of its device code is not understood")
    (count,) = struct.unpack_from("<Q", head, len(_PLAIN))
    place = len(_PLAIN) + 8
    objects = []
    reach = place
    if count > _MOST_ENTRIES:
        raise ValueError(f"the offload bundle at byte {start} claims {count} entries")
    for _ in range(count):
        if place + _ENTRY.size > len(head):
            raise ValueError(f"the offload bundle at byte {start} is cut short")
        offset, size, length = _ENTRY.unpack_from(head, place)
        place += _ENTRY.size
        target = head[place : place + length].decode("ascii", errors="replace")
        place += length
        reach = max(reach, place, offset + size)
        kind, _, arch = target.partition("--")
        if arch and size and not kind.startswith("host"):
            objects.append(CodeObject(arch.lstrip("-"), start + offset, size))
    if place > len(head) or start + reach > end or any(one.offset < start + place for one in objects):
        raise ValueError(f"the offload bundle at byte {start} is cut short")
    return OffloadBundle(start, tuple(objects)), start + reach


def _without(ranges: list[tuple[int, int]], kept: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ranges that touch no kept one: two entries may name the same bytes."""
    found: dict[tuple[int, int], None] = {}
    at = 0
    for offset, size in ranges:
        while at < len(kept) and kept[at][0] + kept[at][1] <= offset:
            at += 1
        if at == len(kept) or kept[at][0] >= offset + size:
            found[offset, size] = None
    return tuple(found)


def _archs(objects: list[CodeObject]) -> tuple[str, ...]:
    return tuple(sorted({one.arch for one in objects}, key=arch_order))
