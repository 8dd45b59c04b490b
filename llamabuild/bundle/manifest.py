"""BUILD_INFO: what a bundle is made of, from which source, by which tools, and how each file can be checked.

Nothing in it depends on when or in which folder the bundle was made. The kernel's version is left out on purpose: it
has no part in the files, and would make two archives of the same files differ.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamabuild import __version__
from llamabuild.build.targets import cpu_baseline
from llamabuild.bundle.drivers import UNKNOWN, driver_floors
from llamabuild.bundle.tensile import source_archs
from llamabuild.core.files import sha256_file, write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llamabuild.build.model import BuildTree, Tool
    from llamabuild.bundle.model import BundlePlan, FileChange, StagedBundle
    from llamabuild.source.lock import PatchedSource, PatchOutcome

JSON_NAME = "BUILD_INFO.json"
TEXT_NAME = "BUILD_INFO.txt"

_ABSOLUTE = re.compile(r"(?<![\w.<>$}])/(?:[\w.+@~-]+/)*[\w.+@~-]+")
_SYSTEM = ("/usr/", "/bin/", "/lib/", "/lib64/", "/opt/", "/etc/", "/dev/")


def write_build_info(
    staged: StagedBundle,
    *,
    build: BuildTree,
    plan: BundlePlan,
    patched: PatchedSource | None = None,
    runtime: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write ``BUILD_INFO.json`` and ``BUILD_INFO.txt`` into the staged folder; returns the document.

    ``patched`` is None for a build that this tool did not make: nothing is then claimed about its source. ``runtime``:
    what the vendor components have to say (versions, archs), added under that key; the archs that its
    hipBLASLt's tree had, and a CUDA bundle's driver floors, are read from the files and added there too.
    """
    document = build_info(staged, build=build, plan=plan, patched=patched, runtime=runtime)
    write_json(staged.root / JSON_NAME, document)
    write_text(staged.root / TEXT_NAME, render_text(document))
    return document


