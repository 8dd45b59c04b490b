"""A battery's report as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.runtime.gguf_text import format_bytes

if TYPE_CHECKING:
    from llamabuild.runtime.memory import MemorySample
    from llamabuild.runtime.smoke import SmokeReport

_MARK = {"passed": "ok", "failed": "FAILED", "skipped": "-"}


def describe_smoke(report: SmokeReport) -> str:
    """A line a check, what a failed one saw below it; then efforts, memory, and what was recognised."""
    lines = []
    for check in report.checks:
        lines.append(f"{check.name:<18} {_MARK[check.state]:<7} {check.message}")
        lines += [f"  | {line}" for line in check.evidence]
    if report.efforts:
        lines.append("")
        lines += [f"reasoning_effort {level:<7} {result}" for level, result in report.efforts.items()]
    if report.memory:
        lines.append("")
        lines += [f"memory {moment:<14} {_describe(sample)}" for moment, sample in report.memory.items()]
    for finding in report.findings:
        lines += ["", f"{finding.severity}: {finding.name}: {finding.message}"]
        lines += [f"  | {line}" for line in finding.evidence.splitlines()]
        lines.append(f"hint: {finding.hint}")
    passed = sum(check.state == "passed" for check in report.checks)
    lines += [
        "",
        f"{'ok' if report.ok else 'FAILED'}: {passed} of {len(report.checks)} checks passed; log: {report.log}",
    ]
    return "\n".join(lines)


def _describe(sample: MemorySample) -> str:
    parts = [f"{device.name} {format_bytes(device.used)} of {format_bytes(device.total)}" for device in sample.devices]
    if sample.process:
        parts.append(f"process {format_bytes(sample.process)}, {format_bytes(sample.anonymous)} of it its own")
    return "; ".join(parts) or "no device tells"
