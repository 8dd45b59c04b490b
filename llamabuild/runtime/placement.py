"""Which device carries what under a layer split, and which splits fit.

A layer split puts whole layers, in order, on each device; the output layer counts as one more and comes last; tensors
that are looked up by row stay in host memory (``src/llama-model.cpp``: ``get_layer_buft_list``, ``dev_input``). A
drafter belongs beside the target's last layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError
from llamabuild.runtime.sizing import (
    COMPUTE_UNCERTAINTY,
    COPIES,
    Serving,
    Share,
    cell_bytes,
    compute_bytes,
    draft_kv_bytes,
    input_bytes,
    kv_bytes,
    output_bytes,
    state_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from llamabuild.runtime.gguf_model import Layer, Model

HOST = "CPU"
"""The name of the device that is host memory itself."""

_STEP = 256
_MOST_CONTEXT = 1 << 30
_ALL_SPLITS = 20_000
"""Up to this many splits are all looked at; beyond, the best is climbed to by moving single layers."""


@dataclass(frozen=True)
class Device:
    """A device and what it may hold, in bytes."""

    name: str
    capacity: int


@dataclass(frozen=True)
class DeviceLoad:
    """What one device carries, in bytes."""

    device: Device
    first_layer: int
    layers: int
    """The output layer counts."""
    weights: int
    kv: int
    state: int
    compute: int
    draft_weights: int = 0
    draft_kv: int = 0
    draft_compute: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        parts = (self.weights, self.kv, self.state, self.compute)
        return sum(parts) + self.draft_weights + self.draft_kv + self.draft_compute

    @property
    def free(self) -> int:
        """What is left; negative when it does not fit."""
        return self.device.capacity - self.total

    @property
    def uncertainty(self) -> int:
        """By how much ``total`` may be off, either way."""
        return int(COMPUTE_UNCERTAINTY * (self.compute + self.draft_compute))


@dataclass(frozen=True)
class Row:
    """One split."""

    split: tuple[int, ...]
    """Layers a device, the output layer included: the value for ``--tensor-split``."""
    loads: tuple[DeviceLoad, ...]
    host: int
    """In host memory: embeddings that are looked up, and the buffer that logits are read from."""

    @property
    def margin(self) -> int:
        """What is left on the fullest device."""
        return min(load.free for load in self.loads)

    @property
    def fits(self) -> bool:
        """Whether every device holds its share."""
        return self.margin >= 0

    @property
    def surely_fits(self) -> bool:
        """Whether it fits even where every estimate is off by its uncertainty."""
        return all(load.free >= load.uncertainty for load in self.loads)

    @property
    def tensor_split(self) -> str:
        """As the flag wants it."""
        return ",".join(map(str, self.split))


@dataclass(frozen=True)
class Plan:
    """A model, how it is served, and on what."""

    model: Model
    serving: Serving
    devices: tuple[Device, ...]
    draft: Model | None = None
    predict_ahead: bool = False
    """``--spec-type draft-mtp``: the layers that predict ahead are loaded and keep keys and values too."""
    pipeline: bool = True
    """Whether several devices work as a pipeline, which costs copies of the inputs."""

    @property
    def copies(self) -> int:
        """Of the inputs, on each device that is not host memory."""
        return COPIES if self.pipeline and len(self.devices) > 1 else 1

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Those that are loaded."""
        return self.model.layers if self.predict_ahead else self.model.main_layers


def place(plan: Plan, split: Sequence[int]) -> Row:
    """What each device carries when it gets so many layers. Raises UsageError for a split of other layers."""
    places = len(plan.model.layers) + 1
    if len(split) != len(plan.devices) or sum(split) != places or min(split) < 0:
        raise UsageError(
            f"A split of {','.join(map(str, split))} does not share {places} layers among {len(plan.devices)} devices.",
            hint="The output layer counts as one.",
        )
    return _place(plan, tuple(split), _costs(plan))


@dataclass(frozen=True)
class _Costs:
    """What does not depend on the split. Of layers: running sums, so that a share is a difference."""

    weights: tuple[int, ...]
    kv: tuple[int, ...]
    state: tuple[int, ...]
    compute: dict[tuple[bool, bool, bool, bool, bool], int]
    """By whether a share has the output, attention, recurrent layers, any layers, and is in host memory."""
    draft_weights: int
    draft_kv: int
    draft_compute: dict[bool, int]
    """By whether it is in host memory."""
    host: int


def _costs(plan: Plan) -> _Costs:
    model, serving, draft = plan.model, plan.serving, plan.draft
    loaded = {layer.number for layer in plan.layers}

    def running(cost: Callable[[Layer], int]) -> tuple[int, ...]:
        return (0, *accumulate(cost(layer) if layer.number in loaded else 0 for layer in model.layers))

    return _Costs(
        weights=running(lambda layer: layer.bytes),
        kv=running(lambda layer: kv_bytes(model, layer, serving)),
        state=running(lambda layer: state_bytes(model, layer, serving)),
        compute={
            (output, attends, recurs, layers, host): compute_bytes(
                model, serving, Share(output, attends, recurs, layers, copies=0 if host else plan.copies)
            )
            for output, attends, recurs, layers, host in product((False, True), repeat=5)
        },
        draft_weights=sum(layer.bytes for layer in draft.main_layers) + draft.output_bytes if draft else 0,
        draft_kv=sum(draft_kv_bytes(draft, layer, serving) for layer in draft.main_layers) if draft else 0,
        draft_compute={
            host: compute_bytes(draft, serving, Share(copies=0 if host else 1)) if draft else 0
            for host in (False, True)
        },
        host=model.input_bytes + output_bytes(model, serving, draft) + _host_inputs(plan),
    )


