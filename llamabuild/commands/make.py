"""The verbs make and build, and the options of all verbs that run the pipeline."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_offline, add_recipe, add_verb, emit, emit_json, folder, given

if TYPE_CHECKING:
    from llamabuild.build.model import BuildOptions
    from llamabuild.bundle.options import BundleOptions
    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.pipeline import Made, Request


def register(verbs: Subparsers) -> None:
    """Add make and build."""
    parser = add_verb(
        verbs,
        "make",
        _make,
        summary="make a recipe's verified archives, from source to SHA256SUMS",
        example="llamabuild make --recipe dflash2-2026-09 --target cpu --out dist",
    )
    add_request(parser)
    add_out(parser)
    parser = add_verb(
        verbs,
        "build",
        _build,
        summary="configure and compile a recipe's patched tree",
        example="llamabuild build --recipe dflash2-2026-09 --target cpu",
    )
    add_request(parser)


def add_request(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """``--recipe``, ``--target``, ``--arch`` and the options of the build and of the bundle."""
    add_recipe(parser, required=required)
    parser.add_argument(
        "--target", metavar="T", type=given, help="a target of the recipe (default: the recipe's default-target)"
    )
    parser.add_argument(
        "--arch", metavar="A", type=given, help="one GPU arch in place of the target's, such as 86 or gfx1100"
    )
    parser.add_argument(
        "--keep-conflict", metavar="DIR", type=Path, help="write a tree with markers to DIR when a patch does not fit"
    )
    add_build_options(parser)
    add_bundle_options(parser)
    add_offline(parser)
    add_json(parser)


def add_out(parser: argparse.ArgumentParser) -> None:
    """``--out``."""
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("dist"), help="where archives go (default: dist)"
    )


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how to build, where that does not change what is built."""
    group = parser.add_argument_group("how to build")
    group.add_argument(
        "--jobs",
        "-j",
        metavar="N",
        type=_count,
        help="compile N files at once (default: by cores, memory and distcc's hosts)",
    )
    group.add_argument(
        "--cuda-toolkit",
        type=given,
        metavar="WHICH",
        help="system, wheels:13.0 (from NVIDIA's Python wheels, no root needed), or a folder",
    )
    group.add_argument("--rocm", metavar="DIR", type=folder, help="a ROCm tree, in any of the four layouts")
    group.add_argument("--vulkan-sdk", metavar="DIR", type=folder, help="a folder with glslc and the Vulkan headers")
    group.add_argument(
        "--launcher",
        action="append",
        choices=("ccache", "sccache", "none", "distcc", "icecc"),
        help="the compile cache (default: ccache); distcc or icecc compiles what the cache does not hold",
    )
    group.add_argument("--remote-cache", metavar="URL", help="share the compile cache: redis://, http://, s3://")


def build_options(args: argparse.Namespace) -> BuildOptions:
    """The options that ``add_build_options`` added. Raises UsageError for two caches or two farms."""
    from llamabuild.build.model import BuildOptions
    from llamabuild.core.errors import UsageError

    given = dict.fromkeys(args.launcher or ())
    farms = [name for name in given if name in {"distcc", "icecc"}]
    caches = [name for name in given if name not in farms]
    for names in (caches, farms):
        if len(names) > 1:
            raise UsageError(f"--launcher: {' and '.join(names)} exclude each other.", hint="Give one of them.")
    return BuildOptions(
        jobs=args.jobs,
        launcher=caches[0] if caches else "ccache",
        farm=farms[0] if farms else None,
        remote_cache=args.remote_cache,
        cuda_toolkit=args.cuda_toolkit,
        rocm=args.rocm,
        vulkan_sdk=args.vulkan_sdk,
    )


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return number


def add_bundle_options(parser: argparse.ArgumentParser) -> None:
    """Options that say what of a vendor's runtime goes into the bundle."""
    group = parser.add_argument_group("a vendor's runtime")
    group.add_argument(
        "--runtime",
        choices=("bundled", "split", "system"),
        help="in the bundle, in archives of its own, or left to the host (default: split for CUDA, bundled for ROCm)",
    )
    group.add_argument("--keep-archs", metavar="A,B", default="", help="keep device files of these archs too")
    group.add_argument("--no-thin", action="store_true", help="leave other archs' device code in ROCm's libraries")


def bundle_options(args: argparse.Namespace) -> BundleOptions:
    """The options that ``add_bundle_options`` added."""
    from llamabuild.bundle.options import BundleOptions

    keep = tuple(arch.strip() for arch in args.keep_archs.split(",") if arch.strip())
    return BundleOptions(runtime=args.runtime, keep_archs=keep, thin=not args.no_thin)


def request_of(args: argparse.Namespace) -> Request:
    """The request that ``add_request``'s options make."""
    from llamabuild.pipeline import Request

    return Request(
        recipe=args.recipe,
        target=args.target,
        arch=args.arch,
        options=build_options(args),
        bundle=bundle_options(args),
        keep_conflict=args.keep_conflict,
    )


def _make(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.pipeline import make

    tell_made(make(request_of(args), args.out, context), args, context)
    return 0


def _build(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.pipeline import build

    built = build(request_of(args), context)
    if args.json:
        files = [{"target": file.target, "kind": file.kind, "path": str(file.path)} for file in built.files]
        emit_json({"folder": str(built.folder), "source": str(built.source), "files": files, "log": str(built.log)})
    else:
        emit(str(built.folder))
    return 0


def tell_made(made: Made, args: argparse.Namespace, context: Context) -> None:
    """Print what was published: a line a file, or one JSON document."""
    if made.unchanged:
        context.console.note("nothing changed: every file is there with the digest it was made with")
    if args.json:
        artifacts = [{**asdict(artifact), "path": str(artifact.path)} for artifact in made.artifacts]
        emit_json({"name": made.name, "unchanged": made.unchanged, "artifacts": artifacts})
        return
    for artifact in made.artifacts:
        emit(f"{artifact.sha256}  {artifact.size:>11,}  {artifact.path}")
