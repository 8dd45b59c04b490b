"""Dependencies: each NEEDED entry of each program, library and plugin is bundled, or is the host's to have."""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from llamabuild.bundle.rules import load_components
from llamabuild.elf.policy import LibraryPolicy
from llamabuild.elf.read import ElfError
from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.elf.closure import Closure, Edge
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import Subject

NOT_BUNDLED = Kind(
    "closure.not-bundled",
    "error",
    "A library that a file needs is found neither in the bundle by the file's own rpath, nor on the list of what every "
    "host has. On a machine without it the program does not start; a plugin is skipped without a word.",
    "Bundle it with its whole chain of links, and give the file an rpath that reaches it. RUNPATH of the program does "
    "not count for what its libraries need.",
)
HOST_LIBRARY = Kind(
    "closure.host-library",
    "warning",
    "A library is left to the host that most, but not all, hosts have: a bare container image lacks it.",
    "Bundle it, or say in the notes what has to be installed.",
)
OUTSIDE = Kind(
    "closure.outside",
    "error",
    "A library is found outside the bundle, by an absolute path that is written into the file.",
    "Bundle it and make the path relative to $ORIGIN.",
)
DRIVER_BUNDLED = Kind(
    "closure.driver-bundled",
    "error",
    "A driver's library is in the bundle. It has to match the kernel module of the host: a bundled libcuda is rejected "
    "by GeForce cards (error 804), and llama.cpp then runs on the CPU without a word.",
    "Remove it; the host's driver brings its own.",
)
SYSTEM_BUNDLED = Kind(
    "closure.system-bundled",
    "error",
    "A part of the C library is in the bundle. It belongs to the host's loader; a second one in a process crashes it.",
    "Remove it, and build on a system whose glibc is old enough instead.",
)
NCCL_UNWANTED = Kind(
    "closure.collectives-unwanted",
    "error",
    "A file needs NCCL or RCCL although nobody asked for it: llama.cpp links NCCL whenever it is found at build time.",
    "Configure with GGML_CUDA_NCCL=OFF (GGML_HIP_RCCL=OFF), or say nccl = true (rccl = true) in the recipe.",
)
NCCL_MISSING = Kind(
    "closure.collectives-missing",
    "error",
    "The recipe asks for NCCL or RCCL, and no file needs it.",
    "See why configure did not find it: llamabuild inspect on the build folder.",
)
UNREFERENCED = Kind(
    "closure.unreferenced",
    "note",
    "A bundled library that no file needs and that is no plugin: it may be opened by name at run time, or be left "
    "over.",
    "Nothing, if it is opened by name; else remove it.",
)
OPENED_MISSING = Kind(
    "closure.opened-missing",
    "error",
    "A bundled library opens another by name at run time, which no NEEDED entry tells, and that one is not in the "
    "bundle: everything starts, and the device is missing or the first request fails.",
    "Bundle it with its links; the rules in llamabuild/bundle/components name what each vendor's library opens.",
)
UNREADABLE = Kind(
    "closure.not-checked",
    "error",
    "The dependencies of a file could not be resolved, so nothing is known about them.",
    "Look at the evidence; a damaged file has a finding of its own.",
)

KINDS = (
    NOT_BUNDLED,
    HOST_LIBRARY,
    OUTSIDE,
    DRIVER_BUNDLED,
    SYSTEM_BUNDLED,
    NCCL_UNWANTED,
    NCCL_MISSING,
    UNREFERENCED,
    OPENED_MISSING,
    UNREADABLE,
)

_HOST = (
    ("libstdc++.so.6", "the C++ runtime"),
    ("libgcc_s.so.1", "GCC's runtime"),
    ("libvulkan.so.1", "the Vulkan loader"),
    ("libcudart.so.*", "the CUDA runtime, shipped as an archive of its own by many"),
    ("libcublas.so.*", "cuBLAS, shipped as an archive of its own by many"),
    ("libcublasLt.so.*", "cuBLASLt, shipped as an archive of its own by many"),
)
_COLLECTIVES = {"nccl": "libnccl.so.*", "rccl": "librccl.so.*"}


def check(subject: Subject) -> Iterator[Finding]:
    """Resolve every ELF file as a root of its own, by the loader's rules."""
    yield from _hosts_own(subject)
    yield from _collectives(subject)
    try:
        closure = subject.closure
    except (ElfError, OSError) as exc:
        yield UNREADABLE.at("", "The dependencies could not be resolved.", evidence=str(exc))
        return
    yield from _edges(subject, closure)
    yield from _opened_by_name(subject, closure)


