"""Words after ``--`` that belong to another program's command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def take_rest(parser: argparse.ArgumentParser, dest: str) -> None:
    """Put everything after the first ``--`` into ``dest``, wherever the options before it stand.

    argparse gives a list-valued positional the words beside the first positional and then refuses those after ``--``.
    """
    parse = parser.parse_known_args
    parser.set_defaults(**{dest: []})
    parser.usage = parser.format_usage().removeprefix("usage: ").rstrip() + " [-- FLAG …]"

    def parse_before(args: Sequence[str], namespace: Any = None) -> Any:
        words = list(args)
        cut = words.index("--") if "--" in words else len(words)
        found, unknown = parse(words[:cut], namespace)
        setattr(found, dest, words[cut + 1 :])
        return found, unknown

    setattr(parser, "parse_known_args", parse_before)  # noqa: B010 - mypy forbids assigning to a method
