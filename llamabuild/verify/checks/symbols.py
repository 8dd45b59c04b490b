"""Symbols: what each file needs is defined, in the right version, by the bundled libraries that it gets."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from llamabuild.elf.read import opened
from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.elf.closure import Closure, Edge
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import File, Subject

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
KINDS = (VERSION_MISSING, SYMBOL_UNDEFINED)

_VERSIONED = frozenset({"libstdc++.so.6", "libgcc_s.so.1"})
"""Every symbol of these has a version, so none that is asked for without one can be theirs."""
_TREE_SYMBOL = re.compile(r"^(?:ggml|gguf|llama|mtmd|common|clip|quantize|dequantize)_|^_Z")
"""Symbols that llama.cpp's libraries have from each other."""


def check(subject: Subject) -> Iterator[Finding]:
    """Hold needs against definitions along the closure of every file."""
    yield from _versions(subject, subject.closure)
    yield from _symbols(subject, subject.closure)


def _versions(subject: Subject, closure: Closure) -> Iterator[Finding]:
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