def _hosts_own(subject: Subject) -> Iterator[Finding]:
    strict = LibraryPolicy()
    for file in subject.elves:
        soname = file.elf.soname if file.elf and file.elf.soname else file.name
        whose = strict.classify(soname) or strict.classify(file.name) or subject.policy.classify(soname)
        if whose == "driver":
            yield DRIVER_BUNDLED.at(file.path, f"{file.path} belongs to the host's driver.", evidence=soname)
        elif whose == "system":
            yield SYSTEM_BUNDLED.at(file.path, f"{file.path} belongs to the host's system.", evidence=soname)


def _edges(subject: Subject, closure: Closure) -> Iterator[Finding]:
    apart = {path.rpartition("/")[2] for paths in subject.absent_parts.values() for path in paths}
    askers: dict[tuple[str, str], list[Edge]] = defaultdict(list)
    for edge in closure.edges:
        if edge.origin in {"missing", "outside"}:
            askers[edge.origin, edge.needed].append(edge)
    for (origin, needed), edges in sorted(askers.items()):
        files = sorted({subject.relative(edge.source.resolve()) for edge in edges})
        evidence = f"needed by {', '.join(files)}" + next((f"; {edge.note}" for edge in edges if edge.note), "")
        if origin == "outside":
            yield OUTSIDE.at(files[0], f"{files[0]} gets {needed} from {edges[0].target}.", evidence=evidence)
            continue
        if needed in apart:
            continue
        if subject.left_to_host(needed) and not _inside(subject, needed):
            # Whoever made the bundle chose this; BUILD_INFO says so to whoever unpacks it.
            yield HOST_LIBRARY.at(
                files[0],
                f"{needed} is left to the host, as the bundle's runtime kind says.",
                evidence=evidence,
                severity="note",
                hint="Install the vendor's runtime on each host, where the loader finds it.",
            )
            continue
        host = next((what for pattern, what in _HOST if fnmatchcase(needed, pattern)), None)
        if host and not _inside(subject, needed):
            yield HOST_LIBRARY.at(files[0], f"{needed} ({host}) is left to the host.", evidence=evidence)
        else:
            lies = _inside(subject, needed)
            where = f"it lies in {lies}, which the file's rpath does not reach" if lies else "it is not in the bundle"
            yield NOT_BUNDLED.at(files[0], f"{files[0]} needs {needed}: {where}.", evidence=evidence)


def _inside(subject: Subject, name: str) -> str:
    return next((path for path in (*subject.files, *subject.links) if path.rpartition("/")[2] == name), "")


def _collectives(subject: Subject) -> Iterator[Finding]:
    for option, pattern in _COLLECTIVES.items():
        wanted = getattr(subject.expected, option)
        users = [
            file for file in subject.elves if file.elf and any(fnmatchcase(name, pattern) for name in file.elf.needed)
        ]
        if users and not wanted:
            yield NCCL_UNWANTED.at(
                users[0].path,
                f"{users[0].path} needs {pattern.removesuffix('.*')} although nobody asked for {option.upper()}.",
                severity="error" if wanted is False else "warning",
                evidence=", ".join(file.path for file in users),
            )
        elif wanted and not users:
            yield NCCL_MISSING.at("", f"{subject.expected.source} asks for {option.upper()}, and no file needs it.")


def _opened_by_name(subject: Subject, closure: Closure) -> Iterator[Finding]:
    """Libraries that no NEEDED entry reaches: opened by name as the vendors' rules say, or left over."""
    used = {subject.relative(edge.target.resolve()) for edge in closure.edges if edge.target is not None}
    reached = {file.path for file in subject.plugins} | used
    libraries = [file for file in subject.elves if file.elf and file.elf.kind == "shared"]
    names = {name for file in libraries for name in (file.name, file.elf.soname if file.elf else None) if name}
    patterns: set[str] = set()
    for component in load_components():
        owned = [file for file in libraries if component.owns(file.name)]
        if component.always:
            patterns.update(component.libraries)
        for opened in component.opens if owned else ():
            patterns.add(opened.pattern)
            if opened.required and not any(fnmatchcase(name, opened.pattern) for name in names):
                yield OPENED_MISSING.at(
                    owned[0].path, f"{owned[0].path} opens {opened.pattern} by name, and the bundle has none."
                )
    for file in libraries:
        told = {file.name, (file.elf.soname if file.elf else None) or file.name}
        expected = any(fnmatchcase(name, pattern) for name in told for pattern in patterns)
        if subject.programs and file.path not in reached and not expected:
            yield UNREFERENCED.at(
                file.path, f"No file needs {file.path}.", evidence=file.elf.soname or "" if file.elf else ""
            )
