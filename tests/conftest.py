"""Fixtures that every kind of test shares."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import settings

from llamabuild.core.console import Console
from llamabuild.core.context import Context, Home

# The same examples on every run, so that a change is judged by what it changed; look for new ones with
# `--hypothesis-profile=explore`.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty state folder."""
    return Home(tmp_path / "home")


@pytest.fixture
def context(home: Home, tmp_path: Path) -> Context:
    """The outside world of a test: own state, own folder, a console that is kept in ``context.console.stream``."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMABUILD_")}
    return Context(home=home, console=Console(stream=io.StringIO()), env=env, cwd=tmp_path)
