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


@pytest.fixture(scope="session")
def source_tree(request: pytest.FixtureRequest) -> Path:
    """The llama.cpp tree that the bundle was built from."""
    given = os.environ.get("LLAMABUILD_TEST_BUNDLE")
    if given:
        found = [Path(given).parent]
    else:
        home = Path(request.getfixturevalue("real_make").env["LLAMABUILD_HOME"])
        found = [path.parents[1] for path in home.glob("src/**/models/ggml-vocab-gpt-2.gguf")]
    tree = next((path for path in found if (path / "ggml" / "src" / "ggml-rpc").is_dir()), None)
    if tree is None:
        pytest.skip("the source tree of the bundle is not here")
    return tree
