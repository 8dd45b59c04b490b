"""Two runtimes against each other: the same model, the same machine, in turns; outputs first, then speed.

Everything is asked of the real servers over HTTP, and the rates are the servers' own timings.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import VerificationError
from llamabuild.runtime.devices import list_devices
from llamabuild.runtime.server import ask_at_once, serve
from llamabuild.runtime.signatures import recognise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from llamabuild.core.context import Context
    from llamabuild.runtime.server import RunningServer

_PROMPTS = (
    "The quick brown fox jumps over the lazy dog.",
    "def fibonacci(n):",
    "Once upon a time, in a country far away,",
)
_COMPARED_TOKENS = 48
_CANDIDATES = 10
_SPARE = 64
_FIRST_TOKEN = 32


class BenchError(VerificationError):
    """The two cannot be compared: they do not say the same, or one of them does not run where the other does."""


@dataclass(frozen=True)
class Side:
    """One of the two runtimes."""

    name: str
    bundle: Path


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    depths: tuple[int, ...] = (0, 1024)
    """Positions in the cache before the measured prompt."""
    slots: tuple[int, ...] = (1, 4)
    prompt: int = 256
    """Tokens of the measured prompt."""
    generate: int = 64
    """Tokens of the measured answer."""
    rounds: int = 3
    divergence_limit: float = 0.1
    """The most by which log-probabilities may differ (natural logarithm) where tokens are not the same."""


@dataclass(frozen=True)
class Cell:
    """One measured point of one side; tokens per second, one figure a round."""

    side: str
    depth: int
    slots: int
    prefill: tuple[float, ...]
    decode: tuple[float, ...]


@dataclass(frozen=True)
class Agreement:
    """How far the outputs at temperature 0 agree."""

    same: bool
    compared_tokens: int
    largest_difference: float
    """Of log-probabilities, over the tokens that both said and the first at which they part."""


@dataclass(frozen=True)
class Bench:
    """A finished comparison."""

    model: str
    sides: tuple[Side, Side]
    devices: tuple[str, ...]
    settings: Settings
    agreement: Agreement
    cells: tuple[Cell, ...]


def run_bench(
    sides: tuple[Side, Side],
    context: Context,
    *,
    model: Path,
    flags: Sequence[str],
    settings: Settings,
    logs: Path,
) -> Bench:
    """Compare ``sides``; the first is the baseline. The server's own ``flags`` must leave context and slots alone.

    Raises BenchError when a side does not use the devices that the other uses, or when the outputs differ by more than
    the limit; ServerError when a server does not run.
    """
    devices = _same_devices(sides, context)
    agreement: Agreement | None = None
    cells: list[Cell] = []
    for slots in settings.slots:
        # -lv 4: at the default verbosity the loader does not say where its layers went.
        words = ["-m", str(model), "-lv", "4", "-c", str(_context(settings) * slots), "-np", str(slots), *flags]
        figures: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for turn in range(settings.rounds):
            # Back and forth (ABBA), so that a machine that warms up favours neither.
            order = sides if turn % 2 == 0 else sides[::-1]
            said: dict[str, list[dict[str, Any]]] = {}
            for side in order:
                log = logs / f"bench-{side.name}.log"
                with (
                    context.console.step(f"Round {turn + 1} of {settings.rounds}, {slots} slot(s): {side.name}"),
                    serve(side.bundle, words, env=context.env, log=log) as server,
                ):
                    _refuse_fallback(side, server, devices)
                    # Asked in every round: it warms the server up as well.
                    said[side.name] = [_say(server, prompt) for prompt in _PROMPTS]
                    for depth, rates in _measure(server, settings, slots):
                        figures.setdefault((side.name, depth), []).append(rates)
            if agreement is None:
                agreement = _compare(said[sides[0].name], said[sides[1].name], limit=settings.divergence_limit)
        cells += [
            Cell(side, depth, slots, tuple(prefill for prefill, _ in rates), tuple(decode for _, decode in rates))
            for (side, depth), rates in sorted(figures.items(), key=lambda item: item[0][1])
        ]
    if agreement is None:
        raise BenchError("Nothing was measured.", hint="Give at least one slot count and one round.")
    return Bench(str(model), sides, devices, settings, agreement, tuple(cells))


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest."""
    return statistics.median(values), min(values), max(values)


