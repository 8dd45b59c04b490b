"""Ninja's output, read as it comes: how far it is, and what failed first."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamabuild.core.console import Progress

STATUS = "[%f/%t] "
"""The NINJA_STATUS that the reader here understands: finished and total edges."""

_COUNT = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_ERROR = re.compile(
    r"(?:fatal |internal compiler )?error\b|\bundefined reference\b|cannot find -l|collect2:|No space left on device"
    r"|Killed|ptxas fatal|nvcc fatal|Permission denied",
    re.IGNORECASE,
)
_KEPT_LINES = 400
_SHOWN_LINES = 8


@dataclass
class NinjaReader:
    """Takes Ninja's lines one by one."""

    progress: Progress
    total: int = 0
    disk_full: bool = False
    out_of_memory: bool = False
    failed: list[str] = field(default_factory=list)
    """The first failed edge: its outputs, then its command, then its output."""
    _open: bool = False

    def feed(self, line: str) -> None:
        """Take one line."""
        count = _COUNT.fullmatch(line)
        # An external project runs a Ninja of its own inside ours: its count is smaller and not ours.
        if count and int(count[2]) >= self.total:
            self.total = int(count[2])
            self.progress.update(int(count[1]), self.total, count[3])
            self._open = False
        elif line.startswith("FAILED: "):
            self._open = not self.failed
        elif line.startswith("ninja: "):
            self._open = False
        if self._open and len(self.failed) < _KEPT_LINES:
            self.failed.append(line)
        self.disk_full |= "No space left on device" in line
        # gcc's driver says so when the kernel ended its compiler process.
        self.out_of_memory |= "Killed signal terminated program" in line or "out of memory" in line

    @property
    def failed_output(self) -> str:
        """What the failed edge was to make."""
        return re.sub(r"^FAILED: (\[code=-?\d+\] )?", "", self.failed[0]).strip() if self.failed else ""

    @property
    def failed_command(self) -> str:
        """The command of the failed edge."""
        return self.failed[1] if len(self.failed) > 1 else ""

    @property
    def first_errors(self) -> tuple[str, ...]:
        """The first lines of the failed edge's output that say what is wrong."""
        output = self.failed[2:]
        errors = [line for line in output if _ERROR.search(line)]
        return tuple((errors or output)[:_SHOWN_LINES])


def cmake_errors(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The first error block of a configure step's output, without its empty lines."""
    start = next((at for at, line in enumerate(lines) if line.startswith("CMake Error")), None)
    if start is None:
        return tuple(line for line in lines if line.strip())[-_SHOWN_LINES:]
    block = [lines[start]]
    for line in lines[start + 1 :]:
        if line and not line.startswith(" "):
            break
        block.append(line)
    return tuple(line for line in block if line.strip())[:_SHOWN_LINES]
