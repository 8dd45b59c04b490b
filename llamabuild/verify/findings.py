"""Findings: what a check has to say, by a stable name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing a check found. The fields are the keys of ``verify --json``."""

    name: str
    """Stable, dotted: ``link.dangling``, ``elf.rpath-absolute``."""
    severity: Severity
    file: str
    """Relative to what was verified; empty where no single file is meant."""
    message: str
    """One sentence: what and where."""
    evidence: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Report:
    """All findings about one folder or archive."""

    subject: str
    findings: tuple[Finding, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    """What was seen, beside what is wrong: sizes, floors, device code."""

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The document that ``verify --json`` prints."""
        return {
            "schema": 1,
            "ok": self.ok,
            "subject": self.subject,
            "findings": [asdict(finding) for finding in self.findings],
            "facts": self.facts,
        }
