"""``inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_verb, emit, emit_json

if TYPE_CHECKING:
    import argparse

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context


def register(verbs: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "inspect",
        _inspect,
        summary="tell what an existing build, bundle or ELF file can do",
        example="llamabuild inspect ~/llama.cpp/build",
        description="Tell backends (on, off, or asked for and ignored), archs, collectives, native or portable.",
    )
    parser.add_argument(
        "path", metavar="PATH", help="a build folder, CMakeCache.txt, bundle folder, archive or ELF file"
    )
    add_json(parser)


def _inspect(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.verify.inspect.run import inspect_path
    from llamabuild.verify.inspect.text import render_inspection

    inspection = inspect_path(context.cwd / args.path)
    if args.json:
        emit_json(inspection.to_json())
    else:
        emit(render_inspection(inspection, everything=args.verbose))
    return 0
