"""A bundle as a Python wheel: installed offline by pip, its programs as console scripts, its libraries inside.

Format: PyPA "Binary distribution format". A wheel cannot hold links, so each library lies there once, under the name
that others need it by. The tag is the real glibc floor (PEP 600), not the build host's.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.bundle.model import Artifact
from llamabuild.core.errors import UsageError
from llamabuild.core.files import atomic_write, sha256_file
from llamabuild.release.facts import read_facts
from llamabuild.release.info import owners_of
from llamabuild.release.view import view_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llamabuild.release.facts import BuildFacts
    from llamabuild.release.view import BundleView

_LAUNCHER = '''\
"""Start the programs of this runtime."""

import os
import sys
from pathlib import Path

BUNDLE = Path(__file__).parent / "bundle"


def _start(name):
    program = str(BUNDLE / "bin" / name)
    os.execv(program, [program, *sys.argv[1:]])
'''
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Member:
    name: str
    data: bytes | Path
    executable: bool = False


def wheel_of_bundle(root: Path, out: Path) -> Artifact:
    """Make the wheel of a bundle's folder (staged or unpacked) in the folder ``out``.

    Raises UsageError for a folder without a BUILD_INFO.json that can be used, and as ``make_wheel``.
    """
    where = root / "BUILD_INFO.json"
    try:
        info = json.loads(where.read_bytes())
    except (OSError, ValueError) as exc:
        raise UsageError(f"{where} cannot be read: {exc}.", hint="Name the folder of a bundle of llamabuild.") from exc
    facts = read_facts(info, where=str(where))
    return make_wheel(facts, view_bundle(root, owners_of(info)), out)


def make_wheel(facts: BuildFacts, view: BundleView, out: Path) -> Artifact:
    """Write ``out/llama_runtime_<recipe>-<version>-py3-none-<platform>.whl``; the same bundle gives the same bytes.

    Raises UsageError for a bundle whose platform or glibc floor no tag can name.
    """
    package = "llama_runtime_" + re.sub(r"[^a-z0-9]+", "_", facts.recipe.lower()).strip("_")
    version = wheel_version(facts)
    tag = f"py3-none-{_platform(facts, view.floors)}"
    info = f"{package}-{version}.dist-info"
    members = [
        _Member(f"{package}/__init__.py", f'"""{_line(facts.summary)}"""\n'.encode()),
        _Member(f"{package}/launch.py", _launcher(view).encode()),
        *(_Member(f"{package}/bundle/{name}", path, mode) for name, path, mode in _bundle_files(view)),
        _Member(f"{info}/METADATA", _metadata(facts, package, version).encode()),
        _Member(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: llamabuild\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
        ),
        _Member(f"{info}/entry_points.txt", _entry_points(package, view).encode()),
    ]
    path = out / f"{package}-{version}-{tag}.whl"
    with atomic_write(path) as handle, zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        rows = [_write(archive, member, date=facts.date) for member in members]
        record = _record([*rows, (f"{info}/RECORD", "", "")])
        _write(archive, _Member(f"{info}/RECORD", record.encode()), date=facts.date)
    return Artifact(path=path, sha256=sha256_file(path), size=path.stat().st_size)


def wheel_version(facts: BuildFacts) -> str:
    """Upstream's version (``0.0.<build number>`` where its tag is none), the flavour as local label (PEP 440)."""
    found = re.fullmatch(r"v?(\d+(?:\.\d+)*)", facts.ref)
    label = re.sub(r"[^a-z0-9]+", ".", facts.flavour.lower()).strip(".")
    return f"{found[1] if found else f'0.0.{facts.build_number}'}+{label}"


def _platform(facts: BuildFacts, floors: Mapping[str, str]) -> str:
    machine = facts.platform.removeprefix("linux-")
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", floors.get("GLIBC", ""))
    if found is None or machine == facts.platform:
        raise UsageError(
            f"No wheel tag names {facts.platform} with glibc {floors.get('GLIBC', 'unknown')}.",
            hint="A wheel is for a bundle whose programs are for Linux with glibc.",
        )
    return f"manylinux_{found[1]}_{found[2]}_{machine}"


def _bundle_files(view: BundleView) -> Iterator[tuple[str, Path, bool]]:
    """Name in the wheel, file, whether it can be executed: links gone, libraries under the names they are needed by."""
    needed = {edge.name for edge in view.needed}
    names: dict[str, list[str]] = {file.path: [file.path] for file in view.files}
    for link in view.links:
        target = (view.root / link).resolve()
        if target.is_relative_to(view.root.resolve()) and target.is_file():
            names[target.relative_to(view.root.resolve()).as_posix()].append(link)
    for path in sorted(names):
        known = names[path]
        library = ".so" in path.rpartition("/")[2] and path not in view.plugins
        wanted = [name for name in known if name.rpartition("/")[2] in needed] if library else known[:1]
        for name in sorted(wanted or known[:1]):
            file = view.root / path
            yield name, file, bool(file.stat().st_mode & 0o111)


def _launcher(view: BundleView) -> str:
    functions = [
        f'\n\ndef {_function(program)}():\n    """Start {Path(program).name}."""\n    _start("{Path(program).name}")\n'
        for program in view.programs
    ]
    return _LAUNCHER + "".join(functions)


def _function(program: str) -> str:
    return re.sub(r"\W", "_", Path(program).name)


def _entry_points(package: str, view: BundleView) -> str:
    lines = [f"{Path(program).name} = {package}.launch:{_function(program)}" for program in view.programs]
    return "\n".join(["[console_scripts]", *lines, ""])


def _metadata(facts: BuildFacts, package: str, version: str) -> str:
    patches = f" with {len(facts.patches)} patches ({facts.patched_commit[:9]})" if facts.patches else ""
    return (
        f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: {version}\n"
        f"Summary: {_line(facts.summary)}\nRequires-Python: >=3.8\nLicense: {_line(facts.license)}\n"
        f"Description-Content-Type: text/plain\n\n"
        f"llama.cpp {facts.ref} (build {facts.build_number}, commit {facts.commit}){patches}, {facts.flavour}.\n"
        f"What it was made from is in {package}/bundle/BUILD_INFO.txt, the licences in {package}/bundle/licenses/.\n"
    )


def _line(value: str) -> str:
    return " ".join(value.replace('"', "'").replace("\\", "/").split())


def _write(archive: zipfile.ZipFile, member: _Member, *, date: int) -> tuple[str, str, str]:
    """Add a member; returns its row of RECORD."""
    moment = time.gmtime(max(date, 315532800))  # A zip file knows no time before 1980.
    info = zipfile.ZipInfo(member.name, date_time=moment[:6])
    info.create_system = 3
    info.external_attr = (0o100755 if member.executable else 0o100644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    digest, size = hashlib.sha256(), 0
    source = io.BytesIO(member.data) if isinstance(member.data, bytes) else member.data.open("rb")
    with source, archive.open(info, "w", force_zip64=True) as target:
        while block := source.read(_BLOCK):
            digest.update(block)
            size += len(block)
            target.write(block)
    return member.name, "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode(), str(size)


def _record(rows: list[tuple[str, str, str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
