"""A whole release in one folder, there complete or not at all."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from llamabuild.bundle.archive import write_sums
from llamabuild.bundle.model import Artifact
from llamabuild.core.errors import UsageError
from llamabuild.core.files import atomic_folder, sha256_file, write_text
from llamabuild.release.notes import NotedFlavour, release_notes
from llamabuild.release.part import require_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from llamabuild.release.part import Part

NOTES = "RELEASE_NOTES.md"


def require_absent(out: Path) -> None:
    """Raise UsageError where ``out`` holds anything: a release replaces nothing, and is mixed with nothing."""
    if out.is_symlink() or out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(
            f"{out} is there already and not empty.", hint="Name a new folder with --out, or remove that one first."
        )


def write_release(out: Path, *, fill: Callable[[Path], Sequence[Part]], since: str = "") -> tuple[Artifact, ...]:
    """Let ``fill`` put its parts and other files into a folder, then add notes and sums, and check all of it again.

    ``since``: the earlier release's name, for the notes. Returns every published file. ``out`` appears when everything
    is in it and holds; whatever fails before leaves nothing there.
    """
    require_absent(out)
    with _published(out) as folder:
        parts = fill(folder)
        ours = {archive.path.name for part in parts for archive in part.archives}
        said = {
            path.name for path in folder.iterdir() if path.name.startswith(("BUILD_INFO-", "sbom-", "report-", "prov"))
        }
        others = [_artifact(path) for path in sorted(folder.iterdir()) if path.name not in ours | said]
        noted = [
            NotedFlavour(part.facts, part.archives, baseline=part.baseline, changes=part.changes)
            for part in sorted(parts, key=lambda part: part.baseline)
        ]
        write_text(folder / NOTES, release_notes(noted, others=others, since=since))
        write_sums(folder)
        for part in parts:
            require_checked(folder / part.statement, folder)
        found = [_artifact(path) for path in sorted(folder.iterdir())]
    return tuple(replace(artifact, path=out / artifact.path.name) for artifact in found)


@contextlib.contextmanager
def _published(out: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        out.rmdir()
    with atomic_folder(out) as folder:
        yield folder


def _artifact(path: Path) -> Artifact:
    return Artifact(path=path, sha256=sha256_file(path), size=path.stat().st_size)
