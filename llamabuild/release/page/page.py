"""The page of one archive: what it is, what was found, how big, what needs what, how it was built, what changed."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from llamabuild.release.ninja import wall_seconds
from llamabuild.release.page.charts import Node, bars, graph
from llamabuild.release.page.html import Html, code, duration, facts, join, section, size, table, tag, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.bundle.model import Artifact
    from llamabuild.release.changes import Change
    from llamabuild.release.facts import BuildFacts
    from llamabuild.release.ninja import Step
    from llamabuild.release.view import BundleView
    from llamabuild.verify.findings import Report

_SLOWEST = 12
_HEAD = Html(
    '<meta charset="utf-8">'
    # The browser itself is told to fetch nothing.
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)
_MARKS = {"error": "✗ error", "warning": "! warning", "note": "· note"}


@dataclass(frozen=True)
class PageInput:
    """Everything that the page is made of."""

    facts: BuildFacts
    view: BundleView
    report: Report
    artifacts: tuple[Artifact, ...]
    steps: tuple[Step, ...] = ()
    """Empty where the build's log is not at hand."""
    changes: tuple[Change, ...] | None = None
    """None where no earlier release was named."""
    since: str = ""
    """The earlier release's name."""


def make_page(given: PageInput) -> str:
    """One HTML document that loads nothing: no script, no font, no image, no style from elsewhere."""
    style = resources.files("llamabuild.release.page").joinpath("style.css").read_text(encoding="utf-8")
    body = [
        _head(given),
        tag(
            "main",
            _numbers(given),
            _identity(given),
            _verification(given.report),
            _sizes(given.view),
            _graph(given.view),
            _patches(given),
            _times(given.steps),
            _changes(given),
        ),
        tag("footer", tag("p", text("Made by llamabuild from the archive itself and its BUILD_INFO.json."))),
    ]
    return (
        "<!doctype html>\n"
        + tag(
            "html",
            tag(
                "head",
                _HEAD,
                tag("title", text(given.facts.name)),
                tag("style", Html(style)),
            ),
            tag("body", *body),
            lang="en",
        )
        + "\n"
    )


def _head(given: PageInput) -> Html:
    return tag("header", tag("h1", text(given.facts.name)), tag("p", text(given.facts.summary), class_="soft"))


def _numbers(given: PageInput) -> Html:
    errors = sum(finding.severity == "error" for finding in given.report.findings)
    warnings = sum(finding.severity == "warning" for finding in given.report.findings)
    smallest = min(given.artifacts, key=lambda artifact: artifact.size, default=None)
    rows = [
        ("verification", "passed" if given.report.ok else "FAILED", "passed" if given.report.ok else "failed"),
        ("errors, warnings", f"{errors}, {warnings}", ""),
        ("to download", size(smallest.size) if smallest else "", ""),
        ("unpacked", size(sum(file.size for file in given.view.files)), ""),
        ("files", str(len(given.view.files)), ""),
        ("patches", str(len(given.facts.patches)), ""),
        ("glibc or newer", given.facts.floors.get("GLIBC", ""), ""),
        ("minimum driver", given.facts.driver_floor, ""),
    ]
    items = (
        tag("li", tag("b", text(value), class_=state), tag("span", text(name))) for name, value, state in rows if value
    )
    return tag("ul", *items, class_="numbers")


def _identity(given: PageInput) -> Html:
    info = given.facts
    when = dt.datetime.fromtimestamp(info.date, tz=dt.UTC)
    rows = [
        ("recipe", code(info.recipe)),
        ("target", text(info.target)),
        ("arch", text(info.arch)),
        ("backends", text(", ".join(info.backends))),
        ("upstream", text(f"{info.repository} {info.ref}, build {info.build_number}, {when:%Y-%m-%d}")),
        ("upstream commit", code(info.commit)),
        ("upstream tree", code(info.tree)),
        ("brought by", text(info.provider)),
        ("patched commit", code(info.patched_commit) if info.patches else Html("")),
        ("features", text(", ".join(info.features))),
        ("SASS", text(", ".join(info.sass))),
        ("PTX", text(", ".join(info.ptx))),
        ("gfx", text(", ".join(info.gfx))),
        ("minimum driver", text(info.driver_floor)),
        ("built on", text(info.os)),
        ("tools", text(", ".join(f"{name} {version}" for name, version in info.tools.items()))),
        ("licence", text(info.license)),
    ]
    files = table(
        ("file", "size", "SHA-256"),
        [(code(each.path.name), text(size(each.size)), code(each.sha256)) for each in given.artifacts],
        numbers=(1,),
    )
    return section("What it is", facts(rows), tag("h3", text("Files")), files, identity="what")


def _verification(report: Report) -> Html:
    if not report.findings:
        return section(
            "Verification",
            tag("p", text("✓ Every check ran, and none has anything to say."), class_="passed"),
            identity="verification",
        )
    order = {"error": 0, "warning": 1, "note": 2}
    rows = [
        (
            tag("span", text(_MARKS[finding.severity]), class_=finding.severity),
            code(finding.name),
            code(finding.file) if finding.file else Html(""),
            join([text(finding.message), *([Html("<br>"), code(finding.evidence)] if finding.evidence else [])]),
        )
        for finding in sorted(
            report.findings, key=lambda finding: (order[finding.severity], finding.name, finding.file)
        )
    ]
    kinds: list[str] = [finding.severity for finding in report.findings]
    counts = ", ".join(f"{kinds.count(kind)} {kind}{'s' * (kinds.count(kind) != 1)}" for kind in order)
    return section(
        "Verification",
        tag("p", text(f"{counts}.")),
        table(("", "finding", "file", "what"), rows),
        identity="verification",
    )


