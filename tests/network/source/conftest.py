"""Real upstream trees, each fetched once a run by the providers that the package itself has."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.core.console import Console
from llamabuild.core.context import Context, Home
from llamabuild.core.errors import LlamabuildError

if TYPE_CHECKING:
    from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[3]


def load(path: Path) -> ModuleType:
    """A module by its file: benchmarks are no package."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def bench() -> Any:
    """``benchmarks/series.py``."""
    return load(REPOSITORY / "benchmarks" / "series.py")


@pytest.fixture(scope="session")
def real_context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A state folder for the trees; ``LLAMABUILD_TEST_HOME`` keeps it between runs."""
    home = os.environ.get("LLAMABUILD_TEST_HOME") or str(tmp_path_factory.mktemp("trees"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMABUILD_")}
    return Context(home=Home(Path(home)), console=Console(stream=io.StringIO()), env=env, cwd=REPOSITORY)


@pytest.fixture(scope="session")
def v050(bench: Any, real_context: Context) -> tuple[Path, str]:
    """The mirror that has the tree of v0.5.0, and that tree's id."""
    try:
        mirror, tree = bench.real_tree(real_context.home.root)
    except LlamabuildError as exc:
        pytest.skip(f"v0.5.0 cannot be fetched here: {exc.message}")
    return mirror, tree
