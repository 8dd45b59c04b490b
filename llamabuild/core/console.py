"""Progress and diagnostics on stderr; results never pass through here."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from llamabuild.core.errors import LlamabuildError

_CI_STEP_SECONDS = 15.0
"""Without a terminal a long step says how far it is this often, so that a CI log neither floods nor looks dead."""


class Progress(Protocol):
    """What a long step reports to."""

    def update(self, done: float, total: float, text: str = "") -> None:
        """Say that ``done`` of ``total`` is finished; ``text`` is what is worked on now."""


@dataclass
class Console:
    """Writes steps, notes and warnings to ``stream``: bars on a terminal, plain lines elsewhere and in CI."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    verbosity: int = 0
    """-1 quiet (errors alone), 0 normal, 1 verbose."""
    interactive: bool = False
    color: bool = False
    folding: bool = False
    """Group a step's lines as GitHub Actions folds them."""

    @classmethod
    def for_terminal(cls, env: dict[str, str] | os._Environ[str], *, verbosity: int = 0) -> Console:
        """Choose bars and colours from the terminal and from ``CI``, ``GITHUB_ACTIONS``, ``TERM`` and ``NO_COLOR``."""
        tty = sys.stderr.isatty() and env.get("CI", "").lower() not in {"true", "1"} and env.get("TERM") != "dumb"
        return cls(
            verbosity=verbosity,
            interactive=tty,
            color=tty and not env.get("NO_COLOR"),
            folding=env.get("GITHUB_ACTIONS") == "true",
        )

    def _line(self, text: str, *, style: str = "") -> None:
        code = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}.get(style)
        self.stream.write(f"\033[{code}m{text}\033[0m\n" if self.color and code else f"{text}\n")
        self.stream.flush()

    def note(self, text: str) -> None:
        """One line that a user may want to know."""
        if self.verbosity >= 0:
            self._line(f"  {text}")

    def detail(self, text: str) -> None:
        """One line shown with ``-v`` alone."""
        if self.verbosity >= 1:
            self._line(f"  {text}", style="dim")

    def warn(self, text: str) -> None:
        """One line that a user should know."""
        self._line(f"warning: {text}", style="yellow")

    def error(self, failure: LlamabuildError) -> None:
        """The sentence, its details, the hint, the log: always in this order."""
        self._line(f"error: {failure.message}", style="red")
        for line in failure.details:
            self._line(f"  | {line}")
        if failure.hint:
            self._line(f"hint: {failure.hint}")
        if failure.log:
            self._line(f"log: {failure.log}")

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Progress]:
        """Time a step; yields what its progress is reported to. A step that fails says so and the error goes on."""
        began = time.monotonic()
        if self.folding and self.verbosity >= 0:
            self._line(f"::group::{title}")
        bar = self._bar(title)
        state = "failed"
        try:
            yield bar
            state = "done"
        finally:
            bar.close()
            if self.verbosity >= 0:
                mark = "ok" if state == "done" else "FAILED"
                self._line(f"{title}: {mark} ({time.monotonic() - began:.1f} s)", style="" if mark == "ok" else "red")
            if self.folding and self.verbosity >= 0:
                self._line("::endgroup::")

    def _bar(self, title: str) -> _Bar:
        if self.verbosity < 0:
            return _Bar()
        return _RichBar(title, color=self.color) if self.interactive else _PlainBar(self, title)


class _Bar:
    """Progress that is not shown."""

    def update(self, done: float, total: float, text: str = "") -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _PlainBar(_Bar):
    """Progress as a line now and then."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._last = time.monotonic()

    def update(self, done: float, total: float, text: str = "") -> None:
        """Write a line if the last one is old enough."""
        now = time.monotonic()
        if now - self._last >= _CI_STEP_SECONDS and total:
            self._last = now
            self._console.note(f"{self._title}: {100 * done / total:.0f} % {text}".rstrip())


class _RichBar(_Bar):
    """Progress as a bar, drawn by rich."""

    def __init__(self, title: str, *, color: bool) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._progress = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}"),
            console=RichConsole(stderr=True, no_color=not color),
            transient=True,
        )
        self._task = self._progress.add_task(title, total=None, text="")
        self._progress.start()

    def update(self, done: float, total: float, text: str = "") -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, total=total or None, text=text[:60])

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
