"""Which file every NEEDED entry leads to, by glibc's rules, without asking a loader.

The rules are those of glibc's ``elf/dl-load.c`` (``_dl_map_object``): a name that is loaded already is not searched
for; DT_RPATH of the object, of the object that loaded it, and so on up to the program, unless the object itself has
DT_RUNPATH (an object whose DT_RPATH stands beside a DT_RUNPATH adds nothing); then DT_RUNPATH of the object alone;
then the system's folders. ``LD_LIBRARY_PATH`` and ``ld.so.cache`` are this machine's, not the bundle's: neither is
looked at.
"""

from __future__ import annotations

import os
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llamabuild.elf.policy import LibraryPolicy
from llamabuild.elf.read import ElfError, ElfFile, is_elf, read_elf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Origin = Literal["bundled", "system", "driver", "missing", "outside"]

Via = Literal["rpath", "runpath", "default", "path", "loaded", "name", ""]

_TRIPLETS = {
    "EM_X86_64": "x86_64-linux-gnu",
    "EM_AARCH64": "aarch64-linux-gnu",
    "EM_386": "i386-linux-gnu",
    "EM_PPC64": "powerpc64le-linux-gnu",
    "EM_RISCV": "riscv64-linux-gnu",
    "EM_S390": "s390x-linux-gnu",
}
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")


@dataclass(frozen=True)
class Edge:
    """One NEEDED entry, or one library opened by name, and where it leads."""

    source: Path
    """The object that asks."""
    needed: str
    """The name as written."""
    origin: Origin
    """``bundled``: inside the folder; ``outside``: elsewhere; ``system``, ``driver``: left to the host by policy."""
    target: Path | None
    """The file that would be loaded; for ``system`` and ``driver`` None, because that is the host's to say."""
    via: Via
    """What led there: an rpath entry, the system's folders, a path in the name itself, an object that the process has
    loaded already, or the policy by name."""
    note: str = ""


@dataclass(frozen=True)
class Closure:
    """Every edge that is reached from the roots, and the facts of every ELF file met."""

    roots: tuple[Path, ...]
    edges: tuple[Edge, ...]
    files: Mapping[Path, ElfFile]

    def by_origin(self, origin: Origin) -> tuple[Edge, ...]:
        """The edges of one origin."""
        return tuple(edge for edge in self.edges if edge.origin == origin)


@dataclass(frozen=True)
class Search:
    """How names are looked up.

    ``inside``: what lies under it is bundled. ``system_folders``: in the host's order (see ``system_folders``).
    ``opened_by_name``: what an object opens at run time, by soname, on top of NEEDED. ``library_folder`` and
    ``platform`` are the values of ``$LIB`` and ``$PLATFORM``; without one, ``$LIB`` follows from the machine.
    """

    inside: Path
    system_folders: tuple[Path, ...] = ()
    extra_folders: tuple[Path, ...] = ()
    """Searched after rpath and before the system's folders: where a planner finds what is not yet bundled."""
    own: Mapping[str, Path] = field(default_factory=dict)
    """Files by soname that win over every search: what a planner has decided on, whatever stale rpaths lead to."""
    policy: LibraryPolicy = field(default_factory=LibraryPolicy)
    opened_by_name: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    library_folder: str | None = None
    platform: str = "x86_64"
    follow_outside: bool = False
    """Go on from files outside the folder, and leave to the host what the policy does even where it lies inside, as a
    planner has to; a check stops there."""


@dataclass(frozen=True)
class _Loaded:
    """An object in the simulated process, with the chain of those that led to it, itself first."""

    file: ElfFile
    path: Path
    chain: tuple[ElfFile, ...]


def system_folders(root: Path = Path("/"), *, machine: str = "EM_X86_64") -> tuple[Path, ...]:
    """Folders where the system below ``root`` keeps its libraries, in the loader's order, existing ones alone.

    ``etc/ld.so.conf`` and what it includes come first, as in the cache that ldconfig makes of them.
    """
    triplet = _TRIPLETS.get(machine, "")
    wide = () if machine == "EM_386" else ("lib64", "usr/lib64")
    multiarch = (f"lib/{triplet}", f"usr/lib/{triplet}") if triplet else ()
    folders = [*_configured(root, Path("etc/ld.so.conf"), depth=0)]
    folders += [root / name for name in (*multiarch, *wide, "lib", "usr/lib", "usr/local/lib")]
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def _configured(root: Path, name: Path, *, depth: int) -> Iterator[Path]:
    if depth > 4:
        return
    try:
        lines = (root / name).read_text(errors="replace").splitlines()
    except OSError:
        return
    for raw in lines:
        line = raw.partition("#")[0].strip()
        if line.startswith("include"):
            pattern = line[len("include") :].strip()
            pattern = pattern.lstrip("/") if pattern.startswith("/") else str(name.parent / pattern)
            for path in sorted(root.glob(pattern)) if pattern else ():
                yield from _configured(root, path.relative_to(root), depth=depth + 1)
        elif line.startswith("/"):
            yield root / line.lstrip("/")


