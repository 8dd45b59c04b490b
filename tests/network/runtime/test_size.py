"""Predicted against measured, on the real server: caches exactly, everything together within five per cent."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.cli import main
from llamabuild.runtime.gguf_model import load_model
from llamabuild.runtime.measure import parse_buffers
from llamabuild.runtime.memory import sample_memory
from llamabuild.runtime.placement import Device, Plan, place
from llamabuild.runtime.server import serve
from llamabuild.runtime.sizing import Serving
from llamabuild.runtime.tiny import write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.network

MIB = 1 << 20
ROUNDING = 0.0051 * MIB
"""The server tells sizes to a hundredth of a MiB."""

SHAPES: dict[str, dict[str, Any]] = {
    "dense": {"layers": 3, "width": 512, "heads": 8, "kv_heads": 4, "head_size": 64, "feed_forward": 2048},
    "dense-wide-heads": {"layers": 2, "width": 256, "heads": 8, "kv_heads": 2, "head_size": 128, "feed_forward": 768},
    "moe": {"layers": 2, "width": 512, "heads": 4, "kv_heads": 4, "head_size": 64, "feed_forward": 512, "experts": 8},
    "moe-four-used": {"layers": 3, "width": 256, "feed_forward": 256, "experts": 16, "experts_used": 4},
    "hybrid": {"layers": 8, "width": 512, "heads": 8, "kv_heads": 2, "head_size": 64, "feed_forward": 1024,
               "state_size": 64, "state_heads": 8},
    "hybrid-narrow": {"layers": 4, "width": 256, "heads": 4, "kv_heads": 4, "head_size": 64, "feed_forward": 1024,
                      "state_size": 32, "state_heads": 16},
    "sliding": {"layers": 7, "width": 256, "heads": 4, "kv_heads": 2, "head_size": 64, "feed_forward": 1024,
                "window": 1024},
}  # fmt: skip


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shapes")
    return {
        name: write_tiny_model(
            folder / f"{name}.gguf", kind=name.split("-")[0], vocab=4000, context=1 << 20, **sizes
        )
        for name, sizes in SHAPES.items()
    }  # fmt: skip


@pytest.mark.parametrize("serving", [Serving(context=4096, parallel=2), Serving(context=32768, ubatch=256)])
@pytest.mark.parametrize("name", SHAPES)
def test_predicted_and_measured(
    bundle: Path, shapes: dict[str, Path], tmp_path: Path, name: str, serving: Serving
) -> None:
    model = load_model(str(shapes[name]))
    row = place(Plan(model, serving, (Device("CPU", 1 << 40),)), (len(model.layers) + 1,))
    words = ["-m", str(shapes[name]), "-c", str(serving.context), "-np", str(serving.parallel)]
    words += ["-ub", str(serving.ubatch), "-lv", "4", "--no-warmup"]
    with serve(bundle, words, env=os.environ, log=tmp_path / "log") as server:
        found = parse_buffers(server.lines())
    measured = {kind: sum(asdict(one)[kind] for one in found.values()) for kind in asdict(found["CPU"])}
    load = row.loads[0]
    assert abs(measured["kv"] - load.kv) <= ROUNDING
    assert abs(measured["state"] - load.state) <= ROUNDING
    assert measured["model"] == pytest.approx(load.weights + model.input_bytes, abs=0.06 * MIB)
    predicted = load.total + row.host
    print(
        f"{name} at {serving.context}: predicted {predicted / MIB:.1f} MiB, measured {sum(measured.values()) / MIB:.1f}"
    )
    assert predicted == pytest.approx(sum(measured.values()), rel=0.05)


@pytest.mark.parametrize("window", [0, 1024])
def test_a_drafter_and_its_target(bundle: Path, tmp_path: Path, window: int) -> None:
    sizes = {"width": 256, "heads": 8, "kv_heads": 4, "head_size": 64, "feed_forward": 768, "vocab": 4000}
    target = write_tiny_model(tmp_path / "t.gguf", kind="hybrid", context=1 << 20, **sizes)
    drafter = write_tiny_model(tmp_path / "d.gguf", kind="dflash2", context=1 << 20, layers=5, window=window, **sizes)
    model, draft = load_model(str(target)), load_model(str(drafter))
    serving = Serving(context=16384, parallel=2, draft_tokens=7)
    load = place(Plan(model, serving, (Device("CPU", 1 << 40),), draft), (5,)).loads[0]
    words = ["-m", target, "-md", drafter, "-c", "16384", "-np", "2", "-lv", "4", "--no-warmup"]
    words += ["--spec-type", "draft-dflash", "--spec-draft-n-max", "7"]
    with serve(bundle, [str(word) for word in words], env=os.environ, log=tmp_path / "log") as server:
        found = parse_buffers(server.lines())["CPU"]
    assert abs(found.kv - (load.kv + load.draft_kv)) <= 2 * ROUNDING
    assert abs(found.state - load.state) <= ROUNDING
    assert load.compute + load.draft_compute == pytest.approx(found.compute, rel=0.15)


def test_resident_memory_rises_by_the_cache(bundle: Path, shapes: dict[str, Path], tmp_path: Path) -> None:
    """The kernel's figure and not the server's: the longer context costs its bytes per position."""
    seen = []
    for context in (8192, 8192 + 65536):
        words = ["-m", str(shapes["dense"]), "-c", str(context), "-np", "1", "--no-warmup", "-ub", "64"]
        with serve(bundle, words, env=os.environ, log=tmp_path / "log") as server:
            seen.append(sample_memory(env={"PATH": ""}, pid=server.pid).anonymous)
    cache = 65536 * 3 * 2 * 4 * 64 * 2
    assert seen[1] - seen[0] == pytest.approx(cache, rel=0.05)


def test_measure_runs_the_procedure(
    bundle: Path, shapes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("LLAMABUILD_HOME", str(tmp_path))
    argv = ["size", "--model", str(shapes["hybrid"]), "--ctx", "8192", "--device", "CPU=4", "--settle", "0"]
    assert main([*argv, "--measure", str(bundle)]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines() if "all together" in line]
    predicted, said = float(table[0][3]), float(table[0][5])
    assert predicted == pytest.approx(said, rel=0.05)
    assert main([*argv, "--measure", str(bundle), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured"][0]["loaded"]["process"] > 0
