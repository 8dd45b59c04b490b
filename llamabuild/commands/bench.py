"""The verb ``bench``: patched against baseline."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_verb, emit, emit_json
from llamabuild.commands.rest import take_rest
from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.runtime.bench import Settings

_MOST_SLOTS = 64


def register(verbs: Subparsers) -> None:
    """Add ``bench``."""
    bench = add_verb(
        verbs,
        "bench",
        run_bench_verb,
        summary="compare two bundles on one machine: outputs first, then prefill and decode by depth",
        example="llamabuild bench baseline.tar.zst patched.tar.zst --model m.gguf --depth 0,4096,32768 --slots 1,4",
        description="Runs the two in turns and prints a Markdown table of medians with their spread. Refuses when the "
        "outputs differ, or when one of them fell back to the CPU.",
    )
    bench.add_argument("baseline", metavar="BUNDLE_A", help="the baseline: a bundle's folder or archive")
    bench.add_argument("patched", metavar="BUNDLE_B", help="what is compared with it")
    bench.add_argument("--model", metavar="FILE", type=Path, required=True, help="the model that both serve")
    bench.add_argument("--names", metavar="A,B", default="baseline,patched", help="how the table calls them")
    bench.add_argument("--depth", metavar="N,N", default="0,4096", help="positions in the cache beforehand (0,4096)")
    bench.add_argument("--slots", metavar="N,N", default="1,4", help="requests at once (1,4)")
    bench.add_argument("--prompt", metavar="N", type=int, default=512, help="tokens of the measured prompt (512)")
    bench.add_argument("--generate", metavar="N", type=int, default=128, help="tokens of the measured answer (128)")
    bench.add_argument("--rounds", metavar="N", type=int, default=3, help="how often each is started (3)")
    bench.add_argument("--limit", metavar="X", type=float, default=0.1, help="largest log-probability difference (0.1)")
    bench.add_argument("--markdown", metavar="FILE", type=Path, help="write the table to a file too")
    bench.add_argument("--plot", metavar="FILE", type=Path, help="draw both rates over depth (.svg, .png)")
    take_rest(bench, "flags")
    add_json(bench)


def run_bench_verb(args: argparse.Namespace, context: Context) -> int:
    """Run the comparison and print its table."""
    from llamabuild.commands.smoke import opened_bundle
    from llamabuild.core.files import write_text
    from llamabuild.runtime.bench import Side, run_bench
    from llamabuild.runtime.bench_text import bench_json, bench_markdown, plot_bench

    settings = _settings(args)
    names = [name.strip() for name in args.names.split(",")]
    if len(names) != 2 or len(set(names)) != 2 or not all(names):
        raise UsageError(f"--names {args.names} are not two names.", hint="Write --names baseline,patched.")
    if not args.model.is_file():
        raise UsageError(f"{args.model} does not exist.", hint="Give the model's file.")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(opened_bundle(args.baseline, context))
        second = stack.enter_context(opened_bundle(args.patched, context))
        bench = run_bench(
            (Side(names[0], first), Side(names[1], second)),
            context,
            model=args.model,
            flags=args.flags,
            settings=settings,
            logs=context.home.logs / "bench",
        )
    if args.plot:
        plot_bench(bench, args.plot)
    if args.markdown:
        write_text(args.markdown, bench_markdown(bench) + "\n")
    if args.json:
        emit_json(bench_json(bench))
    else:
        emit(bench_markdown(bench))
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    from llamabuild.runtime.bench import Settings

    depths, slots = (_numbers(args, name) for name in ("depth", "slots"))
    if min(slots) < 1 or max(slots) > _MOST_SLOTS:
        raise UsageError(f"--slots {args.slots} are no slot counts.", hint=f"Give numbers from 1 to {_MOST_SLOTS}.")
    for name in ("prompt", "generate", "rounds"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} {getattr(args, name)} is no count.", hint="Give a number of at least 1.")
    return Settings(
        depths=depths,
        slots=slots,
        prompt=args.prompt,
        generate=args.generate,
        rounds=args.rounds,
        divergence_limit=args.limit,
    )


def _numbers(args: argparse.Namespace, name: str) -> tuple[int, ...]:
    text = getattr(args, name)
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = (-1,)
    if min(found) < 0:
        raise UsageError(f"--{name} {text} are not numbers.", hint=f"Write --{name} 0,4096.")
    return found
