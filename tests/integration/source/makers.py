"""Recipes and series of a test, written as the files that people write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.recipe.load import load_recipe

if TYPE_CHECKING:
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe

DATE = "2026-09-23T00:00:00Z"


def write_recipe(context: Context, name: str, source: str, *, series: str = "") -> Recipe:
    """A recipe in ``./recipes`` with this ``[source]`` table, and the series tables."""
    path = context.cwd / "recipes" / f"{name}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'schema = 1\nname = "{name}"\nsummary = "test"\n\n[source]\n{source}\n{series}\n'
        '[targets.cpu]\nbackends = ["cpu"]\n'
    )
    return load_recipe(name, context)


def pin(url: str, commit: str, tree: str | None, *, ref: str = 'ref = "master"', date: str | None = DATE) -> str:
    """The keys of ``[source]``."""
    lines = [f'repository = "{url}"', ref, f'commit = "{commit}"', "build-number = 5"]
    lines += [f'tree = "{tree}"'] if tree else []
    lines += [f"date = {date}"] if date else []
    return "\n".join(lines)


def write_series(context: Context, name: str, text: str, *, files: dict[str, bytes] | None = None) -> Path:
    """A series manifest in ``./patches`` with its files."""
    path = context.cwd / "patches" / f"{name}.toml"
    (path.parent / name).mkdir(parents=True, exist_ok=True)
    for each, data in (files or {}).items():
        (path.parent / name / each).write_bytes(data)
    path.write_text(f'schema = 1\nname = "{name}"\nsummary = "test"\n{text}\n')
    return path


def use(name: str, more: str = "") -> str:
    """A ``[[series]]`` table of a recipe."""
    return f'[[series]]\nname = "{name}"\n{more}\n'
