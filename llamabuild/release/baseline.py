"""The unpatched build of the same source by the same recipe, for comparison."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from llamabuild.recipe.model import Recipe


def baseline_recipe(recipe: Recipe, *, series_features: Collection[str]) -> Recipe:
    """``recipe`` without its series and without the features that those bring, named ``baseline-<sha7>``.

    Raises UsageError where the recipe has no pinned commit.
    """
    commit = recipe.source.commit
    if not commit:
        raise UsageError(
            f"Recipe {recipe.name} pins no commit to make a baseline of.",
            hint=f"Pin it first: llamabuild resolve --recipe {recipe.name} --update.",
        )
    features = tuple(name for name in recipe.source.features if name not in series_features)
    source = recipe.source.model_copy(update={"features": features})
    return recipe.model_copy(
        update={
            "name": f"baseline-{commit[:7]}",
            "summary": f"Unpatched baseline of {recipe.name}",
            "source": source,
            "series": (),
        }
    )


def recipe_text(recipe: Recipe) -> str:
    """The recipe as a file."""
    return to_toml(recipe.model_dump(mode="python", by_alias=True, exclude_none=True))


def to_toml(document: dict[str, Any]) -> str:
    """TOML of scalars, lists, tables, and lists of tables."""
    return "\n".join(_lines(document, ())) + "\n"


def _lines(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in table.items() if not _is_table(value) and not _is_tables(value)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        name = ".".join(_key(part) for part in (*path, key))
        if _is_table(value):
            lines += ["", f"[{name}]", *_lines(value, (*path, key))]
        elif _is_tables(value):
            for each in value:
                lines += ["", f"[[{name}]]", *_lines(each, (*path, key))]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, dict) for each in value)


def _key(key: str) -> str:
    bare = key.replace("-", "").replace("_", "")
    return key if bare.isascii() and bare.isalnum() else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's too, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return str(value)