def expand(entry: str, *, origin: Path, library_folder: str, platform: str) -> Path | None:
    """Expand ``$ORIGIN``, ``$LIB`` and ``$PLATFORM`` of one rpath entry.

    None for an empty or relative entry: the loader takes it from the current folder, which is nobody's to know.
    """
    values = {"ORIGIN": str(origin), "LIB": library_folder, "PLATFORM": platform}
    text = _TOKEN.sub(lambda match: values[match[1] or match[2]], entry)
    return Path(os.path.normpath(text)) if text.startswith("/") else None


def resolve_closure(roots: Sequence[Path], *, search: Search, read: Callable[[Path], ElfFile] = read_elf) -> Closure:
    """Resolve everything that ``roots`` need, each root as a process of its own.

    Every program and every plugin is a root: a plugin is opened by name, so no program's NEEDED reaches it, and it
    must find its dependencies whoever opens it. Edges come in the order met, each once.

    Raises ElfError when a root cannot be read; a damaged dependency is an edge of origin ``missing`` with a note.
    """
    files: dict[Path, ElfFile] = {}
    edges: dict[Edge, None] = {}

    def facts(path: Path) -> ElfFile:
        if path not in files:
            files[path] = read(path)
        return files[path]

    for root in roots:
        first = facts(root)
        # The kernel resolves links of the program's own path; for a library the loader does not.
        place = root.resolve() if first.kind == "executable" else root
        queue = deque([_Loaded(file=first, path=place, chain=(first,))])
        names: dict[str, Path | None] = {name: place for name in (first.soname, place.name) if name}
        seen = {place}
        while queue:
            loaded = queue.popleft()
            asked = (*loaded.file.needed, *search.opened_by_name.get(loaded.file.soname or loaded.path.name, ()))
            for needed in asked:
                edge = _resolve(needed, loaded, search=search, names=names, facts=facts)
                edges[edge] = None
                if edge.target is None or edge.target in seen:
                    continue
                seen.add(edge.target)
                found = facts(edge.target)
                for name in (needed, found.soname):
                    if name:
                        names.setdefault(name, edge.target)
                if edge.origin == "bundled" or search.follow_outside:
                    queue.append(_Loaded(file=found, path=edge.target, chain=(found, *loaded.chain)))
    return Closure(roots=tuple(roots), edges=tuple(edges), files=files)


def _resolve(
    needed: str,
    loaded: _Loaded,
    *,
    search: Search,
    names: Mapping[str, Path | None],
    facts: Callable[[Path], ElfFile],
) -> Edge:
    via: Via = "loaded"
    note = ""
    target: Path | None = names.get(needed) or search.own.get(needed)
    if target is None:
        for kind, candidate in _candidates(needed, loaded, search=search):
            if not candidate.exists():
                continue
            try:
                # The loader passes over files for another machine, and stops at a file that is no ELF file.
                other = facts(candidate)
            except ElfError as exc:
                note = exc.message
                break
            if (other.machine, other.bits) == (loaded.file.machine, loaded.file.bits):
                target, via = candidate, kind
                break
            note = f"{candidate} is for another machine ({other.machine})"
    whose = search.policy.classify(needed)
    # A planner leaves a driver that lies in the build to the host; a check has to see that it was bundled.
    if target is not None and _under(target, search.inside) and not (whose and search.follow_outside):
        return Edge(source=loaded.path, needed=needed, origin="bundled", target=target, via=via)
    if whose:
        return Edge(source=loaded.path, needed=needed, origin=whose, target=None, via="name")
    if target is not None:
        return Edge(source=loaded.path, needed=needed, origin="outside", target=target, via=via)
    return Edge(source=loaded.path, needed=needed, origin="missing", target=None, via="", note=note)


def _candidates(needed: str, loaded: _Loaded, *, search: Search) -> Iterator[tuple[Via, Path]]:
    library_folder = search.library_folder or f"lib/{_TRIPLETS.get(loaded.file.machine, '')}".rstrip("/")

    def folders(owner: ElfFile, text: str, place: Path) -> Iterator[Path]:
        origin = place.resolve().parent if owner.kind == "executable" else place.parent
        for entry in text.split(":"):
            folder = expand(entry, origin=origin, library_folder=library_folder, platform=search.platform)
            if folder is not None:
                yield folder

    if "/" in needed:
        origin = loaded.path.parent
        path = expand(needed, origin=origin, library_folder=library_folder, platform=search.platform)
        if path is not None:
            yield "path", path
        return
    if loaded.file.runpath is None:
        for owner in loaded.chain:
            if owner.rpath and owner.runpath is None:
                place = loaded.path if owner is loaded.file else owner.path
                for folder in folders(owner, owner.rpath, place):
                    yield "rpath", folder / needed
    else:
        for folder in folders(loaded.file, loaded.file.runpath, loaded.path):
            yield "runpath", folder / needed
    for folder in (*search.extra_folders, *search.system_folders):
        yield "default", folder / needed


def _under(path: Path, folder: Path) -> bool:
    """Whether a file really lies in a folder: a link in it that leads out of it does not count."""
    return path.is_relative_to(folder) and path.resolve().is_relative_to(folder.resolve())


def elf_roots(folder: Path) -> tuple[Path, ...]:
    """Every ELF program and shared library below a folder, links left out, sorted: all are roots of a check."""
    found = [path for path in folder.rglob("*") if not path.is_symlink() and is_elf(path)]
    return tuple(sorted(found))
