"""One flavour's part of a release: its archives, and everything that is said about them."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.bundle.model import Artifact
from llamabuild.bundle.unpack import open_archive
from llamabuild.core.errors import UsageError, VerificationError
from llamabuild.core.files import scratch_folder, sha256_file, write_json, write_text
from llamabuild.elf.closure import elf_roots
from llamabuild.elf.device_code import read_device_code
from llamabuild.elf.read import read_elf
from llamabuild.release.changes import changes_between
from llamabuild.release.container import containerfile
from llamabuild.release.crosscheck import verify_provenance
from llamabuild.release.facts import BuildFacts, read_facts
from llamabuild.release.info import owners_of, release_info
from llamabuild.release.licenses import host_facts, installed_packages
from llamabuild.release.page.page import PageInput, make_page
from llamabuild.release.provenance import builder_of, installed_wheels, make_statement
from llamabuild.release.sbom import make_sbom
from llamabuild.release.served import serve_tiny
from llamabuild.release.statement import digests_of, read_statement
from llamabuild.release.view import view_bundle
from llamabuild.release.wheel import make_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from llamabuild.core.context import Context
    from llamabuild.release.changes import Change
    from llamabuild.release.ninja import Step
    from llamabuild.release.view import BundleView
    from llamabuild.verify.findings import Report

_FORMATS = (".tar.zst", ".tar.gz", ".tar.xz", ".zip")


@dataclass(frozen=True)
class Built:
    """What a build of one flavour hands over."""

    archives: tuple[Path, ...]
    """Finished and verified, all of one bundle: the whole one first, or the part with the programs."""
    report: Report
    """What verification found in the whole one."""
    started: float
    """When the build began, seconds since the epoch."""
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Part:
    """A flavour as it lies in a release folder."""

    facts: BuildFacts
    archives: tuple[Artifact, ...]
    statement: str
    """File name of its provenance statement."""
    changes: tuple[Change, ...] | None = None

    @property
    def baseline(self) -> bool:
        """Whether it is the unpatched build for comparison."""
        return self.facts.recipe.startswith("baseline-")


def part_name(facts: BuildFacts) -> str:
    """What the names of a flavour's files end in: ``cuda-86``, ``baseline-7fe450e-cuda-86``."""
    return f"{facts.recipe}-{facts.flavour}" if facts.recipe.startswith("baseline-") else facts.flavour


@dataclass(frozen=True)
class Extras:
    """What else a part is made of."""

    container: bool = False
    """A Containerfile."""
    wheel: bool = False
    """A Python wheel."""
    smoke: bool = False
    """The word of the smoke test, which is run for it."""


def write_part(
    built: Built,
    folder: Path,
    *,
    context: Context,
    extras: Extras = Extras(),
    since: Sequence[BuildFacts] = (),
    since_name: str = "",
) -> Part:
    """Put one flavour's archives into ``folder`` with BUILD_INFO, SBOM, report page and provenance statement.

    ``since``: the flavours of an earlier release. Raises UsageError for a bundle whose BUILD_INFO cannot be used, and
    for an extra that cannot be made of it.
    """
    archives = tuple(_take(path, folder) for path in built.archives)
    with (
        scratch_folder(context.home.root, prefix="release-") as scratch,
        context.console.step(f"describe {archives[0].path.name}"),
    ):
        root = open_together([archive.path for archive in archives], scratch)
        where = f"BUILD_INFO.json in {archives[0].path.name}"
        inner = _read_inner(root / "BUILD_INFO.json", where)
        read_facts(inner, where=where)
        view = view_bundle(root, owners_of(inner))
        codes = [read_device_code(read_elf(path)) for path in elf_roots(root)]
        served = serve_tiny(root, scratch, context, name=archives[0].path.name) if extras.smoke else None
        info = release_info(
            inner,
            device=[code for code in codes if code is not None],
            floors=view.floors,
            report=built.report,
            served=served,
            host=host_facts(Path("/"), kernel=platform.release()),
            packages=installed_packages(Path("/")),
        )
        facts = read_facts(info, where=where)
        _write_extras(extras, facts, view, archives=archives, folder=folder)
    name = part_name(facts)
    before = next((old for old in since if part_name(old) == name), None)
    changes = changes_between(before, facts) if before else None
    write_json(folder / f"BUILD_INFO-{name}.json", info)
    write_text(folder / f"sbom-{name}.cdx.json", make_sbom(facts, view, archives=archives))
    page = PageInput(facts, view, built.report, archives, steps=built.steps, changes=changes, since=since_name)
    write_text(folder / f"report-{name}.html", make_page(page))
    about = [folder / f"BUILD_INFO-{name}.json", folder / f"sbom-{name}.cdx.json", folder / f"report-{name}.html"]
    statement = make_statement(
        facts,
        archives=archives,
        byproducts=[_artifact(path) for path in about],
        wheels=installed_wheels(),
        builder=builder_of(context.env, started=built.started, finished=context.now()),
    )
    write_json(folder / f"provenance-{name}.intoto.json", statement)
    return Part(facts=facts, archives=archives, statement=f"provenance-{name}.intoto.json", changes=changes)


