"""Archives that are the same bit for bit whenever, wherever and on however many cores they are made."""

from __future__ import annotations

import contextlib
import hashlib
import re
import tarfile
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from llamabuild.bundle.compress import GzipSink, ZstdSink
from llamabuild.bundle.model import Artifact, StagedBundle
from llamabuild.bundle.stage import copy_failed
from llamabuild.core.errors import BundleError
from llamabuild.core.files import atomic_write, sha256_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from llamabuild.core.context import Context

    _Report = Callable[[int, str], None]

Format = Literal["tar.gz", "tar.zst"]
FORMATS: tuple[Format, ...] = ("tar.gz", "tar.zst")
SUMS = "SHA256SUMS"

_SUM = re.compile(r"(?P<digest>[0-9a-f]{64}) [ *](?P<name>[^/\\\0]+)")

_BLOCK = 1 << 20
_BIG = 128 << 20


class _Sink(Protocol):
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class _Tee:
    """One tar stream to several compressors, so that the files are read once."""

    def __init__(self, sinks: Sequence[_Sink]) -> None:
        self._sinks = sinks
        self._at = 0

    def write(self, data: bytes) -> int:
        """Give the block to every sink."""
        for sink in self._sinks:
            sink.write(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._at


class _Hashed:
    """A file that is hashed as it is written."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Write and count."""
        self._digest.update(data)
        self.size += len(data)
        return self._handle.write(data)

    def hexdigest(self) -> str:
        """SHA-256 of all that was written."""
        return self._digest.hexdigest()


def make_archives(
    staged: StagedBundle,
    out: Path,
    *,
    context: Context,
    formats: Sequence[Format] = FORMATS,
    name: str | None = None,
    members: Sequence[str] | None = None,
) -> tuple[Artifact, ...]:
    """Write ``out/<name>.<format>`` for each format, all or none; returns them in the order asked.

    ``name`` defaults to the bundle's. ``members``: destinations of the files and links to take (a split archive);
    all of them by default. The top folder is the bundle's name in every archive, so that parts unpack into one place.

    Sorted names, owner and group 0 without names, modes 0755 and 0644, the bundle's date, no other metadata. Neither
    the number of cores nor the order of the file system's listing shows. Raises BundleError; a full disk leaves nothing
    under a final name.
    """
    title = name or staged.name
    paths = [out / f"{title}.{form}" for form in formats]
    listed = list(_members(staged.root, members))
    total = sum(path.lstat().st_size for _, path in listed)
    try:
        with context.console.step(f"archive {title}") as progress, contextlib.ExitStack() as stack:
            files = [_Hashed(stack.enter_context(atomic_write(path))) for path in paths]
            sinks = [_sink(form, file, total=total) for form, file in zip(formats, files, strict=True)]
            for sink in sinks:
                stack.callback(sink.abandon)
            _write_tar(_Tee(sinks), staged, listed, report=lambda done, text: progress.update(done, total, text))
            for sink in sinks:
                sink.close()
    except OSError as exc:
        raise copy_failed(exc, out) from exc
    return tuple(
        Artifact(path=path, sha256=file.hexdigest(), size=file.size) for path, file in zip(paths, files, strict=True)
    )


def _sink(form: Format, file: _Hashed, *, total: int) -> _Sink:
    if form == "tar.gz":
        return GzipSink(file)
    # On device code a higher level takes several times as long, and twice the memory, for a few per cent.
    return ZstdSink(file, level=3 if total > _BIG else 15)


def _members(root: Path, wanted: Sequence[str] | None) -> Iterator[tuple[str, Path]]:
    """Files, links and folders in the order of an archive: sorted by their names' bytes, folders before contents."""
    chosen = None if wanted is None else {*wanted, *(folder for name in wanted for folder in _folders_above(name))}
    found = [(path.relative_to(root).as_posix(), path) for path in root.rglob("*")]
    for name, path in sorted(found, key=lambda item: item[0].split("/")):
        if chosen is None or name in chosen:
            yield name, path


def _folders_above(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _write_tar(tee: _Tee, staged: StagedBundle, listed: Sequence[tuple[str, Path]], *, report: _Report) -> None:
    first_names: dict[tuple[int, int], str] = {}
    with tarfile.TarFile(fileobj=tee, mode="w", format=tarfile.PAX_FORMAT, copybufsize=_BLOCK) as tar:  # type: ignore[arg-type]
        tar.addfile(_header(staged.name, tarfile.DIRTYPE, date=staged.date))
        for name, path in listed:
            status = path.lstat()
            member = f"{staged.name}/{name}"
            if path.is_symlink():
                info = _header(member, tarfile.SYMTYPE, date=staged.date)
                info.linkname = str(path.readlink())
                tar.addfile(info)
            elif path.is_dir():
                tar.addfile(_header(member, tarfile.DIRTYPE, date=staged.date))
            elif path.is_file():
                inode = (status.st_dev, status.st_ino)
                executable = bool(status.st_mode & 0o111)
                if inode in first_names:
                    info = _header(member, tarfile.LNKTYPE, date=staged.date, executable=executable)
                    info.linkname = first_names[inode]
                    tar.addfile(info)
                    continue
                first_names[inode] = member
                info = _header(member, tarfile.REGTYPE, date=staged.date, executable=executable)
                info.size = status.st_size
                with path.open("rb", buffering=0) as handle:
                    tar.addfile(info, handle)
            else:
                raise BundleError(
                    f"{path} is neither a file, a folder nor a link.", hint="Remove it from what is bundled."
                )
            report(tee.tell(), name)


def _header(name: str, kind: bytes, *, date: int, executable: bool = False) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mtime = date
    info.mode = 0o755 if executable or kind == tarfile.DIRTYPE else 0o777 if kind == tarfile.SYMTYPE else 0o644
    return info


def write_sums(folder: Path, *, published: Collection[str] | None = None, beside: Path | None = None) -> Artifact:
    """Write ``SHA256SUMS`` into ``folder`` as ``sha256sum -c`` reads it, sorted by name.

    ``published``: names of the files in ``folder`` that it is about; None is every one, for a folder that this program
    made itself. ``beside``: the folder that they are published to (or were just now); what its own ``SHA256SUMS`` lists
    and is still there stays listed, under the digest given there. What else lies in it (a model, say) is no part of a
    release. Raises OSError, of a full disk too.
    """
    if published is None:
        published = [
            path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS and path.name[0] != "."
        ]
    digests = {name: digest for name, digest in _listed(beside / SUMS) if (beside / name).is_file()} if beside else {}
    digests |= {name: sha256_file(folder / name) for name in published}
    text = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    path = folder / SUMS
    with atomic_write(path) as handle:
        handle.write(text.encode())
    return Artifact(path=path, sha256=sha256_file(path), size=path.stat().st_size)


def _listed(sums: Path) -> Iterator[tuple[str, str]]:
    if not sums.is_file():
        return
    for line in sums.read_text(encoding="utf-8", errors="replace").splitlines():
        if found := _SUM.fullmatch(line):
            yield found["name"], found["digest"]
