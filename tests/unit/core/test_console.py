from __future__ import annotations

import io
from pathlib import Path

import pytest

from llamabuild.core.console import Console
from llamabuild.core.context import Home
from llamabuild.core.errors import BuildError


def test_an_error_is_a_sentence_details_hint_and_log_in_this_order():
    console = Console(stream=io.StringIO())
    console.error(BuildError("It failed.", hint="Do this.", log=Path("/var/log/x"), details=("line",)))
    assert console.stream.getvalue().splitlines() == [
        "error: It failed.", "  | line", "hint: Do this.", "log: /var/log/x",
    ]  # fmt: skip


def test_a_failed_step_says_so_and_the_error_goes_on():
    console = Console(stream=io.StringIO())
    with pytest.raises(ValueError, match="x"), console.step("Compiling"):
        raise ValueError("x")
    assert console.stream.getvalue().startswith("Compiling: FAILED (")


def test_github_folds_a_step():
    console = Console(stream=io.StringIO(), folding=True)
    with console.step("Compiling"):
        console.note("inside")
    lines = console.stream.getvalue().splitlines()
    assert lines[0] == "::group::Compiling"
    assert lines[-1] == "::endgroup::"


def test_quiet_says_nothing_but_warnings_and_errors():
    console = Console(stream=io.StringIO(), verbosity=-1)
    with console.step("Compiling") as progress:
        progress.update(1, 2)
        console.note("inside")
    assert console.stream.getvalue() == ""


@pytest.mark.parametrize("env", [{"CI": "true"}, {"TERM": "dumb"}, {}])
def test_without_a_terminal_there_are_no_bars_and_no_colours(env):
    console = Console.for_terminal(env)
    assert (console.interactive, console.color) == (False, False)


def test_home_is_the_variable_or_the_users_cache(tmp_path):
    assert Home.from_environment({"LLAMABUILD_HOME": str(tmp_path)}).git == tmp_path / "git"
    assert Home.from_environment({}).root.name == "llamabuild"
