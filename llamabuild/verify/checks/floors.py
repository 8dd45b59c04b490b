"""Version floors: the newest glibc, libstdc++ and C++ ABI that any file asks of its host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.elf.read import version_key
from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import File, Subject

GLIBC = Kind(
    "glibc.above-floor",
    "error",
    "A file needs a newer glibc than the recipe promises. One file of many is enough: the loader refuses it, and a "
    "plugin refused is a device gone without a word.",
    "Build on a system whose glibc is at most the floor, or raise glibc-floor in the recipe.",
)
GLIBCXX = Kind(
    "glibcxx.above-floor",
    "error",
    "A file needs a newer libstdc++ than systems with the promised glibc have, and none is bundled.",
    "Bundle libstdc++.so.6, or build with an older compiler.",
)
CXXABI = Kind(
    "cxxabi.above-floor",
    "error",
    "A file needs a newer C++ ABI version than systems with the promised glibc have, and none is bundled.",
    "Bundle libstdc++.so.6, or build with an older compiler.",
)
UNKNOWN = Kind(
    "glibc.floor-not-checked",
    "warning",
    "The promised floor is not a version, so nothing was compared with it.",
    'Write it as glibc-floor = "2.36".',
)

KINDS = (GLIBC, GLIBCXX, CXXABI, UNKNOWN)

_RUNTIME_OF_GLIBC = (
    ("2.17", "3.4.19", "1.3.7"),
    ("2.28", "3.4.25", "1.3.11"),
    ("2.31", "3.4.28", "1.3.12"),
    ("2.34", "3.4.29", "1.3.13"),
    ("2.35", "3.4.30", "1.3.13"),
    ("2.36", "3.4.30", "1.3.13"),
    ("2.38", "3.4.32", "1.3.14"),
    ("2.39", "3.4.33", "1.3.15"),
    ("2.41", "3.4.33", "1.3.15"),
)
"""glibc, GLIBCXX and CXXABI of: CentOS 7, RHEL 8 and Debian 10, Ubuntu 20.04, RHEL 9, Ubuntu 22.04, Debian 12,
Fedora 39, Ubuntu 24.04, Debian 13. Where distributions with one glibc differ the lowest is taken."""


def floors_of(subject: Subject) -> dict[str, tuple[str, File]]:
    """Family → the highest version that any file needs, and a file that needs it."""
    floors: dict[str, tuple[str, File]] = {}
    for file in subject.elves:
        for family, number in file.elf.version_floor().items() if file.elf else ():
            if family not in floors or version_key(number) > version_key(floors[family][0]):
                floors[family] = (number, file)
    return floors


def check(subject: Subject) -> Iterator[Finding]:
    """Hold the highest need of all files against the promised floor, each family apart."""
    promised = subject.expected.glibc_floor
    if not promised:
        return
    if not promised.replace(".", "").isdigit():
        yield UNKNOWN.at("", f"The promised glibc floor {promised!r} is not a version.")
        return
    bundled = any(file.elf and file.elf.soname == "libstdc++.so.6" for file in subject.elves)
    runtime = max(
        (row for row in _RUNTIME_OF_GLIBC if version_key(row[0]) <= version_key(promised)),
        key=lambda row: version_key(row[0]),
        default=None,
    )
    limits: list[tuple[Kind, str, str]] = [(GLIBC, "GLIBC", promised)]
    if runtime is not None and not bundled:
        limits += [(GLIBCXX, "GLIBCXX", runtime[1]), (CXXABI, "CXXABI", runtime[2])]
    for kind, family, limit in limits:
        for file in subject.elves:
            needed = file.elf.version_floor().get(family) if file.elf else None
            if needed is not None and version_key(needed) > version_key(limit):
                yield kind.at(
                    file.path,
                    f"{file.path} needs {family}_{needed}, above the floor {family}_{limit}.",
                    evidence=", ".join(sorted({v for _, v in file.elf.version_needs if v == f"{family}_{needed}"}))
                    if file.elf
                    else "",
                )
