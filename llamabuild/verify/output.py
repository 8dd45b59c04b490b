"""A report for people, for JUnit readers, and as annotations of GitHub Actions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from llamabuild.verify.registry import sections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.findings import Finding, Report

_SHOWN = 5
_ORDER = ("error", "warning", "note")
_NOT_LOOKED = ("not-checked", "not-run", "not-tried", "same-user", "not-read")


def render_text(report: Report, *, everything: bool) -> str:
    """The findings grouped by name, the worst first; ``everything``: every file of a group and the notes' hints."""
    groups: dict[tuple[int, str], list[Finding]] = defaultdict(list)
    for finding in report.findings:
        groups[_ORDER.index(finding.severity), finding.name].append(finding)
    lines: list[str] = []
    for (_, name), findings in sorted(groups.items()):
        lines.append(f"{findings[0].severity}: {name}")
        shown = findings if everything else findings[:_SHOWN]
        for finding in shown:
            lines.append(f"  {finding.message}")
            if finding.evidence and (everything or finding.severity != "note"):
                lines.append(f"    {_cut(finding.evidence, everything=everything)}")
        if len(findings) > len(shown):
            lines.append(f"  … and {len(findings) - len(shown)} more (-v shows all)")
        if findings[0].hint and (everything or findings[0].severity != "note"):
            lines.append(f"  hint: {findings[0].hint}")
    counts = {severity: sum(finding.severity == severity for finding in report.findings) for severity in _ORDER}
    tally = ", ".join(f"{count} {severity}{'s' if count != 1 else ''}" for severity, count in counts.items())
    lines.append(f"{report.subject}: {'ok' if report.ok else 'FAILED'} ({tally})")
    lines += [f"  {line}" for line in _facts(report)]
    return "\n".join(lines)


def _cut(text: str, *, everything: bool) -> str:
    return text if everything or len(text) <= 200 else text[:200] + "…"


def _facts(report: Report) -> Iterator[str]:
    facts = report.facts
    if not facts:
        return
    yield f"{facts['files']} files ({facts['elf_files']} ELF), {facts['links']} links, {facts['bytes'] / 1e6:.1f} MB"
    if facts.get("floors"):
        yield "needs " + ", ".join(f"{family} {number}" for family, number in facts["floors"].items())
    for path, code in facts.get("device_code", {}).items():
        kinds = (("SASS", "sass"), ("PTX", "ptx"), ("gfx", "gfx"))
        yield f"{path}: " + "; ".join(f"{label} {', '.join(code[key])}" for label, key in kinds if code[key])


def render_junit(report: Report) -> bytes:
    """One test case for each kind of finding: failed with its errors, skipped where it could not be looked at."""
    by_name: dict[str, list[Finding]] = defaultdict(list)
    for finding in report.findings:
        by_name[finding.name].append(finding)
    root = ET.Element("testsuites", name="llamabuild verify")
    totals = {"tests": 0, "failures": 0, "skipped": 0}
    for title, kinds in sections():
        suite = ET.SubElement(root, "testsuite", name=title)
        counts = {"tests": 0, "failures": 0, "skipped": 0}
        for kind in kinds:
            counts["tests"] += 1
            case = ET.SubElement(suite, "testcase", classname=report.subject, name=kind.name)
            found = by_name.get(kind.name, [])
            errors = [finding for finding in found if finding.severity == "error"]
            text = "\n".join(f"{each.severity}: {each.message} {each.evidence}".rstrip() for each in found)
            if errors:
                counts["failures"] += 1
                ET.SubElement(case, "failure", message=errors[0].message, type=kind.name).text = _xml_safe(text)
            elif found and kind.name.endswith(_NOT_LOOKED):
                counts["skipped"] += 1
                ET.SubElement(case, "skipped", message=found[0].message)
            elif found:
                ET.SubElement(case, "system-out").text = _xml_safe(text)
        for key, count in counts.items():
            suite.set(key, str(count))
            totals[key] += count
        suite.set("errors", "0")
    for key, count in totals.items():
        root.set(key, str(count))
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, _xml_safe(value))
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _xml_safe(text: str) -> str:
    """XML 1.0 has no way at all to write most control characters."""
    return "".join(
        char if char in "\t\n" or (char >= " " and not 0xD800 <= ord(char) <= 0xDFFF) else "?" for char in text
    )


def render_annotations(report: Report) -> str:
    """Workflow commands of GitHub Actions, one a finding."""
    level = {"error": "error", "warning": "warning", "note": "notice"}
    lines = []
    for finding in report.findings:
        place = f"file={_property(finding.file)}," if finding.file else ""
        text = ". ".join(part.rstrip(".") for part in (finding.message, finding.evidence, finding.hint) if part)
        lines.append(f"::{level[finding.severity]} {place}title={_property(finding.name)}::{_data(text)}")
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
