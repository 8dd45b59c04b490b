"""Where each ELF file looks for its libraries: from its own place, inside the bundle, and nowhere else."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.findings import Finding, Severity
    from llamabuild.verify.subject import File, Subject

ABSOLUTE = Kind(
    "elf.rpath-absolute",
    "error",
    "An rpath or runpath entry is an absolute path. It holds on the machine that built the file alone; elsewhere it "
    "finds nothing, or somebody else's library. A raw build folder of llama.cpp is like this.",
    "Set $ORIGIN-relative entries in every ELF file.",
)
RELATIVE = Kind(
    "elf.rpath-relative",
    "error",
    "An rpath or runpath entry is empty or relative, which to the loader means the current folder: whoever starts the "
    "program from a folder with a library of that name in it loads that library.",
    "Remove the entry (a trailing ':' is an empty one); write $ORIGIN for the file's own folder.",
)
OUTSIDE = Kind(
    "elf.rpath-outside",
    "error",
    "An rpath or runpath entry leads out of the bundle.",
    "Keep entries inside: $ORIGIN, and $ORIGIN/../lib for what lies in bin/.",
)
OTHER = Kind(
    "elf.rpath-other",
    "error",
    "An rpath or runpath entry of a bundle in this project's layout is neither $ORIGIN nor a library folder of the "
    "bundle as seen from the file.",
    "Set $ORIGIN and $ORIGIN/../lib, and nothing else.",
)
RUNPATH = Kind(
    "elf.runpath",
    "warning",
    "The file has DT_RUNPATH where the recipe says DT_RPATH. RUNPATH does not reach the dependencies of dependencies, "
    "and LD_LIBRARY_PATH is searched before it, so another build's library can get in front.",
    'Write DT_RPATH, or say rpath = "runpath" in the recipe.',
)
BOTH = Kind(
    "elf.rpath-and-runpath",
    "warning",
    "The file has both DT_RPATH and DT_RUNPATH; the loader ignores DT_RPATH then.",
    "Keep one of the two.",
)

KINDS = (ABSOLUTE, RELATIVE, OUTSIDE, OTHER, RUNPATH, BOTH)

_ORIGIN = re.compile(r"^\$(?:ORIGIN|\{ORIGIN\})(?=/|$)")


def check(subject: Subject) -> Iterator[Finding]:
    """Judge each entry of each file by where it leads from that file's place."""
    for file in subject.elves:
        elf = file.elf
        if elf is None:
            continue
        if elf.rpath is not None and elf.runpath is not None:
            yield BOTH.at(file.path, f"{file.path} has both DT_RPATH and DT_RUNPATH.")
        elif elf.runpath is not None and subject.expected.rpath == "rpath":
            # A vendor's licence may forbid the edit, and what such a library needs lies beside it.
            severity: Severity | None = None if file.of_llama else "note"
            message = f"{file.path} has DT_RUNPATH instead of DT_RPATH."
            yield RUNPATH.at(file.path, message, evidence=elf.runpath, severity=severity)
        for text in (elf.rpath, elf.runpath):
            for entry in [] if text is None else text.split(":"):
                finding = _judge(subject, file, entry, text or "")
                if finding is not None:
                    yield finding


def _judge(subject: Subject, file: File, entry: str, whole: str) -> Finding | None:
    if entry.startswith("/"):
        return ABSOLUTE.at(file.path, f"{file.path} looks for libraries in {entry}.", evidence=whole)
    found = _ORIGIN.match(entry)
    if not found:
        shown = f"the relative path {entry}" if entry else "the current folder (an empty entry)"
        return RELATIVE.at(file.path, f"{file.path} looks for libraries in {shown}.", evidence=whole)
    where = os.path.normpath(os.path.join(file.folder, "." + entry[found.end() :]))  # noqa: PTH118 - purely textual
    if where == ".." or where.startswith("../"):
        return OUTSIDE.at(file.path, f"{file.path} looks for libraries outside, in {entry}.", evidence=whole)
    if subject.own and where != file.folder and where not in {"lib", "bin"} and not _holds_libraries(subject, where):
        return OTHER.at(file.path, f"{file.path} looks for libraries in {entry}.", evidence=whole)
    return None


def _holds_libraries(subject: Subject, folder: str) -> bool:
    return folder.startswith("lib/") and any(each.folder == folder for each in subject.elves)
