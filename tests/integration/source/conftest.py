"""What the tests of sources share: real repositories, and a real git server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Helper modules of this folder; importlib mode puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

from gitserver import GitServer, serve
from realgit import Git

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """A repository with a work tree, made and written by the git program."""
    return Git.new(tmp_path / "work")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    """A git server for everything below ``tmp_path / "served"``."""
    (tmp_path / "served").mkdir()
    with serve(tmp_path / "served") as running:
        yield running