def compare_tokens(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> tuple[bool, int, float]:
    """Whether two answers have the same tokens, how many were compared, and the largest log-probability difference.

    Each item is one of ``completion_probabilities``: ``id``, ``logprob`` and ``top_logprobs``. At the first token that
    is not the same, the difference is the gap that each side sees between the two candidates: near zero for a tie.
    """
    largest = 0.0
    for count, (first, second) in enumerate(zip(one, other, strict=False), 1):
        if first["id"] == second["id"]:
            largest = max(largest, abs(first["logprob"] - second["logprob"]))
            continue
        gaps = [_gap(side, first["id"], second["id"]) for side in (first, second)]
        return False, count, max(largest, *gaps)
    return len(one) == len(other), min(len(one), len(other)), largest


def _gap(seen: dict[str, Any], one: int, other: int) -> float:
    ranked = {item["id"]: item["logprob"] for item in seen["top_logprobs"]}
    if one not in ranked or other not in ranked:
        return math.inf
    return float(abs(ranked[one] - ranked[other]))


def _compare(one: list[dict[str, Any]], other: list[dict[str, Any]], *, limit: float) -> Agreement:
    same, count, largest = True, 0, 0.0
    for first, second in zip(one, other, strict=True):
        equal, compared, difference = compare_tokens(
            first["completion_probabilities"], second["completion_probabilities"]
        )
        same, count, largest = same and equal, count + compared, max(largest, difference)
    if not same and largest > limit:
        raise BenchError(
            f"The two do not say the same at temperature 0: log-probabilities differ by {largest:.3g}, more than "
            f"{limit:g}, after {count} tokens.",
            hint="A speed is worth nothing before the output is right; --limit states what is acceptable.",
        )
    return Agreement(same, count, largest)


def _say(server: RunningServer, prompt: str) -> dict[str, Any]:
    answer = server.post(
        "/completion",
        {"prompt": prompt, "n_predict": _COMPARED_TOKENS, "temperature": 0, "n_probs": _CANDIDATES, "seed": 1},
        timeout=600,
    )
    if not answer.ok or "completion_probabilities" not in (answer.body or {}):
        raise server.failure(f"a completion with probabilities was answered with status {answer.status}")
    document: dict[str, Any] = answer.body
    return document


def _context(settings: Settings) -> int:
    """Of one slot, in positions."""
    return -(-(max(settings.depths) + settings.prompt + settings.generate + _SPARE) // 256) * 256


def _measure(server: RunningServer, settings: Settings, slots: int) -> Iterator[tuple[int, tuple[float, float]]]:
    for number, depth in enumerate(settings.depths):

        def ask(slot: int, *, depth: int = depth, number: int = number) -> dict[str, Any]:
            # Every slot and depth its own prompt: nothing may come out of a cache but what was put there for it.
            shift = _FIRST_TOKEN + 7 * slot + 31 * number
            tokens = [_FIRST_TOKEN + (shift + place * 13) % 90 for place in range(depth + settings.prompt)]
            if depth:
                _good(server, {"prompt": tokens[:depth], "n_predict": 0, "id_slot": slot, "cache_prompt": True})
            body = {"prompt": tokens, "n_predict": settings.generate, "id_slot": slot, "cache_prompt": True}
            return _good(server, body | {"ignore_eos": True, "temperature": 0})

        timings = ask_at_once(ask, slots)
        prompt_seconds = max(one["prompt_ms"] for one in timings) / 1000
        decode_seconds = max(one["predicted_ms"] for one in timings) / 1000
        yield (
            depth,
            (
                sum(one["prompt_n"] for one in timings) / max(prompt_seconds, 1e-9),
                sum(one["predicted_n"] for one in timings) / max(decode_seconds, 1e-9),
            ),
        )


def _good(server: RunningServer, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.post("/completion", body, timeout=3600)
    if not answer.ok:
        raise server.failure(f"a request was answered with status {answer.status}: {answer.text[:120]}")
    timings: dict[str, Any] = answer.body["timings"]
    return timings


def _same_devices(sides: tuple[Side, Side], context: Context) -> tuple[str, ...]:
    seen = []
    for side in sides:
        found = list_devices(side.bundle, env=context.env)
        if found.silent:
            raise BenchError(
                f"{side.name} has a {found.silent[0]} plugin and sees no {found.silent[0]} device: it would run on the "
                "CPU.",
                hint="llamabuild smoke says what is wrong with it.",
                details=found.lines[-6:],
            )
        seen.append(tuple(device.name for device in found.devices))
    if seen[0] != seen[1]:
        shown = " and ".join(
            f"{side.name} sees {', '.join(names) or 'none'}" for side, names in zip(sides, seen, strict=True)
        )
        raise BenchError(f"The two do not run on the same devices: {shown}.", hint="Compare builds of one target.")
    return seen[0]


def _refuse_fallback(side: Side, server: RunningServer, devices: tuple[str, ...]) -> None:
    lines = server.lines()
    recognised = recognise(lines)
    nothing = [line for line in lines if "offloaded 0/" in line]
    if devices and (nothing or any(finding.name == "runtime.cuda-compat" for finding in recognised)):
        raise BenchError(
            f"{side.name} fell back to the CPU: no layer is on {devices[0]}.",
            hint="Free the device's memory, or see what the log says about it.",
            log=server.log,
            details=tuple(nothing[:3]) or tuple(finding.evidence for finding in recognised),
        )
