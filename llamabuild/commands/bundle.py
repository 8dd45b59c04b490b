"""The verbs bundle and pack, for a recipe's build and for a build folder that somebody else made."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_verb, emit, emit_json
from llamabuild.commands.make import add_out, add_request, bundle_options, request_of, tell_made
from llamabuild.core.errors import UsageError
from llamabuild.core.files import scratch_folder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from llamabuild.bundle.model import Artifact, BundlePlan, StagedBundle
    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.verify.findings import Report

_OF_RECIPES = tuple(
    "--target --keep-conflict --jobs --cuda-toolkit --vulkan-sdk --launcher --remote-cache".split()  # noqa: SIM905
)
"""Options that say how a recipe is built, and can change nothing in what is built already."""
_OF_BUILDS = ("--cuda", "--name")


def register(verbs: Subparsers) -> None:
    """Add bundle and pack."""
    parser = add_verb(
        verbs,
        "bundle",
        _bundle,
        summary="stage a build as a relocatable folder and verify it",
        description="Stage a build as a relocatable folder and verify it: a recipe's, or any build folder.",
        example="llamabuild bundle --build llama.cpp/build --rocm /opt/rocm --arch gfx1100 --to ./runtime",
    )
    _add_source(parser)
    parser.add_argument("--to", metavar="DIR", type=Path, help="copy the bundle to DIR, which must not exist yet")
    parser = add_verb(
        verbs,
        "pack",
        _pack,
        summary="make verified archives of a bundle",
        description="Make verified archives of a recipe's bundle (as make does), or of any build folder's.",
        example="llamabuild pack --build llama.cpp/build --rocm /opt/rocm --arch gfx1100 --out dist",
    )
    _add_source(parser)
    add_out(parser)
    parser.add_argument(
        "--format",
        choices=("tar", "wheel"),
        default="tar",
        help="tar: .tar.gz and .tar.zst; wheel: a Python wheel with console scripts (default: tar)",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--build", metavar="DIR", type=Path, help="a build folder, in place of a recipe")
    parser.add_argument("--cuda", metavar="DIR", type=Path, help="with --build: where CUDA's libraries are taken from")
    parser.add_argument("--name", help="with --build: the bundle's name")
    add_request(parser, required=False)


def _check_source(args: argparse.Namespace) -> None:
    hint = "Name a recipe, or a build folder that exists already."
    if args.build is None and args.recipe is None:
        raise UsageError("Neither --recipe nor --build is given.", hint=hint)
    if args.build is not None and args.recipe is not None:
        raise UsageError("Both --recipe and --build are given.", hint=hint)
    mode, others = ("--build", _OF_RECIPES) if args.build is not None else ("--recipe", _OF_BUILDS)
    for option in others:
        if getattr(args, option.removeprefix("--").replace("-", "_")) is not None:
            raise UsageError(f"{option} has no meaning with {mode}.", hint=f"Leave {option} out.")


def _bundle(args: argparse.Namespace, context: Context) -> int:
    _check_source(args)
    if args.build is not None:
        if args.to is None:
            raise UsageError("--build without --to: nowhere to put the bundle.", hint="Name a new folder with --to.")
        from llamabuild.release.publish import check_new_folder, publish_folder, require_verified

        check_new_folder(args.to)
        with _foreign(args, context) as (staged, _):
            report = require_verified(staged.root, context=context, arch=args.arch)
            publish_folder(staged, args.to)
    else:
        from llamabuild.pipeline import bundle

        staged, report = bundle(request_of(args), context, to=args.to)
    where = args.to or staged.root
    if args.json:
        emit_json({"name": staged.name, "folder": str(where), "verification": report.to_json()})
    else:
        emit(str(where))
    return 0


def _pack(args: argparse.Namespace, context: Context) -> int:
    _check_source(args)
    from llamabuild.pipeline import Made, bundle, make

    if args.build is not None:
        with _foreign(args, context) as (staged, plan):
            artifacts = _publish_foreign(staged, plan, args, context)
        made = Made(name=staged.name, artifacts=artifacts, unchanged=False)
    elif args.format == "wheel":
        staged, _ = bundle(request_of(args), context)
        made = Made(name=staged.name, artifacts=_publish_wheel(staged, args.out), unchanged=False)
    else:
        made = make(request_of(args), args.out, context)
    tell_made(made, args, context)
    return 0


def _publish_foreign(
    staged: StagedBundle, plan: BundlePlan, args: argparse.Namespace, context: Context
) -> tuple[Artifact, ...]:
    from llamabuild.release.publish import publish

    judge = partial(_judge, args, context)
    judge(staged.root)
    if args.format == "wheel":
        return _publish_wheel(staged, args.out)
    parts = {entry.part for entry in plan.entries}
    split = bundle_options(args).runtime_for(("cuda",) if "cudart" in parts else ()) == "split"
    return publish(staged, plan, args.out, split=split, judge=judge, context=context)


def _publish_wheel(staged: StagedBundle, out: Path) -> tuple[Artifact, ...]:
    from llamabuild.bundle.archive import write_sums
    from llamabuild.release.wheel import wheel_of_bundle

    out.mkdir(parents=True, exist_ok=True)
    wheel = wheel_of_bundle(staged.root, out)
    return wheel, write_sums(out, published=[wheel.path.name], beside=out)


def _judge(args: argparse.Namespace, context: Context, path: Path) -> Report:
    from llamabuild.release.publish import require_verified

    return require_verified(path, context=context, arch=args.arch)


@contextmanager
def _foreign(args: argparse.Namespace, context: Context) -> Iterator[tuple[StagedBundle, BundlePlan]]:
    """Bundle somebody else's build folder in a scratch folder."""
    from llamabuild.bundle.run import bundle_folder

    with scratch_folder(context.home.root, prefix="bundle-") as scratch:
        yield bundle_folder(
            context.cwd / args.build,
            scratch,
            arch=args.arch or "",
            context=context,
            rocm=args.rocm,
            cuda=args.cuda,
            options=bundle_options(args),
            name=args.name,
        )
