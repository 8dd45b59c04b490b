"""The verb ``size``: what fits where."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_verb, emit, emit_json
from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.runtime.placement import Device, Plan

_GIB = 1 << 30


def register(verbs: Subparsers) -> None:
    """Add ``size``."""
    size = add_verb(
        verbs,
        "size",
        run_size,
        summary="weights, caches and buffers per device, and the splits that fit",
        example="llamabuild size --model m.gguf --draft d.gguf --ctx 131072 --device CUDA0=24 --device CUDA1=16",
        description="Weights and caches are exact, compute buffers an estimate whose uncertainty is shown. Splits are "
        "whole layers, a bracket that --measure decides in.",
    )
    size.add_argument("--model", metavar="FILE|URL", required=True, help="the model's file, or its address")
    size.add_argument("--draft", metavar="FILE|URL", help="the drafter's")
    size.add_argument(
        "--ctx", metavar="N", type=int, default=0, help="--ctx-size; default: what the model was trained for"
    )
    size.add_argument("--parallel", metavar="P", type=int, default=1, help="slots (1)")
    size.add_argument("--unified", action="store_true", help="one cache for all slots (--kv-unified)")
    size.add_argument("--ctk", metavar="TYPE", default="f16", help="cache type of keys (f16)")
    size.add_argument("--ctv", metavar="TYPE", default="f16", help="cache type of values (f16)")
    size.add_argument("--ctkd", metavar="TYPE", default="f16", help="cache type of the drafter's keys (f16)")
    size.add_argument("--ctvd", metavar="TYPE", default="f16", help="cache type of the drafter's values (f16)")
    size.add_argument("--ubatch", metavar="U", type=int, default=512, help="micro-batch (512)")
    size.add_argument("--batch", metavar="B", type=int, default=2048, help="batch (2048)")
    size.add_argument(
        "--draft-max", metavar="N", type=int, default=0, help="drafted tokens; default: block size less one"
    )
    size.add_argument("--no-flash-attn", action="store_true", help="without flash attention")
    size.add_argument("--swa-full", action="store_true", help="windowed layers keep the whole context")
    size.add_argument(
        "--predict-ahead", action="store_true", help="the model's own prediction layers draft (draft-mtp)"
    )
    size.add_argument(
        "--no-pipeline",
        action="store_true",
        help="several devices without pipeline parallelism (tensor overrides, layers on the CPU, other split modes)",
    )
    size.add_argument(
        "--device",
        metavar="NAME=GiB",
        action="append",
        default=[],
        help="a device and what it may hold, in their order",
    )
    size.add_argument("--reserve", metavar="GiB", type=float, default=0.5, help="kept free on each device (0.5)")
    size.add_argument("--plot", metavar="FILE", type=Path, help="draw memory per device over the splits (.svg, .png)")
    size.add_argument("--measure", metavar="BUNDLE", help="load each split of the bracket for real, and compare")
    size.add_argument("--settle", metavar="SECONDS", type=float, default=6.0, help="after /health, before sampling (6)")
    add_json(size)


def run_size(args: argparse.Namespace, context: Context) -> int:
    """Print a sizing; exit code 1 when nothing fits."""
    from llamabuild.runtime.placement import rank_splits
    from llamabuild.runtime.size_text import describe_plan, plan_json, plot_plan

    plan = _plan(args)
    if args.plot:
        plot_plan(plan, args.plot)
        context.console.note(f"wrote {args.plot}")
    measured = _measure(args, plan, context) if args.measure else None
    if args.json:
        document = plan_json(plan)
        if measured is not None:
            document["measured"] = measured[1]
        emit_json(document)
    else:
        emit(describe_plan(plan) + (f"\n\n{measured[0]}" if measured else ""))
    return 0 if rank_splits(plan)[0].fits else 1


def _plan(args: argparse.Namespace) -> Plan:
    from llamabuild.runtime.gguf_model import load_model
    from llamabuild.runtime.placement import Plan
    from llamabuild.runtime.sizing import Serving

    model = load_model(args.model)
    draft = load_model(args.draft) if args.draft else None
    drafted = args.draft_max or (max(1, draft.block_size - 1) if draft else 0)
    for name in ("parallel", "ubatch", "batch"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} is {getattr(args, name)}, not a count.", hint="Give a number of at least 1.")
    context = args.ctx or model.context
    if not 0 < context <= 1 << 30:
        raise UsageError(f"--ctx {context} is no context.", hint="Give a number of positions, such as 32768.")
    serving = Serving(
        context=context,
        parallel=args.parallel,
        unified=args.unified,
        batch=args.batch,
        ubatch=args.ubatch,
        cache_k=args.ctk,
        cache_v=args.ctv,
        draft_cache_k=args.ctkd,
        draft_cache_v=args.ctvd,
        draft_tokens=drafted,
        flash_attention=not args.no_flash_attn,
        swa_full=args.swa_full,
    )
    return Plan(
        model=model,
        serving=serving,
        devices=_devices(args),
        draft=draft,
        predict_ahead=args.predict_ahead,
        pipeline=not args.no_pipeline,
    )


def _devices(args: argparse.Namespace) -> tuple[Device, ...]:
    from llamabuild.runtime.placement import Device

    if not args.device:
        raise UsageError("No device is given.", hint="Say what each may hold: --device CUDA0=24 --device CUDA1=16.")
    found: list[Device] = []
    for word in args.device:
        name, equals, size = word.partition("=")
        try:
            gib = float(size)
        except ValueError:
            gib = -1.0
        if not name or not equals or not 0 < gib < math.inf:
            raise UsageError(f"--device {word} is not NAME=GiB.", hint="Write --device CUDA0=24.")
        if name in {device.name for device in found}:
            raise UsageError(f"--device {name} is given twice.", hint="Give each device once.")
        found.append(Device(name, max(0, int((gib - args.reserve) * _GIB))))
    return tuple(found)


def _measure(args: argparse.Namespace, plan: Plan, context: Context) -> tuple[str, list[dict[str, object]]]:
    from dataclasses import asdict

    from llamabuild.commands.smoke import opened_bundle
    from llamabuild.runtime.measure import describe_measured, measure_rows
    from llamabuild.runtime.placement import HOST, neighbours, rank_splits

    serving = plan.serving
    words = ["-m", args.model, "-c", str(serving.context), "-np", str(serving.parallel), "-b", str(serving.batch)]
    words += ["-ub", str(serving.ubatch), "-ctk", serving.cache_k, "-ctv", serving.cache_v, "--fit", "off"]
    words += ["-fa", "on" if serving.flash_attention else "off"]
    words += ["-kvu"] * serving.unified + ["--swa-full"] * serving.swa_full
    if plan.draft:
        words += ["-md", args.draft, "--spec-draft-n-max", str(serving.draft_tokens)]
        words += ["-ctkd", serving.draft_cache_k, "-ctvd", serving.draft_cache_v]
    names = [device.name for device in plan.devices]
    if names != [HOST]:
        words += ["-dev", ",".join(names), "-ngl", "all"]
    with opened_bundle(args.measure, context) as bundle:
        found = measure_rows(
            bundle,
            neighbours(rank_splits(plan)),
            context,
            arguments=words,
            log=context.home.logs / "size.log",
            settle=args.settle,
        )
    return describe_measured(found), [
        {
            "tensor_split": one.row.tensor_split,
            "failure": one.failure,
            "buffers": {where: asdict(buffers) for where, buffers in one.buffers.items()},
            "before": asdict(one.before),
            "loaded": asdict(one.loaded),
        }
        for one in found
    ]
