"""Run a tool: its output goes to a log as it comes, the last lines are kept, and it never outlives its caller."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from llamabuild.core.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_TERMINATE_GRACE_SECONDS = 5.0
_TAIL_LINES = 200


@dataclass(frozen=True)
class Completed:
    """A tool's run: its exit status and the last lines of its output (stdout and stderr in the order written)."""

    argv: tuple[str, ...]
    returncode: int
    tail: tuple[str, ...]
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether the tool ended by itself with status 0."""
        return self.returncode == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """The kept lines as one text."""
        return "\n".join(self.tail)


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    timeout: float | None = None,
    tail_lines: int | None = _TAIL_LINES,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run ``argv`` to its end in its own process group and return how it went; a status other than 0 is not raised.

    ``env`` is the whole environment of the tool. ``log`` is appended to, byte for byte. ``on_line`` gets each line
    without its end. ``timeout`` is in seconds. ``tail_lines=None`` keeps the whole output. ``pass_fds`` are open files
    that the tool and what it starts keep open.

    Raises ToolError when the program cannot be started. When this function is left in any other way than by
    returning (Ctrl-C, an error in ``on_line``), the whole process group is ended first.
    """
    words = tuple(os.fspath(word) for word in argv)
    tail: deque[str] = deque(maxlen=tail_lines)
    with contextlib.ExitStack() as stack:
        sink: BinaryIO | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            sink = stack.enter_context(log.open("ab"))
            sink.write(f"$ {' '.join(words)}\n".encode(errors="surrogateescape"))
            sink.flush()
        child = stack.enter_context(_started(words, env=env, cwd=cwd, pass_fds=pass_fds))
        timed_out = False
        for raw in _lines(child, deadline=None if timeout is None else time.monotonic() + timeout):
            if raw is None:
                timed_out = True
                break
            if sink is not None:
                sink.write(raw)
                sink.flush()
            line = raw.decode(errors="replace").rstrip("\r\n")
            tail.append(line)
            if on_line is not None:
                on_line(line)
        if timed_out:
            end_group(child)
        return Completed(argv=words, returncode=child.wait(), tail=tuple(tail), timed_out=timed_out)


@contextlib.contextmanager
def _started(
    words: tuple[str, ...], *, env: Mapping[str, str], cwd: Path | None, pass_fds: Sequence[int]
) -> Iterator[subprocess.Popen[bytes]]:
    try:
        child = subprocess.Popen(
            words,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except OSError as exc:
        raise ToolError(
            f"{words[0]} could not be started: {exc.strerror or exc}.", hint="Check that it is installed and on PATH."
        ) from exc
    try:
        yield child
    except BaseException:
        end_group(child)
        raise
    finally:
        if child.stdout is not None:
            child.stdout.close()


def _lines(child: subprocess.Popen[bytes], *, deadline: float | None) -> Iterator[bytes | None]:
    """Yield whole lines as they come; None once the deadline has passed."""
    if child.stdout is None:
        return
    descriptor = child.stdout.fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not selector.select(wait):
                if pending:
                    yield pending
                yield None
                return
            block = os.read(descriptor, 65536)
            if not block:
                if pending:
                    yield pending
                return
            *whole, pending = (pending + block).split(b"\n")
            for line in whole:
                yield line + b"\n"


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a child that leads its own process group, and all that it started: asked first, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_TERMINATE_GRACE_SECONDS)
            if number == signal.SIGTERM:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            return
