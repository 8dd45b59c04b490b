"""Make the folder that a plan describes: copied, stripped, rpaths set, links made; complete or not there at all."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.bundle.copy import copy_file
from llamabuild.bundle.model import BundlePlan, Entry, FileChange, StagedBundle, Thinned
from llamabuild.bundle.thin import apply_thinning, left_whole, plan_thinning, prove_thinned
from llamabuild.core.errors import BundleError
from llamabuild.core.files import atomic_folder, sha256_file
from llamabuild.elf.edit import ElfEdit, apply_edit
from llamabuild.elf.read import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from llamabuild.core.console import Progress
    from llamabuild.core.context import Context

_THREADS = 8


@dataclass(frozen=True)
class _Job:
    """A file to make, and the other names it has: hard links of the source stay hard links."""

    entry: Entry
    names: tuple[str, ...]


def stage(
    plan: BundlePlan, folder: Path, *, date: int, context: Context, strip_tool: Path | None, share: bool = False
) -> StagedBundle:
    """Make ``folder/<plan.name>``, replacing what was there.

    ``date`` is the time that archives give to every file, in seconds since the epoch. ``strip_tool``: binutils'
    ``strip``, or None to strip nothing. ``share``: data files that nobody edits may be hard links to their sources.

    Raises BundleError when a file cannot be copied (a full disk included) or edited.
    """
    root = folder / plan.name
    with context.console.step(f"stage {plan.name}") as progress:
        try:
            jobs = _jobs(plan)
            total = sum(job.entry.source.stat().st_size for job in jobs if job.entry.source)
            with atomic_folder(root) as part:
                for entry in plan.entries:
                    (part / entry.destination).parent.mkdir(parents=True, exist_ok=True)
                counter = _Counter(progress, total=total)

                def work(job: _Job) -> FileChange | None:
                    change = _make(job, part, plan=plan, context=context, strip_tool=strip_tool, share=share)
                    counter.add(job)
                    return change

                with ThreadPoolExecutor(_THREADS) as pool:
                    made = list(pool.map(work, jobs))
                for entry in plan.entries:
                    if entry.link is not None:
                        (part / entry.destination).symlink_to(entry.link)
        except OSError as exc:
            raise copy_failed(exc, root) from exc
    changes = sorted((change for change in made if change), key=lambda change: change.destination)
    thinned = [job.entry for job in jobs if job.entry.thin]
    notes = [note for entry in thinned if entry.source and (note := left_whole(entry.source, entry.thin))]
    for note in notes:
        context.console.note(note)
    return StagedBundle(name=plan.name, root=root, date=date, changes=tuple(changes), notes=tuple(sorted(notes)))


def copy_failed(exc: OSError, where: Path) -> BundleError:
    """The sentence for a file operation that failed on the way to a bundle or an archive."""
    if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
        return BundleError(
            f"The disk is full: {where} could not be written.",
            hint="Free some space and run the same command again; nothing half-written was left.",
        )
    return BundleError(
        f"{exc.filename or where}: {exc.strerror or exc}.", hint="Check that the file exists and can be read."
    )


@contextmanager
def told_as_bundling(where: Path) -> Iterator[None]:
    """Turn what an input's file makes fail, damaged or not to be read, into a BundleError that names it.

    ``where``: named for a failure that names no file.
    """
    try:
        yield
    except ElfError as exc:
        raise BundleError(exc.message, hint="Build or install that file again.", details=exc.details) from exc
    except OSError as exc:
        raise copy_failed(exc, where) from exc


class _Counter:
    """Progress over all threads."""

    def __init__(self, progress: Progress, *, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, job: _Job) -> None:
        self._done += job.entry.source.stat().st_size if job.entry.source else 0
        self._progress.update(self._done, self._total, job.entry.destination)


def _jobs(plan: BundlePlan) -> list[_Job]:
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in plan.entries:
        if entry.source is None:
            continue
        status = entry.source.stat()
        groups.setdefault((status.st_dev, status.st_ino, entry.edit, entry.rpath, entry.strip, entry.thin), []).append(
            entry
        )
    jobs = [_Job(entries[0], tuple(entry.destination for entry in entries[1:])) for entries in groups.values()]
    # The biggest first: a library of a gigabyte that comes last would be worked on alone.
    return sorted(jobs, key=lambda job: -(job.entry.source.stat().st_size if job.entry.source else 0))


def _make(
    job: _Job, root: Path, *, plan: BundlePlan, context: Context, strip_tool: Path | None, share: bool
) -> FileChange | None:
    entry = job.entry
    if entry.source is None:
        return None
    target = root / entry.destination
    # What thinning will zero need not be copied first, unless strip is going to lay the file out anew.
    strips = entry.strip and strip_tool is not None
    thinning = plan_thinning(entry.source, entry.thin) if entry.thin else None
    skip = thinning.ranges if thinning and not strips else ()
    copy_file(entry.source, target, share=share and not entry.edit and not entry.thin, skip=skip)
    outcome = None
    if entry.edit:
        edit = ElfEdit(path=target, rpath=entry.rpath, tag=plan.rpath, strip=entry.strip)
        outcome = apply_edit(edit, strip_tool=strip_tool, env=context.env)
    thinned = _thin(entry.source, target, entry.thin) if thinning and thinning.ranges else None
    for name in job.names:
        (root / name).hardlink_to(target)
    if outcome is None or (not outcome.stripped and outcome.method == "unchanged"):
        return FileChange(entry.destination, thinned=thinned) if thinned else None
    return FileChange(entry.destination, stripped=outcome.stripped, rpath=outcome.method, thinned=thinned)


def _thin(source: Path, target: Path, keep: tuple[str, ...]) -> Thinned:
    """Zero what is not kept, at the offsets that the edited file has, and prove that nothing else changed."""
    plan = plan_thinning(target, keep)
    apply_thinning(target, plan)
    prove_thinned(source, target, keep)
    return Thinned(
        kept=plan.kept,
        zeroed=plan.zeroed,
        zeroed_bytes=plan.size,
        sha256_before=sha256_file(source),
        sha256_after=sha256_file(target),
    )