def _host_inputs(plan: Plan) -> int:
    if all(device.name == HOST for device in plan.devices):
        return 0
    drafted = input_bytes(plan.draft, plan.serving, 1) if plan.draft else 0
    return input_bytes(plan.model, plan.serving, plan.copies) + drafted


def _place(plan: Plan, split: tuple[int, ...], costs: _Costs) -> Row:
    model = plan.model
    places, end = len(model.layers) + 1, 0
    loads = []
    for device, count in zip(plan.devices, split, strict=True):
        first, end = end, end + count
        low, high = min(first, places - 1), min(end, places - 1)
        output = count > 0 and end == places
        host = device.name == HOST
        head = model.output_bytes - (model.tied_bytes if host else 0) if output else 0
        kv, state = costs.kv[high] - costs.kv[low], costs.state[high] - costs.state[low]
        loads.append(
            DeviceLoad(
                device=device,
                first_layer=first,
                layers=count,
                weights=costs.weights[high] - costs.weights[low] + head,
                kv=kv,
                state=state,
                compute=costs.compute[output, kv > 0, state > 0, high > low, host] if count else 0,
                draft_weights=costs.draft_weights if output else 0,
                draft_kv=costs.draft_kv if output else 0,
                draft_compute=costs.draft_compute[host] if output else 0,
            )
        )
    return Row(split=split, loads=tuple(loads), host=costs.host)


def rank_splits(plan: Plan) -> tuple[Row, ...]:
    """Splits, the one with most room on its fullest device first."""
    places, count = len(plan.model.layers) + 1, len(plan.devices)
    costs = _costs(plan)
    if _ways(places, count) <= _ALL_SPLITS:
        rows = [_place(plan, split, costs) for split in _splits(places, count)]
    else:
        rows = _climb(plan, places, costs)
    return tuple(sorted(rows, key=lambda row: (-row.margin, row.split)))


def neighbours(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The best row and those one layer away from it: the bracket that a measurement has to decide in."""
    best = rows[0]
    near = [row for row in rows if sum(abs(a - b) for a, b in zip(row.split, best.split, strict=True)) <= 2]
    return tuple(sorted(near, key=lambda row: row.split))


def largest_context(plan: Plan) -> int:
    """The largest ``--ctx-size``, in steps of 256 positions a slot, for which some split fits; 0 when none does."""
    step = _STEP * plan.serving.streams

    def fits(steps: int) -> bool:
        return rank_splits(replace(plan, serving=replace(plan.serving, context=steps * step)))[0].fits

    if not fits(1):
        return 0
    low, high = 1, 2
    while high * step <= _MOST_CONTEXT and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * step


def position_bytes(plan: Plan, load: DeviceLoad) -> float:
    """What one more position of context costs on a device: caches that are not windowed, and the mask."""
    model, serving = plan.model, plan.serving
    mine = [layer for layer in plan.layers if load.first_layer <= layer.number < load.first_layer + load.layers]
    cost: float = sum(cell_bytes(model, layer, serving.cache_k, serving.cache_v) for layer in mine if not layer.sliding)
    masks = 1
    if plan.draft and load.draft_weights:
        cost += sum(
            cell_bytes(plan.draft, layer, serving.draft_cache_k, serving.draft_cache_v)
            for layer in plan.draft.main_layers
            if not layer.sliding
        )
        masks += any(not layer.sliding for layer in plan.draft.main_layers)
    if not any(layer.kv_heads for layer in mine):
        return cost
    copies = 1 if load.device.name == HOST else plan.copies
    return cost + (copies + masks - 1) * 2 * serving.tokens / serving.streams


def _ways(places: int, count: int) -> int:
    from math import comb

    return comb(places + count - 1, count - 1)


def _splits(places: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (places,)
        return
    for first in range(places + 1):
        for rest in _splits(places - first, count - 1):
            yield (first, *rest)


def _climb(plan: Plan, places: int, costs: _Costs) -> list[Row]:
    """Start in proportion to the capacities, and move single layers while the fullest device gains room."""
    total = sum(device.capacity for device in plan.devices)
    split = [places * device.capacity // total for device in plan.devices]
    split[0] += places - sum(split)
    seen = {tuple(split): _place(plan, tuple(split), costs)}
    best = seen[tuple(split)]
    while True:
        near = [_place(plan, moved, costs) for moved in _moves(best.split) if moved not in seen]
        seen.update({row.split: row for row in near})
        better = max(near, key=lambda row: row.margin, default=best)
        if better.margin <= best.margin:
            return list(seen.values())
        best = better


def _moves(split: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for giver, given in enumerate(split):
        for taker in range(len(split)):
            if giver != taker and given:
                moved = list(split)
                moved[giver] -= 1
                moved[taker] += 1
                yield tuple(moved)
