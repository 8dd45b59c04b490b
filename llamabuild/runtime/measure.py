"""The same sizes, measured: load, look, stop; no request is made, and nothing is interpolated."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.runtime.gguf_text import format_bytes
from llamabuild.runtime.memory import MemorySample, sample_memory
from llamabuild.runtime.server import ServerError, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from llamabuild.core.context import Context
    from llamabuild.runtime.placement import Row

SETTLE_SECONDS = 6.0
"""After ``/health`` a device's figures still move for a while."""

_BUFFER = re.compile(r"(?P<where>\S+)\s+(?P<kind>model|KV|RS|compute|output) buffer size =\s+(?P<size>[\d.]+) MiB")
_MIB = 1 << 20


@dataclass(frozen=True)
class Buffers:
    """What a server says that it allocated, in bytes by kind, all devices together; rounded to 0.01 MiB by it."""

    model: int
    kv: int
    state: int
    compute: int
    output: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.model + self.kv + self.state + self.compute + self.output


@dataclass(frozen=True)
class Measured:
    """One load."""

    row: Row
    before: MemorySample
    loaded: MemorySample
    buffers: dict[str, Buffers]
    """By the name of the place: ``CPU``, ``CPU_Mapped``, ``CUDA0``."""
    failure: str = ""


def parse_buffers(lines: Iterable[str]) -> dict[str, Buffers]:
    """Sum up the ``… buffer size = … MiB`` lines of a load with ``-lv 4``.

    A context tells its compute buffers again when they grow: of a run of such lines the last one of a place counts.
    """
    sums: dict[str, Counter[str]] = {}
    run: dict[str, int] = {}
    for line in lines:
        found = _BUFFER.search(line)
        if found is None:
            continue
        where, size = found["where"], round(float(found["size"]) * _MIB)
        kinds = sums.setdefault(where, Counter())
        if found["kind"] == "compute":
            kinds["compute"] += size - run.get(where, 0)
            run[where] = size
        else:
            run = {}
            kinds[found["kind"]] += size
    return {
        where: Buffers(
            model=kinds["model"],
            kv=kinds["KV"],
            state=kinds["RS"],
            compute=kinds["compute"],
            output=kinds["output"],
        )
        for where, kinds in sums.items()
    }


def measure_rows(
    bundle: Path,
    rows: Sequence[Row],
    context: Context,
    *,
    arguments: Sequence[str],
    log: Path,
    settle: float = SETTLE_SECONDS,
    timeout: float = 600.0,
) -> tuple[Measured, ...]:
    """Load each split once, sample, stop. A load that fails is a result too."""
    found = []
    for row in rows:
        words = [*arguments, "-lv", "4"]
        if len(row.split) > 1:
            words += ["-ts", row.tensor_split, "-sm", "layer"]
        before = sample_memory(env=context.env)
        failure, loaded, lines = "", before, list[str]()
        with context.console.step(f"Load with --tensor-split {row.tensor_split}"):
            try:
                with serve(bundle, words, env=context.env, log=log, timeout=timeout) as server:
                    time.sleep(settle)
                    loaded = sample_memory(env=context.env, pid=server.pid)
                    lines = server.lines()
            except ServerError as exc:
                failure = exc.message
        found.append(Measured(row=row, before=before, loaded=loaded, buffers=parse_buffers(lines), failure=failure))
    return tuple(found)


def describe_measured(measured: Sequence[Measured]) -> str:
    """Predicted against measured, a line a device and split."""
    lines = [f"{'split':<12} {'place':<16} {'predicted':>12} {'loader says':>12} {'sample says':>12}"]
    for one in measured:
        if one.failure:
            lines.append(f"{one.row.tensor_split:<12} {one.failure}")
            continue
        samples = {
            after.name.split(" ")[0]: after.used - next((d.used for d in one.before.devices if d.name == after.name), 0)
            for after in one.loaded.devices
        }
        for load in one.row.loads:
            said = one.buffers.get(load.device.name)
            lines.append(
                f"{one.row.tensor_split:<12} {load.device.name:<16} {format_bytes(load.total):>12} "
                f"{format_bytes(said.total) if said else '-':>12} "
                f"{format_bytes(samples[load.device.name]) if load.device.name in samples else '-':>12}"
            )
        total = sum(buffers.total for buffers in one.buffers.values())
        predicted = sum(load.total for load in one.row.loads) + one.row.host
        lines.append(
            f"{one.row.tensor_split:<12} {'all together':<16} {format_bytes(predicted):>12} {format_bytes(total):>12} "
            f"{format_bytes(one.loaded.process):>12}"
        )
    return "\n".join(lines)
