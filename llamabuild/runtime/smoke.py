"""Does it really serve? Start a bundle's server, run the battery, and leave nothing behind."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from llamabuild.core.errors import LlamabuildError
from llamabuild.runtime.battery import BATTERY, CheckFailed, CheckSkipped, Exam
from llamabuild.runtime.devices import list_devices
from llamabuild.runtime.flags import CONTEXT, DRAFT_MODEL, PARALLEL, SPEC_TYPE, THREADS, has_flag, number_of
from llamabuild.runtime.gguf_model import load_model
from llamabuild.runtime.memory import MemorySample, sample_memory
from llamabuild.runtime.server import ServerError, read_lines, serve, stop
from llamabuild.runtime.signatures import recognise
from llamabuild.runtime.tiny import TINY_NAME
from llamabuild.verify.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from llamabuild.core.context import Context
    from llamabuild.runtime.gguf_model import Model
    from llamabuild.runtime.server import RunningServer

_TINY_CONTEXT = 2048
_SLOTS = 2
_EVIDENCE_LINES = 8


@dataclass(frozen=True)
class Check:
    """One question and its answer."""

    name: str
    state: Literal["passed", "failed", "skipped"]
    message: str
    seconds: float = 0.0
    evidence: tuple[str, ...] = ()
    """For a failed check: what the server wrote meanwhile."""


@dataclass
class SmokeReport:
    """What a battery showed; filled as it goes, so that a server that dies leaves what was learned."""

    subject: str
    model: str
    draft: str | None
    log: Path
    checks: list[Check] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    memory: dict[str, MemorySample] = field(default_factory=dict)
    """``before``, ``loaded``, ``first-request``."""
    efforts: dict[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every check that arose passed and no failure was recognised."""
        sound = all(check.state != "failed" for check in self.checks)
        return bool(self.checks) and sound and all(finding.severity != "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The document of ``smoke --json``."""
        return {
            "kind": "smoke",
            "ok": self.ok,
            "subject": self.subject,
            "model": self.model,
            "draft": self.draft,
            "devices": list(self.devices),
            "checks": [asdict(check) for check in self.checks],
            "reasoning_effort": self.efforts,
            "memory": {moment: asdict(sample) for moment, sample in self.memory.items()},
            "findings": [asdict(finding) for finding in self.findings],
            "log": str(self.log),
        }


def run_smoke(
    bundle: Path,
    context: Context,
    *,
    subject: str,
    model: Path,
    log: Path,
    draft: Path | None = None,
    flags: Sequence[str] = (),
    deep: int | None = None,
    expected_devices: Sequence[str] = (),
) -> SmokeReport:
    """Run the battery against the server of an unpacked ``bundle``.

    ``flags`` are the server's own; a context, slots and metrics are added where they say nothing. ``deep`` bounds the
    long prompt, in tokens. ``expected_devices`` are names as in ``--list-devices``. Never raises for what the server
    does: that is in the report.
    """
    summary = load_model(str(model))
    words = _complete_flags(flags, draft, tiny=_is_tiny(summary))
    report = SmokeReport(subject=subject, model=str(model), draft=str(draft) if draft else None, log=log)
    report.memory["before"] = sample_memory(env=context.env)
    report.checks.append(_check_devices(report, bundle, context, expected_devices))
    with contextlib.ExitStack() as stack:
        try:
            with context.console.step(f"Load {model.name}"):
                server = stack.enter_context(serve(bundle, ["-m", str(model), *words], env=context.env, log=log))
        except ServerError as failure:
            report.checks.append(Check("start", "failed", failure.message, evidence=failure.details))
        else:
            report.memory["loaded"] = sample_memory(env=context.env, pid=server.pid)
            exam = Exam(
                server=server,
                slots=max(1, number_of(words, PARALLEL, default=_SLOTS)),
                slot_context=slot_context(words, summary),
                drafted=_drafts(words),
                tiny=_is_tiny(summary),
                deep=deep,
            )
            _examine(report, exam, context)
            report.efforts = exam.efforts
    said = [line for check in report.checks if check.name == "devices" for line in check.evidence]
    report.findings = (*recognise([*said, *read_lines(log)]), *_refused_efforts(report.efforts))
    return report


def _complete_flags(flags: Sequence[str], draft: Path | None, *, tiny: bool) -> list[str]:
    words = list(flags)
    if draft is not None and not has_flag(words, DRAFT_MODEL):
        words += ["-md", str(draft)]
        drafter = load_model(str(draft))
        if drafter.architecture == "dflash" and not has_flag(words, SPEC_TYPE):
            words += ["--spec-type", "draft-dflash", "--spec-draft-n-max", str(max(1, drafter.block_size - 1))]
        elif not has_flag(words, SPEC_TYPE):
            words += ["--spec-type", "draft-simple"]
    if tiny and not has_flag(words, CONTEXT):
        words += ["-c", str(_TINY_CONTEXT)]
    if tiny and not has_flag(words, THREADS):
        # Threads that wait for each other cost more than a tiny model, where others use the machine too.
        words += ["-t", "1"]
    if not has_flag(words, PARALLEL):
        words += ["-np", str(_SLOTS)]
    return words + [flag for flag in ("--metrics",) if flag not in words]


def _drafts(words: Sequence[str]) -> bool:
    return has_flag(words, DRAFT_MODEL) or (has_flag(words, SPEC_TYPE) and "draft-" in " ".join(words))


def slot_context(words: Sequence[str], model: Model) -> int:
    """Positions each slot must have: ``--ctx-size`` over ``--parallel``, in steps of 256, at most what was trained.

    ``src/llama-context.cpp`` pads both to 256; ``server-context.cpp`` (n_ctx_slot) caps at the trained context. With
    ``--kv-unified`` every slot may use the whole.
    """
    slots = max(1, number_of(words, PARALLEL, default=_SLOTS))
    context = number_of(words, CONTEXT, default=0) or model.context
    context = -(-context // 256) * 256
    if not has_flag(words, ("-kvu", "--kv-unified")):
        context = -(-(context // slots) // 256) * 256
    return min(context, model.context) if model.context else context


def _refused_efforts(efforts: dict[str, str]) -> Iterator[Finding]:
    for level, result in efforts.items():
        if result != "accepted":
            yield Finding(
                name="runtime.reasoning-effort",
                severity="warning",
                file="",
                message=f"The model's chat template refuses reasoning_effort {level}: such requests fail.",
                evidence=result,
                hint="Set another level with --reasoning-effort, or take a corrected --chat-template-file.",
            )


def _is_tiny(model: Model) -> bool:
    return model.name.startswith(TINY_NAME)


def _check_devices(report: SmokeReport, bundle: Path, context: Context, expected: Sequence[str]) -> Check:
    try:
        found = list_devices(bundle, env=context.env)
    except LlamabuildError as failure:
        return Check("devices", "failed", failure.message, evidence=failure.details)
    report.devices = tuple(device.name for device in found.devices)
    missing = [name for name in expected if name not in report.devices]
    missing += [f"any {label} device" for label in found.silent]
    if missing:
        message = (
            f"{', '.join(missing)} is expected and not there: its plugin failed to load, or there is no such device"
        )
        return Check("devices", "failed", message, evidence=found.lines[-_EVIDENCE_LINES:])
    shown = ", ".join(f"{device.name} ({device.description})" for device in found.devices)
    return Check("devices", "passed", shown or "none besides the CPU, and none expected")


def _examine(report: SmokeReport, exam: Exam, context: Context) -> None:
    server = exam.server
    gone: str | None = None
    for name, check in BATTERY:
        if gone:
            report.checks.append(Check(name, "skipped", gone))
            continue
        began, written = time.monotonic(), len(server.lines())
        try:
            result = Check(name, "passed", check(exam))
        except CheckSkipped as skipped:
            result = Check(name, "skipped", str(skipped))
        except (CheckFailed, ServerError, KeyError, TypeError, ValueError, IndexError) as failed:
            what = failed.message if isinstance(failed, ServerError) else str(failed)
            if not isinstance(failed, CheckFailed | ServerError):
                what = f"the answer does not have the expected form ({type(failed).__name__}: {failed})"
            result = Check(name, "failed", what, evidence=tuple(server.lines()[written:][-_EVIDENCE_LINES:]))
            if server.process.poll() is not None:
                gone = f"the server died in {name}"
        report.checks.append(replace(result, seconds=round(time.monotonic() - began, 3)))
        context.console.detail(f"{name}: {result.state}: {result.message}")
        if name == "completion":
            report.memory["first-request"] = sample_memory(env=context.env, pid=server.pid)
    report.checks.append(Check("shutdown", "skipped", gone) if gone else _shut_down(server))


def _shut_down(server: RunningServer) -> Check:
    began = time.monotonic()
    try:
        status = stop(server)
    except ServerError as failure:
        return Check("shutdown", "failed", failure.message, evidence=failure.details)
    seconds = round(time.monotonic() - began, 3)
    if status != 0:
        lines = tuple(server.lines()[-_EVIDENCE_LINES:])
        return Check("shutdown", "failed", f"the server ended with status {status}", seconds, lines)
    return Check("shutdown", "passed", f"ended in {seconds:.1f} s", seconds)
