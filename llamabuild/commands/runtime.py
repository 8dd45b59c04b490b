"""Verbs about models and the runtime that serves them: ``gguf``, ``smoke``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_verb, emit, emit_json

if TYPE_CHECKING:
    import argparse

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context


def register(verbs: Subparsers) -> None:
    """Add the verbs of this module."""
    gguf = add_verb(
        verbs,
        "gguf",
        run_gguf,
        summary="read a model's header in a blink, locally or by HTTP ranges",
        example="llamabuild gguf model-00001-of-00004.gguf",
    )
    gguf.add_argument("file", metavar="FILE|URL", help="a .gguf file, any part of a split one, or its address")
    gguf.add_argument("--tensors", action="store_true", help="list every tensor too")
    add_json(gguf)


def run_gguf(args: argparse.Namespace, context: Context) -> int:
    """Print what a header says."""
    from llamabuild.runtime.gguf_header import read_gguf
    from llamabuild.runtime.gguf_model import summarise
    from llamabuild.runtime.gguf_text import describe, list_tensors, tensors_json

    files = read_gguf(args.file)
    model = summarise(files)
    for part in files:
        if part.missing:
            context.console.warn(f"{part.name} is cut short: {part.missing} bytes of its tensors are missing")
    if args.json:
        document = model.to_json()
        if args.tensors:
            document["tensors"] = tensors_json(files)
        emit_json({"kind": "gguf", **document})
        return 0
    emit(describe(model))
    if args.tensors:
        emit(list_tensors(files))
    return 0
