from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from llamabuild.core.errors import ToolError
from llamabuild.core.process import run

ENV = {"PATH": os.environ["PATH"]}


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as handle:  # noqa: PTH123
            return handle.read().rsplit(")", 1)[1].split()[0] not in {"Z", "X"}
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Whether a process that was killed is gone; the kernel may take a moment for it."""
    for _ in range(100):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_output_reaches_log_lines_and_tail_in_the_order_written(tmp_path):
    seen = []
    done = run(
        ["sh", "-c", "echo one; echo two >&2; printf three; exit 3"], env=ENV, log=tmp_path / "log", on_line=seen.append
    )
    assert (done.returncode, done.ok) == (3, False)
    assert seen == list(done.tail) == ["one", "two", "three"]
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["one", "two", "three"]


def test_only_the_last_lines_are_kept(tmp_path):
    done = run(["seq", "1000"], env=ENV, tail_lines=3, log=tmp_path / "log")
    assert done.tail == ("998", "999", "1000")
    assert len((tmp_path / "log").read_text().splitlines()) == 1001


def test_a_program_that_is_not_there_is_a_tool_error():
    with pytest.raises(ToolError, match="no-such-tool could not be started"):
        run(["no-such-tool"], env=ENV)


def test_the_environment_is_the_one_given():
    assert run(["/usr/bin/env"], env={"ONLY": "this"}).tail == ("ONLY=this",)


def test_a_timeout_ends_the_tool_and_what_it_started(tmp_path):
    done = run(["sh", "-c", "sleep 60 & echo $!; wait"], env=ENV, timeout=0.5)
    assert done.timed_out
    assert not done.ok
    assert gone(int(done.tail[0]))


def test_an_error_in_the_callback_ends_the_tool():
    pids = []

    def stop(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", "echo $$; sleep 60"], env=ENV, on_line=stop)
    assert gone(pids[0])


def test_ctrl_c_leaves_no_child_behind(tmp_path):
    script = (
        "import os, sys; from llamabuild.core.process import run\n"
        "run(['sh', '-c', 'echo $$; sleep 60'], env=dict(os.environ), on_line=lambda l: print(l, flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as caller:
        pid = int(caller.stdout.readline())
        assert alive(pid)
        caller.send_signal(signal.SIGINT)
        caller.wait(timeout=20)
    assert gone(pid)
