"""Sizes against figures that people published, and against llama.cpp's own arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamabuild.cli import main
from llamabuild.core.errors import UsageError
from llamabuild.runtime.gguf_model import Layer, Model, load_model
from llamabuild.runtime.measure import parse_buffers
from llamabuild.runtime.placement import Device, Plan, largest_context, neighbours, place, position_bytes, rank_splits
from llamabuild.runtime.sizing import Serving, draft_kv_bytes, kv_bytes, output_bytes, state_bytes
from llamabuild.runtime.tiny import write_tiny_model

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    kinds = ("dense", "moe", "hybrid", "dflash2")
    return {kind: write_tiny_model(folder / f"{kind}.gguf", kind=kind) for kind in kinds}


def qwen35_27b(models: dict[str, Path]) -> Model:
    """The header of a qwen35 of 64 layers: every fourth attends, four heads of 256 of keys and values."""
    layers = tuple(
        Layer(number, int(0.43 * GIB), 0, 24, 4 if (number + 1) % 4 == 0 else 0, (number + 1) % 4 != 0, False)
        for number in range(64)
    )
    return replace(
        load_model(str(models["hybrid"])),
        layers=layers, width=5120, feed_forward=17408, heads=24, head_count_kv=4, key_length=256, value_length=256,
        context=262144, vocab=248320, output_bytes=GIB, input_bytes=GIB,
        conv_state=3 * (6144 + 2 * 16 * 128), recurrent_state=128 * 6144,
    )  # fmt: skip


def drafter(models: dict[str, Path], *, window: int) -> Model:
    """Five layers of 20 KiB a position together."""
    layers = tuple(Layer(number, 100 * MIB, 0, 32, 8, False, window > 0) for number in range(5))
    return replace(
        load_model(str(models["dflash2"])),
        layers=layers, width=5120, vocab=248320, heads=32, key_length=128, value_length=128, sliding_window=window,
    )  # fmt: skip


def test_an_attention_layer_carries_a_gib_more_at_the_whole_context(models: dict[str, Path]) -> None:
    # Field figures of a qwen35 27B: 0.43 GiB for a DeltaNet layer, 1.43 GiB for an attention layer with its f16 cache.
    model = qwen35_27b(models)
    serving = Serving(context=262144)
    costs = {kv_bytes(model, layer, serving) + layer.bytes for layer in model.layers}
    assert sorted(round(cost / GIB, 2) for cost in costs) == [0.43, 1.43]


@pytest.mark.parametrize(("window", "expected"), [(0, 5 * GIB), (2048, (2048 + 512) * 20 * KIB)])
def test_a_drafter_caches_the_targets_context_unless_it_declares_a_window(
    models: dict[str, Path], window: int, expected: int
) -> None:
    # Field figures at 262,144 positions: 5.0 GiB without a window; about 40 MiB with one of 2,048, to which the
    # cache adds a micro-batch (src/llama-kv-cache-iswa.cpp).
    draft = drafter(models, window=window)
    serving = Serving(context=262144, draft_tokens=7)
    assert sum(draft_kv_bytes(draft, layer, serving) for layer in draft.layers) == expected


def test_parallel_divides_the_context_and_both_are_padded(models: dict[str, Path]) -> None:
    model = load_model(str(models["dense"]))
    for parallel in (1, 2, 3, 5):
        assert Serving(context=1500, parallel=parallel).positions == {1: 1536, 2: 768, 3: 512, 5: 512}[parallel]
    whole = Serving(context=4096)
    assert kv_bytes(model, model.layers[0], whole) == kv_bytes(model, model.layers[0], replace(whole, parallel=4))
    unified = replace(whole, parallel=4, unified=True)
    assert (unified.positions, unified.streams) == (4096, 1)


def test_quantised_caches(models: dict[str, Path]) -> None:
    model = load_model(str(models["dense"]))
    # Two heads of 16: one block of Q8_0 is 34 bytes, of Q4_0 18.
    for kind, bytes_a_position in (("f32", 256), ("f16", 128), ("q8_0", 68), ("q4_0", 36)):
        serving = Serving(context=1024, cache_k=kind, cache_v=kind)
        assert kv_bytes(model, model.layers[0], serving) == bytes_a_position * 1024
    with pytest.raises(UsageError, match="q9_9 is not a cache type"):
        kv_bytes(model, model.layers[0], Serving(context=1024, cache_k="q9_9"))


def test_a_drafted_hybrid_keeps_a_state_for_each_drafted_token(models: dict[str, Path]) -> None:
    model = load_model(str(models["hybrid"]))
    plain = sum(state_bytes(model, layer, Serving(context=1024, parallel=2)) for layer in model.layers)
    drafted = sum(
        state_bytes(model, layer, Serving(context=1024, parallel=2, draft_tokens=7)) for layer in model.layers
    )
    assert drafted == 8 * plain
    other = replace(model, architecture="qwen3next")
    assert state_bytes(other, other.layers[0], Serving(context=1024, draft_tokens=7)) == state_bytes(
        other, other.layers[0], Serving(context=1024)
    )


def test_outputs_are_those_that_are_sampled(models: dict[str, Path]) -> None:
    model, draft = load_model(str(models["hybrid"])), load_model(str(models["dflash2"]))
    assert output_bytes(model, Serving(context=1024, parallel=2)) == 280 * 2 * 4
    taken = 2 * 64 * 1024 * 4
    assert output_bytes(model, Serving(context=1024, parallel=2, draft_tokens=7), draft) == 280 * 16 * 4 + taken


def test_the_micro_batch_sets_the_compute_buffers(models: dict[str, Path]) -> None:
    # Field figures of two cards: 512 -> 1536 added about 3.3 GiB beside the output and the drafter, 1.7 GiB elsewhere
    # (at a context that is not told; here the model's whole one).
    plan = plan_of(models, 40, 40, context=262144)
    added = [
        (after.total - before.total) / GIB
        for before, after in zip(
            place(plan, (32, 33)).loads,
            place(replace(plan, serving=replace(plan.serving, ubatch=1536)), (32, 33)).loads,
            strict=True,
        )
    ]
    assert 1.4 < added[0] < 2.6
    assert 2.8 < added[1] < 4.2
    assert 1.4 < added[1] / added[0] < 2.2


# Loads of v0.5.0 over two RPC devices (RPC0, RPC1), 16,384 positions, one slot, one thread: what the loader said, in
# MiB, of weights, keys and values, states, compute. The last column is the host's compute buffer with the output's.
TWO_DEVICES = {
    1: ((5.05, 0.00, 0.07, 9.00), (39.16, 32.00, 0.37, 73.09), 65.09),
    3: ((15.15, 0.00, 0.22, 9.02), (29.06, 32.00, 0.22, 73.09), 65.09),
    4: ((20.15, 16.00, 0.22, 73.09), (24.06, 16.00, 0.22, 73.09), 65.09),
    5: ((25.20, 16.00, 0.30, 73.09), (19.01, 16.00, 0.15, 73.09), 65.09),
    8: ((40.30, 32.00, 0.45, 73.09), (3.91, 0.00, 0.00, 2.52), 65.09),
}
# The same with a DFlash2 drafter of three layers on the second device.
TWO_DEVICES_DRAFTED = {
    2: ((10.10, 0.00, 1.19, 9.02), (49.02, 80.00, 2.38, 99.62)),
    4: ((20.15, 16.00, 1.78, 73.09), (38.97, 64.00, 1.78, 99.62)),
    7: ((35.30, 16.00, 3.56, 73.09), (23.82, 64.00, 0.00, 99.59)),
}


@pytest.fixture(scope="module")
def measured_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    folder = tmp_path_factory.mktemp("pair")
    sizes: dict[str, Any] = {"width": 256, "heads": 8, "kv_heads": 4, "head_size": 64, "feed_forward": 1024}
    sizes |= {"vocab": 4000, "context": 1 << 20}
    target = write_tiny_model(folder / "t", kind="hybrid", layers=8, state_size=32, state_heads=16, **sizes)
    return load_model(str(target)), load_model(str(write_tiny_model(folder / "d", kind="dflash2", layers=3, **sizes)))


@pytest.mark.parametrize("first", TWO_DEVICES)
def test_two_devices_as_they_were_measured(measured_pair: tuple[Model, Model], first: int) -> None:
    devices = (Device("RPC0", GIB), Device("RPC1", GIB))
    row = place(Plan(measured_pair[0], Serving(context=16384), devices), (first, 9 - first))
    *measured, host = TWO_DEVICES[first]
    for load, figures in zip(row.loads, measured, strict=True):
        found = [part / MIB for part in (load.weights, load.kv, load.state, load.compute)]
        assert found == pytest.approx(figures, abs=0.1)
    assert (row.host - measured_pair[0].input_bytes) / MIB == pytest.approx(host, abs=0.1)


@pytest.mark.parametrize("first", TWO_DEVICES_DRAFTED)
def test_two_devices_and_a_drafter_as_they_were_measured(measured_pair: tuple[Model, Model], first: int) -> None:
    devices = (Device("RPC0", GIB), Device("RPC1", GIB))
    serving = Serving(context=16384, draft_tokens=7)
    row = place(Plan(measured_pair[0], serving, devices, measured_pair[1]), (first, 9 - first))
    for load, figures in zip(row.loads, TWO_DEVICES_DRAFTED[first], strict=True):
        weights, kv, state, compute = figures
        assert (load.weights + load.draft_weights) / MIB == pytest.approx(weights, abs=0.02)
        assert (load.kv + load.draft_kv) / MIB == pytest.approx(kv, abs=0.01)
        assert load.state / MIB == pytest.approx(state, abs=0.01)
        assert (load.compute + load.draft_compute) / MIB == pytest.approx(compute, rel=0.03)


def test_a_split_counts_layers_as_the_loader_does() -> None:
    """``std::upper_bound`` over cumulated float32 shares, the output layer being the last of them."""
    for places in (3, 33, 65, 95):
        for first in range(places + 1):
            shares = np.array(list(accumulate((first, places - first))), dtype=np.float32)
            shares /= shares[-1]
            on_first = sum(
                int(np.searchsorted(shares, np.float32(layer) / np.float32(places), side="right")) == 0
                for layer in range(places)
            )
            assert on_first == first


def plan_of(models: dict[str, Path], *capacities: float, context: int = 131072) -> Plan:
    devices = tuple(Device(f"CUDA{number}", int(size * GIB)) for number, size in enumerate(capacities))
    return Plan(qwen35_27b(models), Serving(context=context, draft_tokens=7), devices, drafter(models, window=2048))


def test_splits_move_memory_and_do_not_change_its_sum(models: dict[str, Path]) -> None:
    plan = plan_of(models, 24, 24)
    rows = [place(plan, (first, 65 - first)) for first in range(1, 65)]
    sums = {sum(load.weights + load.kv + load.state + load.draft_kv for load in row.loads) for row in rows}
    assert len(sums) == 1
    # The output and the drafter stay with the last layers.
    assert all(row.loads[1].draft_weights == 500 * MIB + plan.draft.output_bytes for row in rows if plan.draft)
    shares = [row.loads[0].weights + row.loads[0].kv + row.loads[0].state for row in rows]
    steps = [after - before for before, after in pairwise(shares)]
    assert max(steps) - min(steps) == pytest.approx(0.5 * GIB, rel=0.1)


def test_the_best_split_leaves_most_on_the_fullest_device(models: dict[str, Path]) -> None:
    plan = plan_of(models, 24, 16)
    rows = rank_splits(plan)
    assert len(rows) == 66
    assert rows[0].margin == max(row.margin for row in rows)
    near = neighbours(rows)
    assert [row.split[0] for row in near] == [rows[0].split[0] + step for step in (-1, 0, 1)]
    three = rank_splits(plan_of(models, 16, 16, 16))
    assert three[0].margin == max(row.margin for row in three)
    # More devices than can all be looked at: climbing finds as much room as four of the same size have.
    six = rank_splits(plan_of(models, 8, 8, 8, 8, 8, 8))
    assert six[0].fits
    with pytest.raises(UsageError, match="does not share 65 layers"):
        place(plan, (10, 10))


def test_the_largest_context_fits_and_the_next_does_not(models: dict[str, Path]) -> None:
    plan = plan_of(models, 24, 16)
    most = largest_context(plan)
    assert most % 256 == 0
    assert rank_splits(replace(plan, serving=replace(plan.serving, context=most)))[0].fits
    assert not rank_splits(replace(plan, serving=replace(plan.serving, context=most + 256)))[0].fits
    assert largest_context(plan_of(models, 4, 4)) == 0


def test_a_position_costs_what_a_longer_context_adds(models: dict[str, Path]) -> None:
    plan = plan_of(models, 24, 16)
    split = rank_splits(plan)[0].split
    before = place(plan, split)
    after = place(replace(plan, serving=replace(plan.serving, context=131072 + 8192)), split)
    for old, new in zip(before.loads, after.loads, strict=True):
        assert new.total - old.total <= position_bytes(plan, old) * 8192
        # Four copies of a mask of 512 tokens: the rest is the cache's.
        assert new.kv - old.kv == (position_bytes(plan, old) - 4 * 2 * 512) * 8192


def test_buffers_of_a_log() -> None:
    log = """\
