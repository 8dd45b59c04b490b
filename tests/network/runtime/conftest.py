"""The runtime that these tests drive, and the tiny models that it loads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llamabuild.runtime.tiny import write_tiny_model


@pytest.fixture(scope="session")
def bundle(request: pytest.FixtureRequest) -> Path:
    """A folder with ``bin/llama-server``: the run's real bundle, or the one that ``LLAMABUILD_TEST_BUNDLE`` names."""
    given = os.environ.get("LLAMABUILD_TEST_BUNDLE")
    return Path(given) if given else request.getfixturevalue("real_bundle")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tiny random model of each kind."""
    folder = tmp_path_factory.mktemp("models")
    return {
        kind: write_tiny_model(folder / f"{kind}.gguf", kind=kind) for kind in ("dense", "moe", "hybrid", "dflash2")
    }
