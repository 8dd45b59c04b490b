"""A comparison as Markdown, JSON and picture."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import UsageError
from llamabuild.runtime.bench import spread
from llamabuild.runtime.size_text import open_figure, save_figure

if TYPE_CHECKING:
    from llamabuild.runtime.bench import Bench, Cell


def bench_markdown(bench: Bench) -> str:
    """The table that a README needs: by depth and slots, medians with the lowest and highest, and the change."""
    one, other = (side.name for side in bench.sides)
    agreement = bench.agreement
    verdict = (
        f"the same {agreement.compared_tokens} tokens at temperature 0"
        if agreement.same
        else f"log-probabilities within {agreement.largest_difference:.2g} over {agreement.compared_tokens} tokens"
    )
    settings = bench.settings
    lines = [
        (
            f"{Path(bench.model).name} on {', '.join(bench.devices) or 'the CPU'}; prompt {settings.prompt}, answer "
            f"{settings.generate} tokens; {settings.rounds} rounds in turns; tokens/s of all slots together, median "
            f"(lowest to highest). Outputs: {verdict}."
        ),
        "",
        f"| depth | slots | prefill {one} | prefill {other} | change | decode {one} | decode {other} | change |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for baseline, patched in _pairs(bench):
        cells = []
        for kind in ("prefill", "decode"):
            before, after = getattr(baseline, kind), getattr(patched, kind)
            cells += [_figure(before), _figure(after), _change(before, after)]
        lines.append(f"| {baseline.depth} | {baseline.slots} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bench_json(bench: Bench) -> dict[str, Any]:
    """The document of ``bench --json``: every figure of every round."""
    return {
        "kind": "bench",
        "model": bench.model,
        "sides": [{"name": side.name, "bundle": str(side.bundle)} for side in bench.sides],
        "devices": list(bench.devices),
        "settings": asdict(bench.settings),
        "agreement": asdict(bench.agreement),
        "cells": [
            {**asdict(cell), "prefill_median": spread(cell.prefill)[0], "decode_median": spread(cell.decode)[0]}
            for cell in bench.cells
        ],
    }


def plot_bench(bench: Bench, path: Path) -> None:
    """Draw prefill and decode over depth, with the spread, into an SVG or PNG file. Raises UsageError."""
    if path.suffix.lower() not in {".svg", ".png"}:
        raise UsageError(f"{path} is neither .svg nor .png.", hint="Name the picture bench.svg or bench.png.")
    figure = open_figure()
    for axes, kind in zip(figure.subplots(1, 2), ("prefill", "decode"), strict=True):
        for side in bench.sides:
            for slots in bench.settings.slots:
                mine = [cell for cell in bench.cells if cell.side == side.name and cell.slots == slots]
                points = [spread(getattr(cell, kind)) for cell in mine]
                axes.errorbar(
                    [cell.depth for cell in mine],
                    [median for median, _, _ in points],
                    yerr=[[median - low for median, low, _ in points], [high - median for median, _, high in points]],
                    marker="o",
                    capsize=3,
                    label=f"{side.name}, {slots} slot(s)",
                )
        axes.set_title(kind)
        axes.set_xlabel("depth")
        axes.set_ylabel("tokens/s")
        axes.set_ylim(bottom=0)
    axes.legend()
    save_figure(figure, path)


def _pairs(bench: Bench) -> list[tuple[Cell, Cell]]:
    cells = {(cell.side, cell.depth, cell.slots): cell for cell in bench.cells}
    return [
        (cells[bench.sides[0].name, depth, slots], cells[bench.sides[1].name, depth, slots])
        for slots in bench.settings.slots
        for depth in sorted(bench.settings.depths)
    ]


def _change(before: tuple[float, ...], after: tuple[float, ...]) -> str:
    """Of the medians; where the two ranges overlap, the figure says nothing and is marked."""
    change = f"{100 * (spread(after)[0] / spread(before)[0] - 1):+.1f} %"
    return change if min(after) > max(before) or max(after) < min(before) else f"{change} (ranges overlap)"


def _figure(values: tuple[float, ...]) -> str:
    median, low, high = spread(values)
    return f"{median:.1f} ({low:.1f} to {high:.1f})"
