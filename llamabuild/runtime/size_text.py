"""A sizing as text, JSON and picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import UsageError
from llamabuild.core.files import atomic_write
from llamabuild.runtime.gguf_text import format_bytes
from llamabuild.runtime.placement import largest_context, neighbours, position_bytes, rank_splits
from llamabuild.runtime.sizing import kv_bytes, state_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.runtime.placement import DeviceLoad, Plan, Row

_GIB = 1 << 30


def describe_plan(plan: Plan) -> str:
    """The best split device by device, its neighbours, the largest context, and what an extra GiB buys."""
    rows = rank_splits(plan)
    best = rows[0]
    serving = plan.serving
    lines = [
        (
            f"{plan.model.architecture}, {len(plan.model.main_layers)} layers, {serving.context} positions in "
            f"{serving.parallel} slot(s) of {serving.positions}, cache {serving.cache_k}/{serving.cache_v}, "
            f"micro-batch {serving.ubatch}"
        ),
        "",
        f"best split --tensor-split {best.tensor_split}" + ("" if best.fits else "  (does NOT fit)"),
    ]
    lines += [_load_line(load) for load in best.loads]
    lines.append(f"  {'host memory':<14} {format_bytes(best.host)}")
    if len(plan.devices) > 1:
        lines += [
            "",
            "the bracket (one step is one layer, and layers differ: " + _steps(plan) + "; measure to decide):",
        ]
        lines += [f"  {_row_line(row)}" for row in neighbours(rows)]
        how = f"pipeline parallelism, inputs in {plan.copies} copies" if plan.copies > 1 else "no pipeline parallelism"
        lines.append(f"  with {how}" + ("; --no-pipeline counts one" if plan.copies > 1 else ""))
    context = largest_context(plan)
    trained = f" (the model was trained for {plan.model.context})" if plan.model.context else ""
    lines += ["", f"largest context that fits: {context or 'none'}{trained}"]
    lines += [f"  one GiB more on {name} buys {count:.0f} positions" for name, count in _bought(plan, best)]
    if not best.surely_fits and best.fits:
        lines.append("  the margin is smaller than the uncertainty of the compute buffers: measure (--measure)")
    return "\n".join(lines)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The document of ``size --json``. Sizes in bytes."""
    rows = rank_splits(plan)
    return {
        "kind": "size",
        "fits": rows[0].fits,
        "best": _row_json(rows[0]),
        "bracket": [_row_json(row) for row in neighbours(rows)],
        "splits": [_row_json(row) for row in sorted(rows, key=lambda row: row.split)],
        "layers": [
            {"number": layer.number, "weights": layer.bytes, "experts": layer.expert_bytes, "kv": kv, "state": state}
            for layer, kv, state in _by_layer(plan)
        ],
        "largest_context": largest_context(plan),
        "positions_per_gib": dict(_bought(plan, rows[0])),
    }


def plot_plan(plan: Plan, path: Path) -> None:
    """Draw memory a device over the splits into an SVG or PNG file. Raises UsageError without matplotlib."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in {"svg", "png"}:
        raise UsageError(f"{path} is neither .svg nor .png.", hint="Name the picture plot.svg or plot.png.")
    figure = open_figure()
    rows = sorted(rank_splits(plan), key=lambda row: row.split)
    axes = figure.add_subplot()
    places = range(len(rows)) if len(plan.devices) != 2 else [row.split[0] for row in rows]
    for number, device in enumerate(plan.devices):
        line = axes.plot(places, [row.loads[number].total / _GIB for row in rows], marker=".", label=device.name)
        axes.axhline(device.capacity / _GIB, linestyle="--", linewidth=1, color=line[0].get_color())
    axes.set_xlabel(f"layers on {plan.devices[0].name}" if len(plan.devices) == 2 else "split")
    axes.set_ylabel("GiB")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{plan.model.architecture}, {plan.serving.context} positions, dashed: capacity")
    axes.legend()
    save_figure(figure, path)


def open_figure() -> Any:
    """A figure that needs no display. Raises UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise UsageError(
            "Plots need matplotlib, which is not installed.", hint="pip install 'llamabuild[plot]'"
        ) from exc
    return Figure(figsize=(8, 4.5), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write the figure, complete or not at all, in the format of the name's suffix."""
    kind = path.suffix.lower().lstrip(".")
    with atomic_write(path) as handle:
        # No date and no random ids: the same figures give the same file.
        figure.savefig(handle, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "tensor_split": row.tensor_split,
        "fits": row.fits,
        "margin": row.margin,
        "host": row.host,
        "devices": [
            {
                "name": load.device.name,
                "capacity": load.device.capacity,
                "layers": load.layers,
                "weights": load.weights,
                "kv": load.kv,
                "state": load.state,
                "compute": load.compute,
                "draft_weights": load.draft_weights,
                "draft_kv": load.draft_kv,
                "draft_compute": load.draft_compute,
                "total": load.total,
                "uncertainty": load.uncertainty,
            }
            for load in row.loads
        ],
    }


def _by_layer(plan: Plan) -> list[tuple[Any, int, int]]:
    return [
        (layer, kv_bytes(plan.model, layer, plan.serving), state_bytes(plan.model, layer, plan.serving))
        for layer in plan.layers
    ]


def _load_line(load: DeviceLoad) -> str:
    parts = [f"weights {format_bytes(load.weights)}", f"KV {format_bytes(load.kv)}"]
    if load.state:
        parts.append(f"states {format_bytes(load.state)}")
    parts.append(f"compute {format_bytes(load.compute)}")
    if load.draft_weights:
        parts.append(
            f"drafter {format_bytes(load.draft_weights)} + KV {format_bytes(load.draft_kv)} + compute "
            f"{format_bytes(load.draft_compute)}"
        )
    end = load.first_layer + load.layers - 1
    span = f"layers {load.first_layer}-{end}" if load.layers else "nothing"
    return (
        f"  {load.device.name:<14} {format_bytes(load.total)} ± {format_bytes(load.uncertainty)} of "
        f"{format_bytes(load.device.capacity)} ({span}: {', '.join(parts)})"
    )


def _row_line(row: Row) -> str:
    shares = ", ".join(f"{load.device.name} {format_bytes(load.total)}" for load in row.loads)
    return f"{row.tensor_split:<12} {shares}; {format_bytes(row.margin)} left" + ("" if row.fits else ", does NOT fit")


def _steps(plan: Plan) -> str:
    sizes = sorted({layer.bytes + kv + state for layer, kv, state in _by_layer(plan)})
    return format_bytes(sizes[0]) + (f" to {format_bytes(sizes[-1])}" if len(sizes) > 1 else "") if sizes else "none"


def _bought(plan: Plan, row: Row) -> list[tuple[str, float]]:
    return [
        (load.device.name, _GIB / cost) for load in row.loads if load.layers and (cost := position_bytes(plan, load))
    ]
