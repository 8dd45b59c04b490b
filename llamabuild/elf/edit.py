"""Edit ELF files for a bundle: stripped first, one rpath write, and the result held against what was there before."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llamabuild.core import process
from llamabuild.core.errors import BundleError, LlamabuildError
from llamabuild.elf.inplace import DT_RPATH, DT_RUNPATH, Write, plan_in_place, write_in_place
from llamabuild.elf.snapshot import Snapshot, changes, take_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class ElfEdit:
    """Everything that is to be done to one file: written once, in one order."""

    path: Path
    rpath: str | None
    """The only rpath the file is left with; None leaves it without one."""
    tag: Literal["rpath", "runpath"] = "rpath"
    strip: bool = False
    """Remove debug sections and the static symbol table."""


@dataclass(frozen=True)
class EditOutcome:
    """What was done to one file."""

    path: Path
    stripped: bool
    method: Literal["unchanged", "in-place", "rewritten"]


def apply_edits(
    edits: Iterable[ElfEdit], *, strip_tool: Path | None, env: Mapping[str, str]
) -> tuple[EditOutcome, ...]:
    """Apply edits in order; two that mean the same inode (hard links) must agree, and it is edited once.

    ``strip_tool`` is binutils' ``strip`` or a tool with its options; without one nothing is stripped, and the outcomes
    say so. Raises BundleError when a file would be changed in any other way than asked; it then keeps its old bytes.
    """
    done: dict[tuple[int, int], tuple[ElfEdit, EditOutcome]] = {}
    outcomes = []
    for edit in edits:
        status = edit.path.stat()
        inode = (status.st_dev, status.st_ino)
        if inode in done:
            first, outcome = done[inode]
            if (first.rpath, first.tag, first.strip) != (edit.rpath, edit.tag, edit.strip):
                raise BundleError(
                    f"{edit.path} and {first.path} are one file with two names, and would need two different rpaths.",
                    hint="Keep hard-linked libraries in one folder, or copy them apart.",
                )
            outcomes.append(EditOutcome(path=edit.path, stripped=outcome.stripped, method=outcome.method))
            continue
        outcome = apply_edit(edit, strip_tool=strip_tool, env=env)
        now = edit.path.stat()
        done[now.st_dev, now.st_ino] = (edit, outcome)
        outcomes.append(outcome)
    return tuple(outcomes)


def apply_edit(edit: ElfEdit, *, strip_tool: Path | None, env: Mapping[str, str]) -> EditOutcome:
    """Edit one file in its own inode.

    Stripping comes before the rpath: binutils lays a file out anew and does not know what an rpath writer added
    (NixOS/patchelf#145). Raises BundleError when the file cannot be edited without changing more than was asked, and
    ElfError when it is damaged, OSError for a full disk.
    """
    before = take_snapshot(edit.path)
    stripped = False
    if edit.strip and strip_tool is not None and before.facts.debug_sections:
        with _beside(edit.path) as part:
            _strip(edit.path, part, kind=before.facts.kind, tool=strip_tool, env=env)
            _check(edit.path, changes(before, take_snapshot(part)))
            _replace_bytes(edit.path, part)
        stripped = True
    writes = plan_in_place(edit.path, edit.rpath, tag=DT_RPATH if edit.tag == "rpath" else DT_RUNPATH)
    method: Literal["unchanged", "in-place", "rewritten"] = "unchanged"
    if writes is None:
        with _beside(edit.path) as part:
            _rewrite(edit, part, env=env)
            _check(edit.path, _problems(before, part, edit=edit))
            _replace_bytes(edit.path, part)
        method = "rewritten"
    elif writes:
        undo = _old_bytes(edit.path, writes)
        write_in_place(edit.path, writes)
        try:
            _check(edit.path, _problems(before, edit.path, edit=edit))
        except LlamabuildError:
            write_in_place(edit.path, undo)
            raise
        method = "in-place"
    return EditOutcome(path=edit.path, stripped=stripped, method=method)


def _problems(before: Snapshot, path: Path, *, edit: ElfEdit) -> tuple[str, ...]:
    after = take_snapshot(path)
    wanted = (edit.rpath, None) if edit.tag == "rpath" else (None, edit.rpath)
    found = changes(before, after)
    if (after.facts.rpath, after.facts.runpath) != wanted:
        found += (f"DT_RPATH is {after.facts.rpath!r} and DT_RUNPATH {after.facts.runpath!r}",)
    return found


def _check(path: Path, problems: tuple[str, ...]) -> None:
    if problems:
        raise BundleError(
            f"Editing {path} would damage it: {problems[0]}.",
            hint="The file was left as it was; report it with the file, or bundle it without the edit.",
            details=problems,
        )


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A name in the file's own folder that is gone afterwards."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(descriptor)
    part = Path(name)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _replace_bytes(path: Path, part: Path) -> None:
    """Give ``path`` the bytes of ``part``: by a rename, or in its inode where that has other names too."""
    status = path.stat()
    if status.st_nlink == 1:
        part.chmod(status.st_mode & 0o7777)
        part.replace(path)
        return
    with part.open("rb") as source, path.open("r+b") as target:
        shutil.copyfileobj(source, target, _COPY_BYTES)
        target.truncate()


def _old_bytes(path: Path, writes: tuple[Write, ...]) -> tuple[Write, ...]:
    with path.open("rb") as handle:
        return tuple(Write(write.offset, os.pread(handle.fileno(), len(write.data), write.offset)) for write in writes)


def _strip(path: Path, part: Path, *, kind: str, tool: Path, env: Mapping[str, str]) -> None:
    how = "--strip-all" if kind == "executable" else "--strip-unneeded"
    result = process.run([tool, how, "-o", part, path], env={**env, "LC_ALL": "C"})
    _check_space(result, part)
    if not result.ok:
        raise BundleError(
            f"{tool} could not strip {path} (status {result.returncode}).",
            hint="Name the strip of the toolchain that made the file, or leave the file unstripped.",
            details=result.tail[-5:],
        )


def _check_space(result: process.Completed, part: Path) -> None:
    """A tool that met a full disk says so in words; to the caller it is the error that the kernel gave."""
    if not result.ok and os.strerror(errno.ENOSPC) in result.text:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(part))


_LIEF = threading.Lock()
"""LIEF takes twice a file's size in memory: files are staged side by side, and are written anew one after the other."""


def _rewrite(edit: ElfEdit, part: Path, *, env: Mapping[str, str]) -> None:
    """Write the file anew with LIEF, in a process of its own: the only way when there is no room."""
    package = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [package, env.get("PYTHONPATH", "")]))
    words: list[str | Path] = [sys.executable, "-m", "llamabuild.elf.rewrite", edit.path, part, edit.tag]
    if edit.rpath is not None:
        words.append(edit.rpath)
    with _LIEF:
        result = process.run(words, env={**env, "PYTHONPATH": search, "LC_ALL": "C"})
    _check_space(result, part)
    if not result.ok:
        raise BundleError(
            f"LIEF could not write {edit.path} with another rpath (status {result.returncode}).",
            hint="The file was left as it was; fetch or build it again, or bundle it without the edit.",
            details=result.tail[-3:],
        )
