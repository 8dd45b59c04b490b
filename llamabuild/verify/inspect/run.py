"""Inspect whatever a path is: a build folder, a CMakeCache.txt, a bundle's folder or archive, an ELF file."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError
from llamabuild.core.files import remove_tree
from llamabuild.elf.read import is_elf
from llamabuild.verify.inspect.binaries import inspect_elf, inspect_folder
from llamabuild.verify.inspect.build import inspect_build
from llamabuild.verify.unpack import is_archive, unpack

if TYPE_CHECKING:
    from llamabuild.verify.inspect.model import Inspection


def inspect_path(path: Path) -> Inspection:
    """Inspect ``path``.

    Raises UsageError for a path that is nothing of the kind, ElfError for a damaged ELF file, OSError.
    """
    if path.is_dir():
        if (path / "CMakeCache.txt").is_file():
            return _build_with_binaries(path)
        return inspect_folder(path, subject=str(path), kind="bundle")
    if not path.is_file():
        raise UsageError(f"There is no file or folder {path}.", hint="Name a build folder, a bundle or an ELF file.")
    if is_elf(path):
        return inspect_elf(path)
    if is_archive(path):
        return _archive(path)
    if _looks_like_cache(path):
        return inspect_build(path)
    raise UsageError(
        f"{path} is no CMake cache, no ELF file and no archive that is known.",
        hint="Name a build folder, a CMakeCache.txt, a bundle's folder or archive, or a program or library.",
    )


def _looks_like_cache(path: Path) -> bool:
    if path.name == "CMakeCache.txt":
        return True
    with path.open("rb") as handle:
        return b"CMakeCache" in handle.read(256)


def _archive(path: Path) -> Inspection:
    with tempfile.TemporaryDirectory(prefix="inspect-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch, "unpacked")
        folder.mkdir()
        try:
            opened = unpack(path, folder)
            inspection = inspect_folder(opened.root, subject=str(path), kind="archive")
        finally:
            remove_tree(folder)
    problems = tuple(f"{finding.message} {finding.evidence}".strip() for finding in opened.findings)
    return replace(inspection, disagreements=(*inspection.disagreements, *problems))


def _build_with_binaries(folder: Path) -> Inspection:
    """A build folder's answers, and where its binaries (``bin``) say otherwise."""
    asked = inspect_build(folder)
    if not (folder / "bin").is_dir():
        return asked
    built = inspect_folder(folder / "bin", subject=str(folder), kind="bundle")
    disagreements = list(asked.disagreements)
    leftovers = list(asked.leftovers)
    for name, backend in built.backends.items():
        state = asked.backends.get(name)
        if backend.state == "on" and state is not None and state.state != "on":
            leftovers.append(f"bin/{backend.option} was built before {name} was turned off: it is stale.")
        elif backend.state != "on" and state is not None and state.state == "on" and built.details["programs"]:
            disagreements.append(f"{name} is on by {state.option or 'default'}, and no file in bin has it.")
    disagreements += _arch_disagreements(asked, built)
    for key in ("build_number", "commit"):
        told, read = asked.details.get(key), built.details.get(key)
        if told and read and not str(told).startswith(str(read)) and not str(read).startswith(str(told)):
            disagreements.append(
                f"The {key.replace('_', ' ')} is {told} by the cache or the source, {read} in the binaries."
            )
    details = {
        **asked.details,
        "built": {
            "backends": sorted(name for name, backend in built.backends.items() if backend.state == "on"),
            **{key: built.details[key] for key in ("build_number", "commit", "device_code", "floors", "programs")},
            "archs": list(built.archs),
        },
    }
    for key in ("build_number", "commit"):
        details[key] = details.get(key) or built.details.get(key)
    return replace(asked, disagreements=tuple(disagreements), leftovers=tuple(leftovers), details=details)


def _arch_disagreements(asked: Inspection, built: Inspection) -> list[str]:
    from llamabuild.verify.archs import gfx_suits, parse_archs, suits

    wanted, there = parse_archs(";".join(asked.archs)), parse_archs(";".join(built.archs))
    missing = [f"SASS {arch}" for arch in wanted.sass if there.sass and not any(suits(arch, one) for one in there.sass)]
    missing += [f"PTX {arch}" for arch in wanted.ptx if there.sass and not any(suits(arch, one) for one in there.ptx)]
    missing += [arch for arch in wanted.gfx if there.gfx and not any(gfx_suits(arch, one) for one in there.gfx)]
    return [f"The cache asks for {', '.join(missing)}, which the binaries do not hold."] if missing else []
