"""Unpack anybody's archive (tar.gz, tar.zst, zip, wheel) as it is, to be judged: what is unsafe is told."""

from __future__ import annotations

import posixpath
import shutil
import stat
import sys
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from llamabuild.bundle.unpack import opened_tar
from llamabuild.core.errors import BundleError, UsageError
from llamabuild.core.files import sha256_file
from llamabuild.verify.kinds import Kind

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.findings import Finding

DAMAGED = Kind(
    "archive.damaged",
    "error",
    "The archive ends too early or cannot be decompressed. What could be unpacked is still judged; the rest is "
    "unknown.",
    "Fetch it again and compare it with SHA256SUMS.",
)
UNSAFE = Kind(
    "archive.unsafe-member",
    "error",
    "A member would land outside the folder it is unpacked in, by '..', an absolute name, or through a link.",
    "Do not unpack it; make the archive again from a clean folder.",
)
TOPS = Kind(
    "archive.several-tops",
    "warning",
    "The archive has not one top folder: unpacked in a folder with other things it mixes with them.",
    "Pack it below one folder of the bundle's name.",
)
TWICE = Kind(
    "archive.member-twice",
    "error",
    "Two members of the archive have the same name: which one is left depends on who unpacks it.",
    "Make the archive again.",
)

SUM = Kind(
    "archive.sum",
    "error",
    "The archive is not the one that SHA256SUMS beside it lists under its name.",
    "Fetch it again; if it was made anew, so must SHA256SUMS be.",
)

KINDS = (DAMAGED, UNSAFE, TOPS, TWICE, SUM)

_BLOCK = 1 << 20
_LINK_LIMIT = 4096


@dataclass(frozen=True)
class Unpacked:
    """An archive's contents on disk."""

    root: Path
    """The single top folder, or the whole where there is none."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Member:
    """A tar's or zip's member in common words."""

    name: str
    kind: str
    """``file``, ``folder``, ``link``, ``hard``, ``other``."""
    mode: int
    target: str = ""
    source: IO[bytes] | None = None


def check_sum(path: Path) -> Iterator[Finding]:
    """Hold an archive against the SHA256SUMS in its folder, where there is one that lists it."""
    sums = path.parent / "SHA256SUMS"
    if not sums.is_file():
        return
    for line in sums.read_text(errors="replace").splitlines():
        digest, _, name = line.partition(" ")
        if name.strip().removeprefix("*") == path.name and digest.lower() != (real := sha256_file(path)):
            yield SUM.at("", f"{path.name} is not the archive that SHA256SUMS lists.", evidence=f"{real}, not {digest}")


def is_archive(path: Path) -> bool:
    """Whether a file starts like one of the archives that can be unpacked here."""
    with path.open("rb") as handle:
        head = handle.read(4)
    return head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PK\x05\x06"))


def unpack(path: Path, folder: Path) -> Unpacked:
    """Unpack ``path`` into the empty ``folder``, modes and links kept, and tell what is wrong with the archive itself.

    Raises UsageError for a file that is no such archive.
    """
    if not is_archive(path):
        raise UsageError(
            f"{path} is neither a folder nor a tar.gz, tar.zst, zip or wheel.",
            hint="Name a bundle's folder or archive.",
        )
    findings: list[Finding] = []
    seen: set[str] = set()
    try:
        for member in _members(path):
            name = posixpath.normpath(member.name)
            if name == ".":
                continue
            if name in seen and member.kind != "folder":
                findings.append(TWICE.at(name, f"{name} is in the archive twice."))
            seen.add(name)
            if not _place(member, name, folder):
                findings.append(
                    UNSAFE.at(name, f"{member.name} would not land where it seems to.", evidence=member.target)
                )
    except (BundleError, zipfile.BadZipFile, tarfile.TarError, zlib.error, zstd.ZstdError, EOFError) as exc:
        findings.append(DAMAGED.at("", f"{path.name} is a damaged archive.", evidence=str(exc)))
    tops = sorted({name.partition("/")[0] for name in seen})
    if len(tops) == 1 and (folder / tops[0]).is_dir():
        return Unpacked(folder / tops[0], tuple(findings))
    if tops and path.suffix != ".whl":
        findings.append(TOPS.at("", f"{path.name} has {len(tops)} top entries.", evidence=", ".join(tops[:10])))
    return Unpacked(folder, tuple(findings))


def _members(path: Path) -> Iterator[_Member]:
    with path.open("rb") as handle:
        zipped = handle.read(2) == b"PK"
    if zipped:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                yield from _zip_member(archive, entry)
    else:
        with opened_tar(path) as tar:
            for info in tar:
                yield _tar_member(tar, info)


def _zip_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[_Member]:
    mode = entry.external_attr >> 16
    if entry.is_dir():
        yield _Member(entry.filename, "folder", stat.S_IMODE(mode) or 0o755)
    elif stat.S_ISLNK(mode):
        target = archive.read(entry).decode(errors="surrogateescape") if entry.file_size < _LINK_LIMIT else ""
        yield _Member(entry.filename, "link", 0o777, target=target)
    else:
        with archive.open(entry) as source:
            yield _Member(entry.filename, "file", stat.S_IMODE(mode) or 0o644, source=source)


def _tar_member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    kind = (
        "folder"
        if info.isdir()
        else "link"
        if info.issym()
        else "hard"
        if info.islnk()
        else "file"
        if info.isfile()
        else "other"
    )
    source = tar.extractfile(info) if kind == "file" else None
    return _Member(info.name, kind, stat.S_IMODE(info.mode), target=info.linkname, source=source)


def _place(member: _Member, name: str, folder: Path) -> bool:
    """Make the member's file, link or folder; False where that would touch anything outside ``folder``."""
    target = folder / name
    if name.startswith(("/", "../")) or name == ".." or not _inside(target.parent, folder):
        return False
    if member.kind == "folder":
        target.mkdir(parents=True, exist_ok=True)
        target.chmod(member.mode | 0o700)
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if member.kind == "link":
        target.symlink_to(member.target)
    elif member.kind == "hard":
        first = folder / posixpath.normpath(member.target)
        if not _inside(first, folder) or not first.is_file() or first.is_symlink():
            return False
        target.hardlink_to(first)
    elif member.source is not None:
        with target.open("xb") as out:
            shutil.copyfileobj(member.source, out, _BLOCK)
        target.chmod(member.mode | 0o400)
    else:
        return False
    return True


def _inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
