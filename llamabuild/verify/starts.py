"""Which programs of a bundle are started, and with what; what cannot be started here is told."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from llamabuild.elf.read import version_key
from llamabuild.verify.checks import floors, programs
from llamabuild.verify.relocate import Elsewhere, elsewhere, host_machine, start

if TYPE_CHECKING:
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.relocate import Started
    from llamabuild.verify.subject import Subject


def start_programs(subject: Subject, *, run: bool, relocate: bool) -> tuple[list[Started], list[Finding]]:
    """Start every program with each of the usual arguments, elsewhere and with an empty environment."""
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
    if not run:
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

    if relocate:
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
