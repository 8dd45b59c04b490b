"""Whether a release's runtime was really run: the smoke test's battery with a tiny model, in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.errors import VerificationError
from llamabuild.runtime.smoke import run_smoke
from llamabuild.runtime.tiny import TINY_NAME, write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.core.context import Context


@dataclass(frozen=True)
class Served:
    """What running the runtime showed."""

    result: str
    """In words, for BUILD_INFO and the notes."""
    model: str


def serve_tiny(bundle: Path, scratch: Path, context: Context, *, name: str) -> Served:
    """Run the battery against an unpacked bundle; ``scratch`` gets the model.

    Raises VerificationError with the failed checks: what does not serve is not released as if it did.
    """
    model = write_tiny_model(scratch / "tiny.gguf")
    log = context.home.logs / "smoke" / f"{name}.log"
    report = run_smoke(bundle, context, subject=name, model=model, log=log)
    if not report.ok:
        failed = [f"{check.name}: {check.message}" for check in report.checks if check.state == "failed"]
        raise VerificationError(
            f"{name} does not serve a model: {len(failed)} of {len(report.checks)} checks failed.",
            hint=f"See it happen with: llamabuild smoke {name}. Nothing was published.",
            log=log,
            details=(*failed, *(finding.message for finding in report.findings)),
        )
    states = [check.state for check in report.checks]
    where = ", ".join(report.devices) or "the CPU"
    skipped = f", {states.count('skipped')} skipped" if "skipped" in states else ""
    return Served(result=f"passed on {where} ({states.count('passed')} checks{skipped})", model=TINY_NAME)
