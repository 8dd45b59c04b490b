"""What a comparison may say: outputs token by token, medians with their spread."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llamabuild.cli import main
from llamabuild.core.errors import UsageError
from llamabuild.runtime.bench import (
    Agreement,
    Bench,
    BenchError,
    Cell,
    Settings,
    Side,
    _refuse_fallback,
    compare_tokens,
    spread,
)
from llamabuild.runtime.bench_text import bench_json, bench_markdown, plot_bench
from llamabuild.runtime.server import RunningServer


def token(number: int, *ranked: tuple[int, float]) -> dict[str, Any]:
    logprobs = dict(ranked) or {number: -0.5}
    return {
        "id": number,
        "logprob": logprobs[number],
        "top_logprobs": [{"id": key, "logprob": value} for key, value in logprobs.items()],
    }


def test_equal_tokens_with_the_largest_difference_of_their_probabilities() -> None:
    one = [token(1, (1, -0.5)), token(2, (2, -0.25))]
    other = [token(1, (1, -0.5)), token(2, (2, -0.3))]
    assert compare_tokens(one, one) == (True, 2, 0.0)
    same, count, largest = compare_tokens(one, other)
    assert (same, count) == (True, 2)
    assert largest == pytest.approx(0.05)


def test_a_tie_that_falls_the_other_way_is_a_small_difference() -> None:
    one = [token(1, (1, -0.700), (2, -0.701)), token(9)]
    other = [token(2, (1, -0.702), (2, -0.700)), token(8)]
    same, count, largest = compare_tokens(one, other)
    assert (same, count) == (False, 1)
    assert largest == pytest.approx(0.002)


def test_a_token_that_the_other_side_did_not_even_consider() -> None:
    assert compare_tokens([token(1, (1, -0.1))], [token(2, (2, -0.1))]) == (False, 1, math.inf)


def test_answers_of_different_length_are_not_the_same() -> None:
    assert compare_tokens([token(1)], [token(1), token(2)])[0] is False


def bench_of(*figures: tuple[str, tuple[float, ...]]) -> Bench:
    sides = (Side("base", Path("a")), Side("new", Path("b")))
    cells = tuple(Cell(side, 0, 1, rates, rates) for side, rates in figures)
    settings = Settings(depths=(0,), slots=(1,), rounds=3)
    return Bench("m.gguf", sides, ("CUDA0",), settings, Agreement(same=True, compared_tokens=144,
                 largest_difference=0.0), cells)  # fmt: skip


def test_a_side_that_fell_back_to_the_cpu_is_refused(tmp_path: Path) -> None:
    side = Side("new", tmp_path)
    for line in (
        "I load_tensors: offloaded 0/65 layers to GPU",
        "ggml_cuda_init: failed to initialize CUDA: forward compatibility was attempted on non supported HW",
    ):
        server = cast(RunningServer, SimpleNamespace(lines=lambda line=line: [line], log=tmp_path / "log"))
        with pytest.raises(BenchError, match="new fell back to the CPU: no layer is on CUDA0"):
            _refuse_fallback(side, server, ("CUDA0",))
        _refuse_fallback(side, server, ())
    sound = cast(RunningServer, SimpleNamespace(lines=lambda: ["I load_tensors: offloaded 65/65 layers to GPU"]))
    _refuse_fallback(side, sound, ("CUDA0",))


def test_medians_with_their_spread() -> None:
    assert spread((3.0, 1.0, 2.0)) == (2.0, 1.0, 3.0)
    table = bench_markdown(bench_of(("base", (100.0, 101.0, 99.0)), ("new", (120.0, 110.0, 115.0))))
    row = table.splitlines()[-1]
    assert row.startswith("| 0 | 1 | 100.0 (99.0 to 101.0) | 115.0 (110.0 to 120.0) | +15.0 % |")
    assert "the same 144 tokens at temperature 0" in table
    assert "on CUDA0" in table


def test_ranges_that_overlap_are_marked() -> None:
    table = bench_markdown(bench_of(("base", (100.0, 120.0)), ("new", (110.0, 130.0))))
    assert "+9.1 % (ranges overlap)" in table


def test_json_and_picture(tmp_path: Path) -> None:
    bench = bench_of(("base", (100.0, 101.0)), ("new", (120.0, 110.0)))
    document = bench_json(bench)
    assert document["cells"][1]["decode_median"] == 115.0
    assert document["cells"][0]["prefill"] == (100.0, 101.0)
    plot_bench(bench, tmp_path / "b.svg")
    assert "new, 1 slot(s)" in (tmp_path / "b.svg").read_text()
    with pytest.raises(UsageError):
        plot_bench(bench, tmp_path / "b.txt")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--depth", "x"],
        ["--depth", "-1"],
        ["--slots", "0"],
        ["--rounds", "0"],
        ["--names", "a"],
        ["--names", "a,a"],
        [],
    ],
)
def test_wrong_arguments_are_one_sentence(tmp_path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", str(tmp_path), str(tmp_path), "--model", str(tmp_path / "none.gguf")]
    assert main([*argv, *wrong]) == 2
    assert capsys.readouterr().err.count("error: ") == 1
