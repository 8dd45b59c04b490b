"""Archives of a bundle, whole or in parts, each opened again and compared with what was staged."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from llamabuild.bundle.archive import FORMATS, Format, make_archives
from llamabuild.bundle.unpack import opened_tar
from llamabuild.core.errors import BundleError

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Sequence
    from pathlib import Path

    from llamabuild.bundle.model import Artifact, BundlePlan, StagedBundle
    from llamabuild.core.context import Context

_BLOCK = 1 << 20


def pack_bundle(
    staged: StagedBundle,
    plan: BundlePlan,
    out: Path,
    *,
    context: Context,
    formats: Sequence[Format] = FORMATS,
    split: bool = False,
) -> tuple[Artifact, ...]:
    """Write the archives into ``out``; with ``split`` one of each format for every part, ``bin`` first.

    All parts have the same top folder: unpacked in one place they are the whole bundle, and each alone carries the
    licences of what it holds. Raises BundleError, also when
    an archive does not hold what was staged; it is removed then.
    """
    parts = split_members(plan) if split else {}
    if len(parts) < 2:
        artifacts = make_archives(staged, out, context=context, formats=formats)
        _check_all(artifacts, staged, None, context=context)
        return artifacts
    made: list[Artifact] = []
    for part, members in parts.items():
        names = (*members, "BUILD_INFO.json", "BUILD_INFO.txt") if part == "bin" else members
        artifacts = make_archives(
            staged, out, context=context, formats=formats, name=f"{staged.name}-{part}", members=names
        )
        _check_all(artifacts, staged, names, context=context)
        made += artifacts
    return tuple(made)


def split_members(plan: BundlePlan) -> dict[str, tuple[str, ...]]:
    """Destinations by part, ``bin`` first; a single part for a bundle without a vendor's runtime."""
    parts: dict[str, list[str]] = {"bin": []}
    for entry in plan.entries:
        for part in (entry.part, *entry.also):
            parts.setdefault(part or "bin", []).append(entry.destination)
    return {part: tuple(names) for part, names in parts.items()}


def _check_all(
    artifacts: Sequence[Artifact], staged: StagedBundle, members: Sequence[str] | None, *, context: Context
) -> None:
    for artifact in artifacts:
        with context.console.step(f"check {artifact.path.name}"):
            try:
                check_archive(artifact.path, staged, members=members)
            except BundleError:
                artifact.path.unlink()
                raise


def check_archive(path: Path, staged: StagedBundle, *, members: Sequence[str] | None = None) -> None:
    """Open an archive again and hold every member against the staged folder: names, links, modes, bytes.

    ``members``: the destinations that it should hold; all by default. Raises BundleError for the first difference.
    """
    expected = {
        found.relative_to(staged.root).as_posix()
        for found in staged.root.rglob("*")
        if found.is_symlink() or not found.is_dir()
    }
    if members is not None:
        expected &= set(members)
    seen: set[str] = set()
    with opened_tar(path) as tar:
        for member in tar:
            name = member.name.removeprefix(f"{staged.name}/")
            if member.isdir():
                continue
            seen.add(name)
            if problem := _difference(tar, member, staged, name):
                raise _wrong(path, f"{name} {problem}")
    if seen != expected:
        odd = sorted(seen ^ expected)
        raise _wrong(path, f"{odd[0]} is {'missing' if odd[0] in expected else 'too much'}")


def _wrong(path: Path, why: str) -> BundleError:
    return BundleError(
        f"{path.name} does not hold what was staged: {why}.", hint="Pack again; if it stays so, check disk and memory."
    )


def _difference(tar: tarfile.TarFile, member: tarfile.TarInfo, staged: StagedBundle, name: str) -> str:
    target = staged.root / name
    if member.issym():
        same = target.is_symlink() and str(target.readlink()) == member.linkname
        return "" if same else "is another link"
    if member.islnk():
        other = staged.root / member.linkname.removeprefix(f"{staged.name}/")
        return "" if target.exists() and other.exists() and target.samefile(other) else "is another link"
    if target.is_symlink() or not target.is_file():
        return "is not a file there"
    status = target.stat()
    if bool(member.mode & 0o111) != bool(status.st_mode & 0o111):
        return "has another mode"
    stream = tar.extractfile(member)
    return "" if stream and member.size == status.st_size and _same_bytes(stream, target) else "differs"


def _same_bytes(stream: IO[bytes], path: Path) -> bool:
    with path.open("rb", buffering=0) as handle:
        while block := stream.read(_BLOCK):
            if handle.read(len(block)) != block:
                return False
    return True
