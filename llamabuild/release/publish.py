"""Publish a bundle: verified as a folder, archived, verified again as archives, and only then under its final names."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.bundle.archive import write_sums
from llamabuild.bundle.copy import copy_tree
from llamabuild.bundle.model import Artifact
from llamabuild.bundle.pack import pack_bundle
from llamabuild.bundle.stage import copy_failed
from llamabuild.bundle.unpack import open_archive
from llamabuild.core.errors import UsageError, VerificationError
from llamabuild.core.files import atomic_folder, key_of, locked, remove_tree, scratch_folder, sha256_file
from llamabuild.verify.check import verify_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llamabuild.bundle.model import BundlePlan, StagedBundle
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe
    from llamabuild.verify.findings import Report


def require_verified(
    path: Path, *, context: Context, recipe: Recipe | None = None, target: str | None = None, arch: str | None = None
) -> Report:
    """Verify a bundle folder or an archive; raises VerificationError with every finding that is an error."""
    with context.console.step(f"verify {path.name}"):
        report = verify_path(path, context=context, recipe=recipe, target=target, arch=arch or None)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors:
        asked = f"what recipe {recipe.name} asks for" if recipe else "a sound bundle"
        raise VerificationError(
            f"{path.name} is not {asked}: verification found {len(errors)} error{'s' if len(errors) > 1 else ''}.",
            hint=f"{errors[0].hint or 'Mend what is listed above.'} Nothing was published.",
            details=tuple(f"{finding.name}: {finding.message}" for finding in errors),
        )
    for finding in report.findings:
        context.console.detail(f"{finding.severity}: {finding.name}: {finding.message}")
    return report


def publish(
    staged: StagedBundle,
    plan: BundlePlan,
    out: Path,
    *,
    split: bool,
    judge: Callable[[Path], Report],
    context: Context,
) -> tuple[Artifact, ...]:
    """Write archives, BUILD_INFO and SHA256SUMS into ``out``; returns them all.

    ``split``: the vendor's runtime in archives of its own. ``judge`` is given each archive (parts of one bundle as the
    folder that they unpack to) and raises for one that is not to be published. Raises BundleError; what is found under
    a final name is complete.
    """
    out.mkdir(parents=True, exist_ok=True)
    guard = context.home.locks / f"out-{key_of(str(out.resolve()))[:16]}.lock"
    with locked(guard, on_wait=f"waiting for another run that publishes to {out}", say=context.console.note):
        with _scratch(out) as part:
            archives = pack_bundle(staged, plan, part, context=context, split=split)
            _judge_archives(archives, staged.name, judge, context)
            for name in ("BUILD_INFO.json", "BUILD_INFO.txt"):
                shutil.copyfile(staged.root / name, part / name)
            # The sums are reckoned before anything is in its place and come last: who finds them finds all they list.
            sums = write_sums(part, beside=out).path
            made = [*sorted(path for path in part.iterdir() if path != sums), sums]
            paths = [path.replace(out / path.name) for path in made]
        return tuple(
            Artifact(path=path.absolute(), sha256=sha256_file(path), size=path.stat().st_size) for path in paths
        )


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder in the one it is published to, so that publishing is a rename; a killed run's is swept here."""
    for stale in out.glob(".llamabuild-*"):
        remove_tree(stale)
    with scratch_folder(out, prefix=".llamabuild-") as part:
        yield part


def _judge_archives(
    archives: tuple[Artifact, ...], name: str, judge: Callable[[Path], Report], context: Context
) -> None:
    whole = [archive.path for archive in archives if archive.path.name.startswith(f"{name}.")]
    for path in whole:
        judge(path)
    if whole:
        return
    for form in sorted({archive.path.name.rpartition(".tar.")[2] for archive in archives}):
        with scratch_folder(context.home.root, prefix="parts-") as folder:
            for archive in archives:
                if archive.path.name.endswith(f".tar.{form}"):
                    open_archive(archive.path, folder)
            judge(folder / name)


def check_new_folder(to: Path) -> None:
    """Refuse, before any work is done, a place that a bundle cannot be copied to.

    Raises UsageError where something is there already, and where no folder can be made.
    """
    if os.path.lexists(to):
        raise UsageError(f"{to} exists already.", hint="Name a folder that does not exist yet.")
    above = next(folder for folder in to.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise UsageError(f"{to} cannot be made: {above} is not a folder.", hint="Name a place below a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"{to} cannot be made: {above} cannot be written to.", hint="Name a place that you can write.")


def publish_folder(staged: StagedBundle, to: Path) -> None:
    """Copy a bundle to ``to``, complete or not at all: holes stay holes, and files with two names stay one file.

    Raises UsageError as ``check_new_folder`` does, BundleError where a file cannot be copied, a full disk included.
    """
    check_new_folder(to)
    try:
        with atomic_folder(to) as part:
            copy_tree(staged.root, part)
    except OSError as exc:
        raise copy_failed(exc, to) from exc
