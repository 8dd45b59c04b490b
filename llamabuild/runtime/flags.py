"""A server's command line as words: finding a flag's value whichever of its names was used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT = ("-c", "--ctx-size")
PARALLEL = ("-np", "--parallel")
MODEL = ("-m", "--model")
DRAFT_MODEL = ("-md", "--model-draft", "--spec-draft-model")
SPEC_TYPE = ("--spec-type",)
THREADS = ("-t", "--threads")


def value_of(words: Sequence[str], names: Sequence[str]) -> str | None:
    """The last value given for a flag, as ``--flag value`` or ``--flag=value``; None when it is absent."""
    found = None
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else (words[place + 1] if place + 1 < len(words) else None)
    return found


def number_of(words: Sequence[str], names: Sequence[str], *, default: int) -> int:
    """A flag's value as a number; ``default`` when it is absent or none."""
    value = value_of(words, names)
    try:
        return int(value) if value is not None else default
    except ValueError:
        return default


def has_flag(words: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a flag is given, with or without a value."""
    return any(word.partition("=")[0] in names for word in words)
