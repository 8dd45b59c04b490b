"""Release notes in Markdown, from facts alone."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.release.page.html import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llamabuild.bundle.model import Artifact
    from llamabuild.release.changes import Change
    from llamabuild.release.facts import BuildFacts


@dataclass(frozen=True)
class NotedFlavour:
    """One flavour as the notes tell it."""

    facts: BuildFacts
    archives: tuple[Artifact, ...]
    baseline: bool = False
    """The unpatched build of the same source, for comparison."""
    changes: tuple[Change, ...] | None = None
    """Since the release before; None where that has no such flavour, or none was named."""


def release_notes(flavours: Sequence[NotedFlavour], *, others: Sequence[Artifact], since: str = "") -> str:
    """The notes of one recipe's release. ``others``: further published files, such as the patches archive.

    In the order that readers of fork releases know: intro, provenance, downloads, drivers, what was checked, patches,
    licences, changes.
    """
    main = next(flavour for flavour in flavours if not flavour.baseline)
    parts = [
        f"# {main.facts.recipe}",
        main.facts.summary,
        *_provenance(main.facts),
        *_downloads(flavours, others),
        *_drivers(flavours),
        *_checked(flavours),
        *_patches(main.facts),
        *_licenses(flavours),
        *_changes(flavours, since),
        *_verify_yourself(main),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(value: str) -> str:
    """Text that cannot break a table's row or become markup."""
    plain = " ".join(value.split())
    for sign in "\\|<>*_`[]":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _provenance(facts: BuildFacts) -> Iterator[str]:
    yield "## Provenance"
    day = dt.datetime.fromtimestamp(facts.date, tz=dt.UTC)
    rows = [
        ("upstream", f"{_cell(facts.repository)} at {_cell(facts.ref)}"),
        ("upstream commit", f"`{facts.commit}`"),
        ("upstream tree", f"`{facts.tree}`"),
        ("upstream date", f"{day:%Y-%m-%d}"),
        ("build number", str(facts.build_number)),
        ("source brought by", _cell(facts.provider)),
        ("patched commit", f"`{facts.patched_commit}`" if facts.patches else "none: this is upstream as it is"),
        ("patches", str(len(facts.patches))),
        ("features", _cell(", ".join(facts.features)) or "none named"),
    ]
    yield _table(("what", "value"), rows)


def _downloads(flavours: Sequence[NotedFlavour], others: Sequence[Artifact]) -> Iterator[str]:
    yield "## Downloads"
    rows = [
        (
            f"`{archive.path.name}`",
            _what(flavour),
            _code(flavour.facts),
            _cell(flavour.facts.driver_floor) or "none",
            flavour.facts.floors.get("GLIBC", "?"),
            size(archive.size),
            f"`{archive.sha256}`",
        )
        for flavour in flavours
        for archive in flavour.archives
    ]
    rows += [(f"`{other.path.name}`", "", "", "", "", size(other.size), f"`{other.sha256}`") for other in others]
    yield _table(("file", "backends", "GPU code", "minimum driver", "glibc", "size", "SHA-256"), rows)


def _what(flavour: NotedFlavour) -> str:
    return " + ".join(flavour.facts.backends) + (" (baseline, unpatched)" if flavour.baseline else "")


def _code(facts: BuildFacts) -> str:
    kinds = (("SASS", facts.sass), ("PTX", facts.ptx), ("gfx", facts.gfx))
    return "; ".join(f"{kind} {', '.join(archs)}" for kind, archs in kinds if archs) or "none"


def _drivers(flavours: Sequence[NotedFlavour]) -> Iterator[str]:
    if not any(flavour.facts.driver_floor for flavour in flavours):
        return
    yield "## Drivers"
    yield (
        "SASS runs on any driver from the floor of the toolkit's major version on; PTX is compiled by the driver, "
        "which has to be as new as the toolkit. The driver itself is the host's and is in no archive."
    )


def _checked(flavours: Sequence[NotedFlavour]) -> Iterator[str]:
    yield "## What was checked, and what was not"
    rows = []
    for flavour in flavours:
        validation = flavour.facts.validation
        counts = validation.get("tier_a_findings", {})
        told = ", ".join(
            f"{counts[kind]} {kind}{'s' * (counts[kind] != 1)}"
            for kind in ("error", "warning", "note")
            if kind in counts
        )
        rows.append(
            (
                flavour.facts.name.removeprefix("llama-"),
                f"{validation.get('tier_a_packaging', 'not run')}" + (f" ({told})" if told else ""),
                _cell(validation.get("tier_b_runtime", "not run")),
            )
        )
    yield _table(("flavour", "archive re-opened and verified", "model served"), rows)
    if any(row[2] == "not run" for row in rows):
        yield "Compiled is not run: where no model was served, nothing is claimed beyond the checks of the archive."


def _patches(facts: BuildFacts) -> Iterator[str]:
    yield "## Patches"
    if not facts.patches:
        yield "None."
        return
    rows = [
        (
            str(number),
            _cell(patch.series + (f", {patch.group}" if patch.group else "")),
            _cell(patch.subject),
            " ".join(f"`{switch}`" for switch in patch.switches) or "always on",
            _cell(patch.state + (f" ({patch.note})" if patch.note else "")),
            f"`{patch.digest[:12]}`",
        )
        for number, patch in enumerate(facts.patches, start=1)
    ]
    yield _table(("", "series", "subject", "switches", "outcome", "SHA-256"), rows)


def _licenses(flavours: Sequence[NotedFlavour]) -> Iterator[str]:
    yield "## Licences"
    found: dict[tuple[str, str], str] = {}
    for flavour in flavours:
        for component in flavour.facts.components:
            found[component.name, component.version] = component.license or "see `licenses/` in the archive"
    rows = [("llama.cpp", flavours[0].facts.ref, "MIT")]
    rows += [(_cell(name), _cell(version) or "?", license_) for (name, version), license_ in sorted(found.items())]
    yield _table(("component", "version", "licence"), rows)


def _changes(flavours: Sequence[NotedFlavour], since: str) -> Iterator[str]:
    if not since:
        return
    yield f"## Since {_cell(since)}"
    for flavour in flavours:
        if flavour.baseline:
            continue
        yield f"### {_cell(flavour.facts.flavour)}"
        if flavour.changes is None:
            yield "That release has no such flavour."
        elif not flavour.changes:
            yield "Nothing that BUILD_INFO tells differs."
        else:
            rows = [
                (_cell(change.what), _cell(change.before) or "-", _cell(change.after) or "-")
                for change in flavour.changes
            ]
            yield _table(("what", "before", "now"), rows)


def _verify_yourself(main: NotedFlavour) -> Iterator[str]:
    yield "## Check it yourself"
    yield (
        "```sh\nsha256sum --ignore-missing -c SHA256SUMS\n"
        f"llamabuild verify . --provenance provenance-{main.facts.flavour}.intoto.json\n```"
    )
