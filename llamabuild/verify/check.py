"""Verify a bundle: unpack, read everything once, start the programs elsewhere, and let each check say what it found."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import LlamabuildError, UsageError
from llamabuild.core.files import remove_tree
from llamabuild.elf.read import version_key
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
    tensile,
)
from llamabuild.verify.expect import choose_target, expected_of
from llamabuild.verify.findings import Report
from llamabuild.verify.patterns import Patterns
from llamabuild.verify.policy import CHECK_FAILED
from llamabuild.verify.scan import scan_tree
from llamabuild.verify.subject import Expected, Subject
from llamabuild.verify.unpack import check_sum, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from llamabuild.core.context import Context
    from llamabuild.recipe.features import Feature
    from llamabuild.recipe.model import Recipe
    from llamabuild.recipe.series import Series
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.relocate import Started

_PURE = (links, search_paths, closure, floors, elf_hygiene, content, programs, device_code, tensile)


@dataclass(frozen=True)
class Options:
    """How strictly, and how far, to verify."""

    run: bool = True
    """Start the programs; without it a finding says that they were not."""
    relocate: bool = True
    """Start them from another path, read-only; otherwise where they are."""
    workers: int | None = None
    """Threads that read; None for as many as there are processors."""


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
    chosen = options or Options(relocate=relocate)
    if path.is_dir():
        return _verify_folder(
            path,
            path.absolute().name,
            context=context,
            recipe=recipe,
            target=target,
            arch=arch,
            extra=features,
            options=chosen,
        )
    if not path.exists():
        raise UsageError(f"There is no {path}.", hint="Name a bundle's folder or archive.")
    with tempfile.TemporaryDirectory(prefix="verify-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch, "unpacked")
        folder.mkdir()
        Path(scratch).chmod(0o755)
        try:
            with context.console.step(f"unpack {path.name}"):
                opened = unpack(path, folder)
            name = "" if opened.root == folder else opened.root.name
            report = _verify_folder(
                opened.root,
                name,
                context=context,
                recipe=recipe,
                target=target,
                arch=arch,
                extra=features,
                options=chosen,
            )
        finally:
            remove_tree(folder)
    return replace(report, subject=str(path), findings=(*check_sum(path), *opened.findings, *report.findings))


def _verify_folder(
    root: Path,
    name: str,
    *,
    context: Context,
    recipe: Recipe | None,
    target: str | None,
    arch: str | None,
    extra: Sequence[str],
    options: Options,
) -> Report:
    from llamabuild.recipe.features import load_features
    from llamabuild.recipe.load import load_series

    info, info_error = read_build_info(root)
    manifests = [load_series(use.name, context, beside=recipe.file)[0] for use in recipe.series] if recipe else []
    promise = _promise(recipe, info, name, target=target, arch=arch, extra=extra, series=manifests)
    with context.console.step(f"read {root.name}"):
        subject = read_subject(
            root, name, context=context, info=info, info_error=info_error, promise=promise, options=options
        )
    with context.console.step(f"start the programs of {root.name}"):
        runs, run_findings = start_programs(subject, options)
    table = load_features(context)
    series = None if recipe is None else [use.name for use in recipe.series]
    found = [
        *metadata.check(subject, from_recipe=promise if recipe else None, series=series),
        *(finding for check in _PURE for finding in _guarded(check.__name__, check.check(subject))),
        *run_findings,
        *programs.judge_runs(subject, runs),
        *_guarded("features", features_of(subject, table, runs)),
    ]
    order = {"error": 0, "warning": 1, "note": 2}
    found.sort(key=lambda finding: (order[finding.severity], finding.name, finding.file, finding.message))
    return Report(subject=str(root), findings=tuple(dict.fromkeys(found)), facts=facts_of(subject))


def _guarded(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Pass a check's findings on; where it stops at an error, that is the last one."""
    try:
        yield from findings
    except (LlamabuildError, OSError) as exc:
        title = name.rpartition(".")[2].replace("_", " ")
        yield CHECK_FAILED.at("", f"The check of {title} could not be finished.", evidence=str(exc))


def features_of(subject: Subject, table: Mapping[str, Feature], runs: Sequence[Started]) -> Iterator[Finding]:
    """The findings about features (a function of its own, because ``features`` names an argument above)."""
    return features.check(subject, table=table, runs=runs)