def _sizes(view: BundleView) -> Html:
    totals: dict[str, list[int]] = {}
    for file in view.files:
        totals.setdefault(file.origin, []).append(file.size)
    rows = sorted(((name, sum(sizes)) for name, sizes in totals.items()), key=lambda row: (-row[1], row[0]))
    biggest = sorted(view.files, key=lambda file: (-file.size, file.path))[:10]
    return section(
        "Size by component",
        bars(rows, label="Unpacked size by component", show=lambda value: size(int(value))),
        tag("h3", text("Biggest files")),
        table(
            ("file", "component", "size"),
            [(code(file.path), text(file.origin), text(size(file.size))) for file in biggest],
            numbers=(2,),
        ),
        identity="sizes",
    )


def _graph(view: BundleView) -> Html:
    nodes, edges = graph_of(view)
    system = sorted({edge.name for edge in view.needed if edge.origin == "system"})
    names = {
        "program": "program",
        "plugin": "backend, opened at run time",
        "library": "llama.cpp's library",
        "vendor": "bundled from elsewhere",
        "driver": "the host's driver",
        "missing": "missing",
    }
    shown = {node.kind for node in nodes}
    key = tag(
        "ul",
        *(tag("li", tag("i", class_=kind), text(name)) for kind, name in names.items() if kind in shown),
        class_="key",
    )
    by_source: dict[str, list[str]] = {}
    for edge in view.needed:
        mark = "" if edge.origin == "bundled" else f" ({edge.origin})"
        by_source.setdefault(edge.source, []).append(f"{edge.name}{mark}")
    rows = [(code(source), text(", ".join(needed))) for source, needed in sorted(by_source.items())]
    return section(
        "What needs what",
        key,
        graph(nodes, edges),
        tag(
            "p",
            text(
                f"What is needed through something else is not drawn again; the table has all of it. "
                f"From the host: {', '.join(system) or 'nothing'}."
            ),
            class_="soft",
        ),
        tag("details", tag("summary", text("As a table")), table(("file", "needs"), rows)),
        identity="graph",
    )


def graph_of(view: BundleView) -> tuple[list[Node], list[tuple[str, str]]]:
    """The graph's nodes and edges: files of the bundle, and of the host's only its drivers and what is missing."""
    origins = {file.path: file.origin for file in view.files}
    sources = {edge.source for edge in view.needed} | {edge.target for edge in view.needed if edge.target}
    nodes: dict[str, Node] = {}
    for path in (*view.programs, *view.plugins, *sorted(sources)):
        kind = "library" if origins.get(path) == "llama.cpp" else "vendor"
        kind = "program" if path in view.programs else "plugin" if path in view.plugins else kind
        nodes.setdefault(path, Node(_short(path), kind))
    edges: list[tuple[str, str]] = []
    for edge in view.needed:
        if edge.target in nodes:
            edges.append((nodes[edge.source].name, nodes[edge.target].name))
        elif edge.origin in {"driver", "missing", "outside"}:
            other = nodes.setdefault(edge.name, Node(edge.name, "driver" if edge.origin == "driver" else "missing"))
            edges.append((nodes[edge.source].name, other.name))
    return list(nodes.values()), list(dict.fromkeys(edges))


def _short(path: str) -> str:
    return path.rpartition("/")[2]


def _patches(given: PageInput) -> Html:
    if not given.facts.patches:
        return section("Patches", tag("p", text("None: this is upstream as it is.")), identity="patches")
    rows = [
        (
            text(patch.series + (f", {patch.group}" if patch.group else "")),
            text(patch.subject),
            text(patch.state + (f" ({patch.note})" if patch.note else "")),
            join((code(switch) for switch in patch.switches), " "),
            code(patch.digest[:12]),
        )
        for patch in given.facts.patches
    ]
    return section("Patches", table(("series", "subject", "outcome", "switches", "SHA-256"), rows), identity="patches")


def _times(steps: Sequence[Step]) -> Html:
    if not steps:
        return section(
            "Build times", tag("p", text("Not known here: the build's log is not at hand.")), identity="times"
        )
    wall, total = duration(wall_seconds(steps)), sum(step.seconds for step in steps)
    slowest = sorted(steps, key=lambda step: (-step.seconds, step.output))[:_SLOWEST]
    parts: dict[str, float] = {}
    for step in steps:
        folder, compiled, _ = step.output.partition("CMakeFiles/")
        part = (folder.rstrip("/") or "top folder") if compiled else "linking and the rest"
        parts[part] = parts.get(part, 0.0) + step.seconds
    by_part = sorted(parts.items(), key=lambda row: (-row[1], row[0]))[:_SLOWEST]
    return section(
        "Build times",
        tag("p", text(f"{len(steps)} steps, {wall} from start to end, {duration(total)} summed over steps.")),
        tag("h3", text("By part")),
        bars(by_part, label="Build time by part", show=duration),
        tag("h3", text("Slowest steps")),
        bars([(_short(step.output), step.seconds) for step in slowest], label="Slowest steps", show=duration),
        identity="times",
    )


def _changes(given: PageInput) -> Html:
    if given.changes is None:
        return Html("")
    if not given.changes:
        content = tag("p", text(f"Nothing that BUILD_INFO tells differs from {given.since}."))
    else:
        content = table(
            ("what", "before", "now"),
            [(text(change.what), text(change.before or "-"), text(change.after or "-")) for change in given.changes],
        )
    return section(f"Since {given.since}", content, identity="changes")