I load_tensors:   CPU_Mapped model buffer size =     0.78 MiB
I load_tensors:        CUDA0 model buffer size =  1024.50 MiB
I llama_kv_cache:      CUDA0 KV buffer size =     0.50 MiB
I sched_reserve:      CUDA0 compute buffer size =     3.00 MiB
I sched_reserve:  CUDA_Host compute buffer size =     1.00 MiB
I sched_reserve:      CUDA0 compute buffer size =     4.00 MiB
I sched_reserve:  CUDA_Host compute buffer size =     1.00 MiB
I llama_kv_cache:      CUDA0 KV buffer size =     0.25 MiB
I sched_reserve:      CUDA0 compute buffer size =     4.00 MiB
"""
    found = parse_buffers(log.splitlines())
    assert found["CUDA0"].compute == 8 * MIB
    assert found["CUDA_Host"].compute == MIB
    assert found["CUDA0"].kv == 0.75 * MIB
    assert found["CUDA0"].model == 1024.5 * MIB


def test_size_says_what_fits_and_draws_it(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["size", "--model", str(models["hybrid"]), "--draft", str(models["dflash2"]), "--ctx", "8192"]
    argv += ["--device", "CUDA0=1", "--device", "CUDA1=0.6"]
    for name, head in (("plot.svg", b"<?xml"), ("plot.png", b"\x89PNG")):
        assert main([*argv, "--json", "--plot", str(tmp_path / name)]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (tmp_path / name).read_bytes().startswith(head)
    assert len(document["splits"]) == 6
    assert [layer["kv"] for layer in document["layers"]] == [0, 0, 0, 8192 * 128]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "best split --tensor-split" in text
    assert "one GiB more on CUDA0 buys" in text


def test_what_does_not_fit_is_an_exit_code(models: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["size", "--model", str(models["dense"]), "--ctx", "1000000"]
    assert main([*argv, "--device", "CUDA0=0.6"]) == 1
    assert "does NOT fit" in capsys.readouterr().out
    for wrong in ([], ["--device", "CUDA0"], ["--device", "CUDA0=x"], ["--device", "A=1", "--device", "A=2"]):
        assert main([*argv, *wrong]) == 2
    assert main([*argv, "--device", "A=1", "--plot", "plot.txt"]) == 2
    assert main([*argv, "--device", "A=1", "--parallel", "0"]) == 2
    assert "Traceback" not in capsys.readouterr().err
