"""Build times per step, from Ninja's own log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One command that Ninja ran."""

    output: str
    """Its first output, relative to the build folder."""
    start: float
    """Seconds since the build began."""
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


def read_ninja_log(path: Path) -> tuple[Step, ...]:
    """The steps that made what is there now, in order of start.

    The log (versions 5 to 7: start and end in milliseconds, mtime, output, hash, by tabs) is appended to: the last line
    of an output counts, and a command with several outputs stands there once for each. Lines that are cut short
    (Ninja was killed) are left out. A log that is missing, or of another version, gives no steps.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    if not lines or not lines[0].startswith("# ninja log v") or lines[0].split("v")[-1] not in {"5", "6", "7"}:
        return ()
    latest: dict[str, tuple[int, int, str]] = {}
    for line in lines[1:]:
        fields = line.split("\t")
        if len(fields) == 5 and fields[0].isdecimal() and fields[1].isdecimal():
            latest.pop(fields[3], None)
            latest[fields[3]] = (int(fields[0]), int(fields[1]), fields[4])
    commands: dict[tuple[int, int, str], str] = {}
    for output, command in latest.items():
        commands.setdefault(command, output)
    steps = [Step(output=output, start=start / 1000, end=end / 1000) for (start, end, _), output in commands.items()]
    return tuple(sorted(steps, key=lambda step: (step.start, step.output)))


def wall_seconds(steps: Sequence[Step]) -> float:
    """Time during which at least one step ran: the log of a build in several runs has gaps and restarts at zero."""
    total, reached = 0.0, 0.0
    for step in sorted(steps, key=lambda step: step.start):
        total += max(0.0, step.end - max(step.start, reached))
        reached = max(reached, step.end)
    return total
