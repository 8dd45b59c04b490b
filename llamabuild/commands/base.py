"""What every group of verbs shares: the shape of a command module and the options that verbs have in common."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from llamabuild.core.context import Context

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse names it no other way
    Run = Callable[[argparse.Namespace, Context], int]


def add_verb(
    verbs: Subparsers, name: str, run: Run, *, summary: str, example: str, description: str = ""
) -> argparse.ArgumentParser:
    """Add a verb with the options that all verbs have; ``example`` stands below its ``--help``."""
    parser = verbs.add_parser(
        name,
        help=summary,
        description=description or summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, json=False, offline=False)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors and the result")
    amount.add_argument("-v", "--verbose", action="store_true", help="say more")
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def add_offline(parser: argparse.ArgumentParser) -> None:
    """``--offline``."""
    parser.add_argument("--offline", action="store_true", help="use only what is already cached")


def add_recipe(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """``--recipe``."""
    parser.add_argument("--recipe", metavar="NAME|FILE", required=required, help="a recipe's name, or a recipe file")


def given(text: str) -> str:
    """An option's value: empty text comes from a variable that was not set, and is not the same as no option."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty")
    return text


def folder(text: str) -> Path:
    """An option's folder, which is not the current one where the text is empty."""
    return Path(given(text))


def emit(text: str) -> None:
    """Print a result on standard output; what is no text (a file's name need not be) is written with escapes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def emit_json(document: dict[str, Any]) -> None:
    """Print the one JSON document of a ``--json`` run."""
    emit(json.dumps({"schema": 1, **document}, indent=2, ensure_ascii=False))
