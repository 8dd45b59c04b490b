"""The verbs that run the pipeline: make, and its stages one by one: build, bundle, pack."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_offline, add_recipe, add_verb, emit, emit_json

if TYPE_CHECKING:
    from llamabuild.build.model import BuildOptions
    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.pipeline import Made, Request


def register(verbs: Subparsers) -> None:
    """Add make, build, bundle and pack."""
    parser = add_verb(
        verbs,
        "make",
        _make,
        summary="make a recipe's verified archives, from source to SHA256SUMS",
        example="llamabuild make --recipe dflash2-2026-09 --target cpu --out dist",
    )
    _add_request(parser)
    _add_out(parser)
    parser = add_verb(
        verbs,
        "build",
        _build,
        summary="configure and compile a recipe's patched tree",
        example="llamabuild build --recipe dflash2-2026-09 --target cpu",
    )
    _add_request(parser)
    parser = add_verb(
        verbs,
        "bundle",
        _bundle,
        summary="stage a build as a relocatable folder and verify it",
        example="llamabuild bundle --recipe dflash2-2026-09 --target cpu --to ./runtime",
    )
    _add_request(parser)
    parser.add_argument("--to", metavar="DIR", type=Path, help="also copy the bundle to DIR, which must not exist yet")
    parser = add_verb(
        verbs,
        "pack",
        _pack,
        summary="archive a bundle; the same as make, for those who go stage by stage",
        example="llamabuild pack --recipe dflash2-2026-09 --target cpu --out dist",
    )
    _add_request(parser)
    _add_out(parser)


def _add_request(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument("--target", metavar="T", help="a target of the recipe (default: the recipe's default-target)")
    parser.add_argument("--arch", metavar="A", help="one GPU arch in place of the target's, such as 86 or gfx1100")
    add_build_options(parser)
    add_offline(parser)
    add_json(parser)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("dist"), help="where archives go (default: dist)"
    )


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how to build, where that does not change what is built."""
    group = parser.add_argument_group("how to build")
    group.add_argument(
        "--jobs", "-j", metavar="N", type=_count, help="compile N files at once (default: by cores and memory)"
    )
    group.add_argument(
        "--cuda-toolkit",
        metavar="WHICH",
        help="system, wheels:13.0 (from NVIDIA's Python wheels, no root needed), or a folder",
    )
    group.add_argument("--rocm", metavar="DIR", type=Path, help="a ROCm tree, in any of the four layouts")
    group.add_argument("--launcher", choices=("ccache", "sccache", "none"), default="ccache", help="the compile cache")
    group.add_argument("--farm", choices=("distcc", "icecc"), help="who compiles what the cache does not hold")
    group.add_argument("--remote-cache", metavar="URL", help="share the compile cache: redis://, http://, s3://")


def build_options(args: argparse.Namespace) -> BuildOptions:
    """The options that ``add_build_options`` added."""
    from llamabuild.build.model import BuildOptions

    return BuildOptions(
        jobs=args.jobs,
        launcher=args.launcher,
        farm=args.farm,
        remote_cache=args.remote_cache,
        cuda_toolkit=args.cuda_toolkit,
        rocm=args.rocm,
    )


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return number


def _request(args: argparse.Namespace) -> Request:
    from llamabuild.pipeline import Request

    return Request(recipe=args.recipe, target=args.target, arch=args.arch, options=build_options(args))


def _make(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.pipeline import make

    _tell(make(_request(args), args.out, context), args, context)
    return 0


_pack = _make


def _build(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.pipeline import build

    built = build(_request(args), context)
    if args.json:
        files = [{"target": file.target, "kind": file.kind, "path": str(file.path)} for file in built.files]
        emit_json({"folder": str(built.folder), "source": str(built.source), "files": files, "log": str(built.log)})
    else:
        emit(str(built.folder))
    return 0


def _bundle(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.pipeline import bundle

    staged, report = bundle(_request(args), context, to=args.to)
    where = args.to or staged.root
    if args.json:
        emit_json({"name": staged.name, "folder": str(where), "verification": report.to_json()})
    else:
        emit(str(where))
    return 0


def _tell(made: Made, args: argparse.Namespace, context: Context) -> None:
    if made.unchanged:
        context.console.note("nothing changed: every file is there with the digest it was made with")
    if args.json:
        artifacts = [{**asdict(artifact), "path": str(artifact.path)} for artifact in made.artifacts]
        emit_json({"name": made.name, "unchanged": made.unchanged, "artifacts": artifacts})
        return
    for artifact in made.artifacts:
        emit(f"{artifact.sha256}  {artifact.size:>11,}  {artifact.path}")
