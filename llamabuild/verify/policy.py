"""How strict a caller wants to be: warnings that fail, and findings that are accepted with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llamabuild.verify.findings import Report

UNUSED = Kind(
    "verify.allow-unused",
    "note",
    "A finding was allowed that did not occur: the reason for the exception may be gone.",
    "Remove the --allow.",
)

CHECK_FAILED = Kind(
    "verify.check-not-finished",
    "error",
    "A check stopped at something it could not read, so what it would have found after that is not known.",
    "Look at the evidence; a damaged file has a finding of its own. Repair it and verify again.",
)

KINDS = (UNUSED, CHECK_FAILED)


def apply_policy(report: Report, *, strict: bool, allow: Mapping[str, str]) -> Report:
    """Change severities.

    ``strict``: warnings count as errors. ``allow``: name → reason; its findings become notes that tell the reason.
    """
    findings = []
    for finding in report.findings:
        if finding.name in allow:
            changed = replace(finding, severity="note", message=f"{finding.message} Allowed: {allow[finding.name]}")
        elif strict and finding.severity == "warning":
            changed = replace(finding, severity="error")
        else:
            changed = finding
        findings.append(changed)
    met = {finding.name for finding in report.findings}
    findings += [
        UNUSED.at("", f"{name} was allowed and did not occur.", evidence=reason)
        for name, reason in allow.items()
        if name not in met
    ]
    return replace(report, findings=tuple(findings))
