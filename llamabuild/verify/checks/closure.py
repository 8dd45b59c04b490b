"""Dependencies: each NEEDED entry of each program, library and plugin is bundled, or is the host's to have."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from llamabuild.bundle.rules import load_components
from llamabuild.elf.closure import Search, resolve_closure
from llamabuild.elf.policy import LibraryPolicy
from llamabuild.elf.read import ElfError, read_elf
from llamabuild.verify.kinds import Kind
from llamabuild.verify.subject import backend_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from llamabuild.elf.closure import Closure, Edge
    from llamabuild.elf.read import ElfFile
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import File, Subject

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
VERSION_MISSING = Kind(
    "closure.version-missing",
    "error",
    "A file needs a symbol version that the bundled library of that name does not define: the loader refuses to start "
    "it. An older copy of the library, or version tables damaged by an edit, look like this.",
    "Bundle the library that the file was linked with, and compare the version tables before and after every edit.",
)
SYMBOL_UNDEFINED = Kind(
    "closure.symbol-undefined",
    "error",
    "A symbol that a file needs is exported by none of the libraries it depends on: the bundle mixes two builds, or a "
    "library was linked against a stub that lacks it.",
    "Take all files from one build.",
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
    VERSION_MISSING,
    SYMBOL_UNDEFINED,
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
_VERSIONED = frozenset({"libstdc++.so.6", "libgcc_s.so.1"})
"""Every symbol of these has a version, so none that is asked for without one can be theirs."""
_TREE_SYMBOL = re.compile(r"^(?:ggml|gguf|llama|mtmd|common|clip|quantize|dequantize)_|^_Z")
"""Symbols that llama.cpp's libraries have from each other."""
_COLLECTIVES = {"nccl": "libnccl.so.*", "rccl": "librccl.so.*"}


def check(subject: Subject) -> Iterator[Finding]:
    """Resolve every ELF file as a root of its own, by the loader's rules."""
    policy = LibraryPolicy(vulkan=any(backend_of(plugin.name) == "vulkan" for plugin in subject.plugins))
    yield from _hosts_own(subject, policy)
    roots = subject.elves
    try:
        search = Search(inside=subject.root, policy=policy)
        closure = resolve_closure([file.real for file in roots], search=search, read=_known(subject))
    except (ElfError, OSError) as exc:
        yield UNREADABLE.at("", "The dependencies could not be resolved.", evidence=str(exc))
        return
    yield from _edges(subject, closure)
    yield from _collectives(subject)
    yield from _versions(subject, closure)
    yield from _symbols(subject, closure)
    yield from _opened_by_name(subject, closure)


def _known(subject: Subject) -> Callable[[Path], ElfFile]:
    """Reads nothing again that the scan has read."""

    def read(path: Path) -> ElfFile:
        file = subject.by_real_path.get(path.resolve())
        return replace(file.elf, path=path) if file is not None and file.elf is not None else read_elf(path)

    return read


def _hosts_own(subject: Subject, policy: LibraryPolicy) -> Iterator[Finding]:
    strict = LibraryPolicy()
    for file in subject.elves:
        soname = file.elf.soname if file.elf and file.elf.soname else file.name
        whose = strict.classify(soname) or strict.classify(file.name) or policy.classify(soname)
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


def _versions(subject: Subject, closure: Closure) -> Iterator[Finding]:
    from llamabuild.elf.read import opened

    defined: dict[str, frozenset[str]] = {}
    targets = {
        (subject.relative(edge.source), edge.needed): edge.target
        for edge in closure.edges
        if edge.origin == "bundled" and edge.target
    }
    for file in subject.elves:
        for library, version in file.elf.version_needs if file.elf else ():
            target = targets.get((file.path, library))
            if target is None:
                continue
            key = str(target.resolve())
            if key not in defined:
                with opened(target) as elf:
                    defined[key] = _version_definitions(elf)
            if version not in defined[key]:
                yield VERSION_MISSING.at(
                    file.path, f"{file.path} needs {version} of {library}, which the bundled one does not define."
                )


def _version_definitions(elf: object) -> frozenset[str]:
    from elftools.elf.gnuversions import GNUVerDefSection

    return frozenset(
        auxiliary.name
        for section in elf.iter_sections()  # type: ignore[attr-defined]
        if isinstance(section, GNUVerDefSection)
        for _, auxiliaries in section.iter_versions()
        for auxiliary in auxiliaries
    )


def _symbols(subject: Subject, closure: Closure) -> Iterator[Finding]:
    """Symbols without a version come from libraries without versions: the bundle's own, never the C library's.

    A file with a dependency that is not here (a driver, a missing library) is left out: the symbol may be there.
    """
    edges: dict[str, list[Edge]] = defaultdict(list)
    for edge in closure.edges:
        edges[subject.relative(edge.source)].append(edge)
    for file in subject.elves:
        reach = _reach(subject, file, edges)
        if reach is None:
            continue
        wanted = set(subject.symbols(file).wanted)
        for path in reach:
            if not wanted:
                break
            wanted -= subject.symbols(subject.files[path]).exported
        if wanted:
            names = sorted(wanted, key=lambda name: (not _TREE_SYMBOL.match(name), name))
            yield SYMBOL_UNDEFINED.at(
                file.path,
                f"{file.path} needs {names[0]}{_more(names)}, which no library of its closure exports.",
                evidence=", ".join(names[:20]),
                # An extension of another program (Python, Node) has symbols that its host brings, and what was linked
                # without the C library's name still gets that library's symbols.
                severity=None if file.of_llama and _TREE_SYMBOL.match(names[0]) else "note",
            )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more symbols" if len(names) > 1 else ""


def _reach(subject: Subject, file: File, edges: dict[str, list[Edge]]) -> list[str] | None:
    """The bundled files that a file's symbols may come from, itself first; None where some are not here."""
    order = [file.path]
    for path in order:
        for edge in edges.get(path, ()):
            if edge.origin in {"driver", "missing", "outside"} and edge.needed not in _VERSIONED:
                return None
            if edge.target is not None:
                real = subject.relative(edge.target.resolve())
                if real in subject.files and real not in order:
                    order.append(real)
    return order


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
