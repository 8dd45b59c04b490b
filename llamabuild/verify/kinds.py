"""Kinds of findings: the stable name, how bad it is by default, what it means and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.verify.findings import Finding

if TYPE_CHECKING:
    from llamabuild.verify.findings import Severity


@dataclass(frozen=True)
class Kind:
    """One kind of finding; the page of ``llamabuild docs`` is made of these."""

    name: str
    severity: Severity
    meaning: str
    """What was seen and why it matters, for a reader who has not met it before."""
    action: str
    """What to do; the finding's hint unless a check knows better."""

    def at(
        self, file: str, message: str, *, evidence: str = "", severity: Severity | None = None, hint: str | None = None
    ) -> Finding:
        """A finding of this kind about ``file`` (relative to what is verified; empty for all of it)."""
        return Finding(
            name=self.name,
            severity=severity or self.severity,
            file=file,
            message=message,
            evidence=evidence,
            hint=self.action if hint is None else hint,
        )
