"""The real build, once a run: every test that needs a real runtime takes it from here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

RECIPE = "dflash2-2026-09"
NAME = f"llama-{RECIPE}-cpu"


@dataclass(frozen=True)
class RealMake:
    """What ``llamabuild make`` left and said, with the environment to run it again."""

    dist: Path
    stdout: str
    stderr: str
    env: dict[str, str]


@pytest.fixture(scope="session")
def real_make(tmp_path_factory: pytest.TempPathFactory) -> RealMake:
    """Make the README's recipe for the CPU from nothing: fetch, patch, build, bundle, verify, archive.

    ``LLAMABUILD_TEST_HOME`` keeps the state between runs; by default everything starts empty.
    """
    home = os.environ.get("LLAMABUILD_TEST_HOME") or str(tmp_path_factory.mktemp("home"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMABUILD_")}
    env["LLAMABUILD_HOME"] = home
    dist = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "llamabuild", "make", "--recipe", RECIPE, "--target", "cpu", "--out", dist],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]
    return RealMake(dist=dist, stdout=done.stdout, stderr=done.stderr, env=env)


@pytest.fixture(scope="session")
def real_archive(real_make: RealMake) -> Path:
    """The zstd archive of the real runtime."""
    return real_make.dist / f"{NAME}.tar.zst"


@pytest.fixture(scope="session")
def real_bundle(real_make: RealMake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real runtime, unpacked by tar at a path that nothing was built or staged at."""
    folder = tmp_path_factory.mktemp("elsewhere with a space")
    subprocess.run(["tar", "xzf", real_make.dist / f"{NAME}.tar.gz", "-C", folder], check=True)
    return folder / NAME
