"""Verify a bundle: unpack, read everything once, start the programs elsewhere, and let each check say what it found."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import LlamabuildError, UsageError
from llamabuild.core.files import remove_tree
from llamabuild.verify.build_info import claimed_by, read_build_info
from llamabuild.verify.checks import (
    closure,
    content,
    device_code,
    elf_hygiene,
    features,
    floors,
    links,
    metadata,
    programs,
    search_paths,
    symbols,
    tensile,
    wheel,
)
from llamabuild.verify.expect import choose_target, expected_of
from llamabuild.verify.facts import facts_of
from llamabuild.verify.findings import Report
from llamabuild.verify.patterns import Patterns
from llamabuild.verify.policy import CHECK_FAILED
from llamabuild.verify.scan import scan_tree
from llamabuild.verify.starts import start_programs
from llamabuild.verify.subject import Expected, Subject
from llamabuild.verify.unpack import check_sum, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe
    from llamabuild.recipe.series import Series
    from llamabuild.verify.findings import Finding

_STATIC = (links, search_paths, closure, symbols, floors, elf_hygiene, content, programs, device_code, tensile, wheel)
"""Checks that look at files alone."""
_SEVERITIES = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Options:
    """How far to verify."""

    run: bool = True
    """Start the programs; without it a finding says that they were not."""
    relocate: bool = True
    """Start them from another path, read-only; otherwise where they are."""
    workers: int | None = None
    """Threads that read; None for as many as there are processors."""


@dataclass(frozen=True)
class _Asked:
    """What the caller says the bundle has to be."""

    recipe: Recipe | None
    target: str | None
    arch: str | None
    features: tuple[str, ...]


def verify_path(
    path: Path,
    *,
    context: Context,
    recipe: Recipe | None = None,
    target: str | None = None,
    arch: str | None = None,
    features: Sequence[str] = (),
    relocate: bool = True,
    options: Options | None = None,
) -> Report:
    """Verify a bundle's folder, or an archive after unpacking it at a path of its own.

    ``recipe``, ``target`` and ``arch`` say what it has to be; without a recipe the bundle's own BUILD_INFO does, and
    without that, only what holds for any bundle is checked. ``features`` are expected on top of the recipe's.

    Raises UsageError for a path that is neither folder nor archive and for a target the recipe does not have, OSError
    when the disk is full. Everything else that is wrong is a finding.
    """
    asked = _Asked(recipe, target, arch, tuple(features))
    chosen = options or Options(relocate=relocate)
    if path.is_dir():
        root = path.resolve()
        return _verify_folder(root, root.name, asked=asked, context=context, options=chosen, in_place=True)
    if not path.exists():
        raise UsageError(f"There is no {path}.", hint="Name a bundle's folder or archive.")
    with tempfile.TemporaryDirectory(prefix="verify-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch).resolve() / "unpacked"
        folder.mkdir()
        folder.parent.chmod(0o755)  # programs are started as another user, who has to get there
        try:
            with context.console.step(f"unpack {path.name}"):
                opened = unpack(path, folder)
            name = "" if opened.root == folder else opened.root.name
            report = _verify_folder(opened.root, name, asked=asked, context=context, options=chosen)
        finally:
            remove_tree(folder)
    return replace(report, subject=str(path), findings=(*check_sum(path), *opened.findings, *report.findings))


def _verify_folder(
    root: Path, name: str, *, asked: _Asked, context: Context, options: Options, in_place: bool = False
) -> Report:
    from llamabuild.recipe.features import load_features
    from llamabuild.recipe.load import load_series

    recipe = asked.recipe
    info, info_error = read_build_info(root)
    manifests = [load_series(use.name, context, beside=recipe.file)[0] for use in recipe.series] if recipe else []
    promise = _promise(asked, info, name, series=manifests)
    with context.console.step(f"read {root.name}"):
        subject = read_subject(root, name, context=context, info=info, info_error=info_error, workers=options.workers)
    subject = replace(subject, expected=_expected(promise, info), in_place=in_place)
    with context.console.step(f"start the programs of {root.name}"):
        runs, run_findings = start_programs(subject, run=options.run, relocate=options.relocate)
    series = None if recipe is None else [use.name for use in recipe.series]
    found = [
        *metadata.check(subject, from_recipe=promise if recipe else None, series=series),
        *(finding for check in _STATIC for finding in _guarded(check.__name__, check.check(subject))),
        *run_findings,
        *programs.judge_runs(subject, runs),
        *_guarded("features", features.check(subject, table=load_features(context), runs=runs)),
    ]
    found.sort(key=lambda each: (_SEVERITIES[each.severity], each.name, each.file, each.message))
    told = tuple(_printable(finding) for finding in dict.fromkeys(found))
    return Report(subject=str(root), findings=told, facts=facts_of(subject))


def _printable(finding: Finding) -> Finding:
    """File names need not be text: what cannot be written as UTF-8 is written with escapes."""
    values = {
        key: value.encode("utf-8", "backslashreplace").decode()
        for key in ("file", "message", "evidence")
        if not (value := getattr(finding, key)).isprintable()
    }
    return replace(finding, **values) if values else finding


def _guarded(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Pass a check's findings on; where it stops at an error, that is the last one."""
    try:
        yield from findings
    except (LlamabuildError, OSError) as exc:
        title = name.rpartition(".")[2].replace("_", " ")
        yield CHECK_FAILED.at("", f"The check of {title} could not be finished.", evidence=str(exc))


def _promise(asked: _Asked, info: Mapping[str, Any] | None, name: str, *, series: Sequence[Series]) -> Expected | None:
    """What the recipe, or the command line, promises; None where only the bundle itself does."""
    arch = asked.arch
    if asked.recipe is not None:
        targets = asked.recipe.targets
        claimed = str(info.get("target", "")) if info else ""
        claimed = claimed if claimed in targets else ""
        chosen = choose_target(asked.recipe, asked=asked.target, claimed=claimed, name=name)
        if arch is None and info and claimed == chosen and not targets[chosen].arch:
            arch = str(info.get("arch") or "")
        return expected_of(asked.recipe, target=chosen, arch=arch, features=asked.features, series=series)
    if arch is None and not asked.features:
        return None
    base = claimed_by(info) if info else Expected()
    return replace(
        base, source="the command line", arch=base.arch if arch is None else arch, more_features=asked.features
    )


def _expected(promise: Expected | None, info: Mapping[str, Any] | None) -> Expected:
    """The promise, with what it leaves open taken from the bundle's own claims."""
    claimed = claimed_by(info) if info is not None else Expected()
    if promise is None:
        return claimed
    return replace(
        promise,
        glibc_floor=promise.glibc_floor or claimed.glibc_floor,
        rpath=promise.rpath or claimed.rpath,
    )


def read_subject(
    root: Path,
    name: str,
    *,
    context: Context,
    info: Mapping[str, Any] | None,
    info_error: str,
    workers: int | None,
) -> Subject:
    """Read every file below ``root`` once; nothing is expected of it yet."""
    own_folders = {str(context.home.root), str(context.home.root.resolve())}
    patterns = Patterns(folders=tuple(sorted(folder.encode() for folder in own_folders if len(folder) > 4)))
    tree = scan_tree(root, patterns=patterns, workers=workers)
    return Subject.of(tree, root=root, name=name, info=info, info_error=info_error)