def _write_extras(
    extras: Extras, facts: BuildFacts, view: BundleView, *, archives: Sequence[Artifact], folder: Path
) -> None:
    if extras.container:
        plain = [archive for archive in archives if archive.path.name.endswith(".tar.gz")]
        write_text(folder / f"Containerfile-{part_name(facts)}", containerfile(facts, view, archives=plain))
    if extras.wheel and not facts.recipe.startswith("baseline-"):
        make_wheel(facts, view, folder)


def find_statements(folder: Path) -> tuple[Path, ...]:
    """Every provenance statement below a folder of finished parts."""
    return tuple(sorted(folder.rglob("provenance-*.intoto.json")))


def take_part(statement: Path, folder: Path, *, since: Sequence[BuildFacts] = ()) -> Part:
    """Take over a part that another run finished: everything its statement names, after checking all of it.

    Raises VerificationError where anything does not hold, or is missing.
    """
    source = statement.parent
    require_checked(statement, source)
    document = read_statement(statement)
    byproducts = digests_of(document["predicate"]["runDetails"].get("byproducts", ()))
    archives = tuple(_take(source / name, folder) for name in digests_of(document["subject"]))
    for name in (*byproducts, statement.name):
        _take(source / name, folder)
    info_name = next(name for name in byproducts if name.startswith("BUILD_INFO-"))
    facts = read_facts(json.loads((folder / info_name).read_bytes()), where=str(source / info_name))
    before = next((old for old in since if part_name(old) == part_name(facts)), None)
    changes = changes_between(before, facts) if before else None
    return Part(facts=facts, archives=archives, statement=statement.name, changes=changes)


def require_checked(statement: Path, folder: Path) -> None:
    """Hold a statement against ``folder``; raises VerificationError for what is wrong, or could not be checked."""
    report = verify_provenance(statement, folder)
    bad = [finding for finding in report.findings if finding.severity != "note"]
    if bad:
        raise VerificationError(
            f"{statement} does not hold for the files beside it: {bad[0].message}",
            hint="Make that part again, or fetch it again whole.",
            details=tuple(f"{finding.name}: {finding.message} {finding.evidence}".strip() for finding in bad),
        )


def read_release(folder: Path) -> tuple[BuildFacts, ...]:
    """The flavours of an earlier release, from its ``BUILD_INFO-*.json`` (or one such file).

    Raises UsageError where there is none, or one cannot be used.
    """
    paths = [folder] if folder.is_file() else sorted(folder.glob("BUILD_INFO*.json"))
    if not paths:
        raise UsageError(
            f"{folder} holds no BUILD_INFO-*.json.",
            hint="Name the folder of an earlier release, or one BUILD_INFO file.",
        )
    return tuple(read_facts(_read_inner(path, str(path)), where=str(path)) for path in paths)


def archives_in(folder: Path, name: str) -> tuple[Path, ...]:
    """A bundle's archives in the folder that ``make`` filled: whole ones, or those with the programs, first."""
    found = [path for path in folder.iterdir() if path.name.startswith(name) and path.name.endswith(_FORMATS)]

    def order(path: Path) -> tuple[bool, int, str]:
        ending = next(index for index, form in enumerate(_FORMATS) if path.name.endswith(form))
        return path.name != name + _FORMATS[ending], ending, path.name

    return tuple(sorted(found, key=order))


def is_split(archives: Sequence[Path]) -> bool:
    """Whether it takes more than one archive to have the bundle."""
    return len(_once(archives)) > 1


def open_together(archives: Sequence[Path], folder: Path) -> Path:
    """Unpack a bundle's archives in one place, as its user does, and return the bundle's root."""
    root, *_ = [open_archive(path, folder) for path in _once(archives)]
    return root


def _once(archives: Sequence[Path]) -> list[Path]:
    """The archives in the first one's format: together they are the bundle, once."""
    ending = next(form for form in _FORMATS if archives[0].name.endswith(form))
    return [path for path in archives if path.name.endswith(ending)]


def _read_inner(path: Path, where: str) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_bytes())
    except OSError as exc:
        raise UsageError(
            f"{where} cannot be read: {exc.strerror or exc}.", hint="Name a bundle of llamabuild."
        ) from exc
    except ValueError as exc:
        raise UsageError(f"{where} is not JSON: {exc}.", hint="Make the bundle again.") from exc
    if not isinstance(document, dict):
        raise UsageError(f"{where} is not a JSON object.", hint="Make the bundle again.")
    return document


def _take(path: Path, folder: Path) -> Artifact:
    shutil.copyfile(path, folder / path.name)
    return _artifact(folder / path.name)


def _artifact(path: Path) -> Artifact:
    return Artifact(path=path, sha256=sha256_file(path), size=path.stat().st_size)