def build_info(
    staged: StagedBundle,
    *,
    build: BuildTree,
    plan: BundlePlan,
    patched: PatchedSource | None = None,
    runtime: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document as plain data; reads (and hashes) the staged files, writes nothing.

    The keys that packagers of llama.cpp already use (``upstream_repo``, ``build_date``, ``cmake_config``, ``patches``,
    …) keep their names and meanings.
    """
    clean = _Cleaner.of(build)
    machine = _machine(staged)
    compiler = next((tool for tool in build.tools if tool.name in {"c++", "g++", "clang++", "cxx"}), None)
    return {
        "schema": 1,
        "project": staged.name,
        "project_kind": "llama.cpp bundle",
        "made_by": f"llamabuild {__version__}",
        **_source_keys(patched),
        "build_number": build.build_number,
        "build_commit": build.build_commit,
        "build_date": _day(staged.date),
        "source_date_epoch": staged.date,
        "platform": f"linux-{machine}",
        "target": build.target.name,
        "backend": "+".join(build.target.backends),
        "backends": list(build.target.backends),
        "arch": build.target.arch,
        "cpu_baseline": cpu_baseline(build.target, machine) if patched else "unknown",
        "rpath_kind": plan.rpath,
        "glibc_floor_asked": build.target.glibc_floor,
        "network_isolation": build.network,
        "compiler": f"{compiler.name} {compiler.version}" if compiler else "unknown",
        "cmake": _version(build.tools, "cmake"),
        "ninja": _version(build.tools, "ninja"),
        "tools": {tool.name: tool.version for tool in sorted(build.tools, key=lambda tool: tool.name)},
        "toolkit_files": dict(build.checksums),
        "cmake_config": [{"name": name, "value": clean(value)} for name, value in build.cache_entries],
        "runtime": {**(runtime or {}), **_source_archs(plan), **_driver_floors(staged, build, plan)},
        "notes": [*plan.notes, *staged.notes],
        "license": "MIT (llama.cpp); the licences of everything else are in licenses/",
        "files": _files(staged, plan),
    }


def _source_archs(plan: BundlePlan) -> dict[str, Any]:
    archs = source_archs(plan)
    return {"source_archs": archs} if archs else {}


def _driver_floors(staged: StagedBundle, build: BuildTree, plan: BundlePlan) -> dict[str, Any]:
    if "cuda" not in build.target.backends:
        return {}
    own = (entry.destination for entry in plan.entries if entry.origin == "llama.cpp" and entry.edit)
    toolkit = next((tool.version for tool in build.tools if tool.name == "nvcc"), "")
    return {"driver_floor": driver_floors([staged.root / name for name in own], toolkit=toolkit)}


def _source_keys(patched: PatchedSource | None) -> dict[str, Any]:
    if patched is None:
        return {"source": "unknown: the build folder was not made by this tool", "patches": []}
    lock = patched.lock
    return {
        "recipe": lock.recipe,
        "summary": lock.summary,
        "release": lock.release,
        "upstream_repo": lock.repository,
        "upstream_ref": lock.ref,
        "upstream_base_commit": lock.commit,
        "upstream_base_date": _day(lock.date),
        "upstream_tree": lock.tree,
        "source_provider": patched.provider,
        "commit": patched.commit,
        "tree": patched.tree,
        "worktree_dirty": False,
        "features": list(lock.features),
        "patches": [_patch(outcome) for outcome in patched.outcomes],
    }


def _patch(outcome: PatchOutcome) -> dict[str, Any]:
    patch = outcome.patch
    return {
        "id": patch.id,
        "series": patch.series,
        "group": patch.group,
        "subject": patch.subject,
        "switches": list(patch.switches),
        "sha256": patch.digest,
        "outcome": outcome.state,
        "note": outcome.note,
    }


def _files(staged: StagedBundle, plan: BundlePlan) -> list[dict[str, Any]]:
    changes = {change.destination: change for change in staged.changes}
    digests = _digests(staged, [entry.destination for entry in plan.entries if entry.link is None], changes)
    found: list[dict[str, Any]] = []
    for entry in plan.entries:
        path = staged.root / entry.destination
        if entry.link is not None:
            found.append({"path": entry.destination, "link": entry.link, "origin": entry.origin})
            continue
        record: dict[str, Any] = {
            "path": entry.destination,
            "size": path.stat().st_size,
            "sha256": digests[entry.destination],
            "origin": entry.origin,
        }
        if change := changes.get(entry.destination):
            record["changes"] = _changes(change)
        found.append(record)
    return found


def _digests(staged: StagedBundle, names: list[str], changes: Mapping[str, FileChange]) -> dict[str, str]:
    """SHA-256 by destination; what thinning has just hashed is not read again."""
    known = {name: change.thinned.sha256_after for name, change in changes.items() if change.thinned}
    rest = [name for name in names if name not in known]
    with ThreadPoolExecutor() as pool:
        hashed = pool.map(lambda name: sha256_file(staged.root / name), rest)
        return {**known, **dict(zip(rest, hashed, strict=True))}


def _changes(change: FileChange) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if change.stripped:
        found["stripped"] = True
    if change.rpath != "unchanged":
        found["rpath"] = change.rpath
    if thinned := change.thinned:
        found["thinned"] = {
            "kept": list(thinned.kept),
            "zeroed": list(thinned.zeroed),
            "zeroed_bytes": thinned.zeroed_bytes,
            "sha256_before": thinned.sha256_before,
            "sha256_after": thinned.sha256_after,
        }
    return found


def _machine(staged: StagedBundle) -> str:
    """The processor architecture of the programs, as the kernel names it."""
    from llamabuild.elf.read import is_elf, read_elf

    names = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
    first = next((path for path in sorted((staged.root / "bin").glob("*")) if is_elf(path)), None)
    return names.get(read_elf(first).machine, "unknown") if first else "unknown"


def _version(tools: tuple[Tool, ...], name: str) -> str:
    return next((tool.version for tool in tools if tool.name == name), "unknown")


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Cleaner:
    """Takes this machine's folders out of a text: the same build elsewhere has to describe itself in the same words."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(sorted(names.items(), key=lambda item: -len(item[0])))

    @classmethod
    def of(cls, build: BuildTree) -> _Cleaner:
        """The names of the build's own folders and tools."""
        # A ROCm's path is a tree's root, which may be /usr: no name for what lies below it.
        tools = {str(tool.path): tool.name for tool in build.tools if tool.path.is_absolute() and tool.name != "rocm"}
        return cls({**tools, str(build.folder): "<build>", str(build.source): "<source>"})

    def __call__(self, text: str) -> str:
        for folder, name in self._names.items():
            text = text.replace(folder, name)
        return _ABSOLUTE.sub(lambda match: match[0] if match[0].startswith(_SYSTEM) else Path(match[0]).name, text)


def render_text(document: Mapping[str, Any]) -> str:
    """The document for a reader: what was built from what, patch by patch, then the files with their digests."""
    lines = [str(document["project"]), "=" * len(str(document["project"])), ""]
    plain = [(key, value) for key, value in document.items() if isinstance(value, str | int) and key != "project"]
    width = max(len(key) for key, _ in plain)
    lines += [f"{key:<{width}}  {value}" for key, value in plain]
    if document.get("features"):
        lines += ["", "features: " + ", ".join(document["features"])]
    if floors := document["runtime"].get("driver_floor"):
        known = {arch: f"driver {floor} or newer" for arch, floor in floors.items() if floor != UNKNOWN}
        lines += ["", "NVIDIA driver:"]
        lines += [f"  {arch} needs {known.get(arch, 'a driver that is not known')}" for arch in floors]
    lines += ["", "patches:" if document["patches"] else "patches: none"]
    for patch in document["patches"]:
        note = f" ({patch['note']})" if patch["note"] else ""
        lines.append(f"  {patch['id'][:12]}  {patch['outcome']}{note}  {patch['series']}: {patch['subject']}")
    lines += ["", "tools:", *(f"  {name} {version}" for name, version in document["tools"].items())]
    lines += ["", "cmake:", *(f"  -D{entry['name']}={entry['value']}" for entry in document["cmake_config"])]
    lines += ["", "files:"]
    for file in document["files"]:
        if "link" in file:
            lines.append(f"  {'link':<64}  {file['path']} -> {file['link']}")
        else:
            lines.append(f"  {file['sha256']}  {file['path']} ({file['size']} bytes, {file['origin']})")
    if document["notes"]:
        lines += ["", "notes:", *(f"  {note}" for note in document["notes"])]
    return "\n".join(lines) + "\n"