def _promise(
    recipe: Recipe | None,
    info: Mapping[str, Any] | None,
    name: str,
    *,
    target: str | None,
    arch: str | None,
    extra: Sequence[str],
    series: Sequence[Series],
) -> Expected | None:
    if recipe is not None:
        claimed = str(info.get("target", "")) if info else ""
        claimed = claimed if claimed in recipe.targets else ""
        chosen = choose_target(recipe, asked=target, claimed=claimed, name=name)
        if arch is None and info and info.get("target") == chosen and not recipe.targets[chosen].arch:
            arch = str(info.get("arch") or "")
        return expected_of(recipe, target=chosen, arch=arch, features=extra, series=series)
    if arch is not None or extra:
        base = claimed_by(info) if info else Expected()
        return replace(
            base, source="the command line", arch=base.arch if arch is None else arch, more_features=tuple(extra)
        )
    return None


def read_subject(
    root: Path,
    name: str,
    *,
    context: Context,
    info: Mapping[str, Any] | None,
    info_error: str,
    promise: Expected | None,
    options: Options,
) -> Subject:
    """Read every file below ``root`` once."""
    own_folders = [str(context.home.root), str(context.home.root.resolve())]
    patterns = Patterns(folders=tuple(sorted({folder.encode() for folder in own_folders if len(folder) > 4})))
    tree = scan_tree(root, patterns=patterns, workers=options.workers)
    claimed = claimed_by(info) if info is not None else Expected()
    expected = (
        claimed
        if promise is None
        else replace(
            promise,
            glibc_floor=promise.glibc_floor or claimed.glibc_floor,
            rpath=promise.rpath or claimed.rpath,
        )
    )
    return Subject(
        root=root,
        name=name,
        files=tree.files,
        links=tree.links,
        folders=tree.folders,
        special=tree.special,
        unreadable=tree.unreadable,
        build_info=info,
        build_info_error=info_error,
        expected=expected,
    )


def start_programs(subject: Subject, options: Options) -> tuple[list[Started], list[Finding]]:
    """Start every program with each of the usual arguments, elsewhere and with an empty environment."""
    from llamabuild.verify.relocate import Elsewhere, elsewhere, host_machine, start

    here = [file for file in subject.programs if file.elf and file.elf.machine == host_machine()]
    findings = [
        programs.NOT_RUN.at(
            file.path, f"{file.path} was not started: it is for {file.elf.machine if file.elf else 'another machine'}."
        )
        for file in subject.programs
        if file not in here
    ]
    if not here:
        return [], findings
    too_old = _older_than_needed(subject)
    if too_old:
        return [], [*findings, programs.NOT_RUN.at("", f"No program was started: {too_old}.")]
    if not options.run:
        return [], [*findings, programs.NOT_RUN.at("", "No program was started, as was asked.")]
    runs: list[Started] = []

    def start_all(place: Elsewhere) -> None:
        for file in here:
            for arguments in programs.ARGUMENTS:
                shown = next(
                    (run.output for run in runs if (run.program, run.arguments) == (file.path, ("--help",))), ""
                )
                if arguments[0] not in {"--version", "--help"} and arguments[0] not in shown:
                    continue
                runs.append(start(place, file.path, arguments))

    if options.relocate:
        with elsewhere(subject) as place:
            if place.user is None:
                findings.append(programs.SAME_USER.at("", "Programs were started as the present user."))
            start_all(place)
    else:
        start_all(Elsewhere(root=subject.root, user=None))
    return runs, findings


def _older_than_needed(subject: Subject) -> str:
    """Why programs cannot be started here for want of a newer C library; empty where they can be tried."""
    try:
        here = (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    except (OSError, ValueError):
        return ""
    needed = floors.floors_of(subject).get("GLIBC")
    if needed is None or not here.replace(".", "").isdigit() or version_key(needed[0]) <= version_key(here):
        return ""
    return f"glibc is {here} here, and {needed[1].path} needs {needed[0]}"


def facts_of(subject: Subject) -> dict[str, Any]:
    """What was seen, beside what is wrong: sizes, floors, device code."""
    return {
        "files": len(subject.files),
        "links": len(subject.links),
        "bytes": sum(file.size for file in subject.files.values()),
        "elf_files": len(subject.elves),
        "floors": {family: number for family, (number, _) in sorted(floors.floors_of(subject).items())},
        "device_code": {
            file.path: {
                "sass": [arch for arch, _ in file.device.sass],
                "ptx": [arch for arch, _ in file.device.ptx],
                "gfx": [arch for arch, _ in file.device.gfx],
            }
            for file in subject.elves
            if file.device is not None and file.device.carried
        },
        "expected_from": subject.expected.source,
    }
