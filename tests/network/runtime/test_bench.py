"""Two runtimes compared for real, and refused where they cannot be."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from llamabuild.cli import main
from llamabuild.runtime.server import find_program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.network

ONE_THREAD = ["--", "-t", "1"]
"""Two threads that wait for each other are slow where the machine is shared."""
SMALL = ["--depth", "0,256", "--prompt", "64", "--generate", "16"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMABUILD_HOME", str(tmp_path / "home"))


def altered(folder: Path, bundle: Path, extra: str) -> Path:
    """A bundle whose server runs with one more flag, as a patched build would behave."""
    program = folder / "bin" / "llama-server"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(find_program(bundle)))} "$@" {extra}\n')
    program.chmod(0o755)
    return folder


def test_the_same_build_says_the_same(
    bundle: Path, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", str(bundle), str(bundle), "--model", str(models["hybrid"]), *SMALL]
    argv += ["--slots", "1,2", "--rounds", "2", "--json", "--markdown", str(tmp_path / "table.md")]
    assert main([*argv, "--plot", str(tmp_path / "plot.png"), *ONE_THREAD]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agreement"] == {"same": True, "compared_tokens": 144, "largest_difference": 0.0}
    points = [(cell["side"], cell["depth"], cell["slots"]) for cell in document["cells"]]
    assert sorted(points) == sorted(
        (side, depth, slots) for side in ("baseline", "patched") for depth in (0, 256) for slots in (1, 2)
    )
    assert all(len(cell["prefill"]) == len(cell["decode"]) == 2 for cell in document["cells"])
    assert all(rate > 0 for cell in document["cells"] for rate in (*cell["prefill"], *cell["decode"]))
    table = (tmp_path / "table.md").read_text()
    assert table.count("\n| 256 |") == 2
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_another_output_is_refused(
    bundle: Path, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = altered(tmp_path / "other", bundle, "--rope-freq-base 50")
    argv = ["bench", str(bundle), str(other), "--model", str(models["dense"]), *SMALL, "--slots", "1", "--rounds", "1"]
    assert main([*argv, *ONE_THREAD]) == 1
    assert "do not say the same at temperature 0" in capsys.readouterr().err
    assert main([*argv, "--limit", "inf", *ONE_THREAD]) == 0
    assert "Outputs: log-probabilities within" in capsys.readouterr().out


def test_a_plugin_without_its_device_is_refused(
    bundle: Path, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = altered(tmp_path / "other", bundle, "")
    (other / "bin" / "libggml-cuda.so").write_bytes(b"not a library")
    assert main(["bench", str(bundle), str(other), "--model", str(models["dense"]), *SMALL]) == 1
    assert "patched has a CUDA plugin and sees no CUDA device: it would run on the CPU." in capsys.readouterr().err
