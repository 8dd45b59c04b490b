"""What is wrong with a recipe or manifest, all at once: pydantic's errors in the file's own terms."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from llamabuild.core.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import BaseModel

    from llamabuild.recipe.toml import Document, Location

    Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, at one key."""

    where: Location
    message: str


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean "X"?)`` for the known word that looks most like ``word``, else nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f' (did you mean "{found[0]}"?)' if found else ""


def validate(model: type[Model], document: Document) -> tuple[Model | None, list[Problem]]:
    """Check a document against a model; every error comes back, none is raised."""
    from pydantic import ValidationError

    try:
        return model.model_validate(_frozen(document.values)), []
    except ValidationError as exc:
        return None, [_problem(model, error) for error in exc.errors(include_url=False)]


def refuse(document: Document, problems: Sequence[Problem], *, hint: str) -> None:
    """Raise RecipeError with all problems, in the order of their lines; return when there are none."""
    if not problems:
        return
    placed = sorted({(document.line_of(each.where), _key(each.where), each.message) for each in problems})
    lines = tuple(f"{document.path}:{line}: {f'{key}: ' if key else ''}{text}" for line, key, text in placed)
    if len(lines) == 1:
        raise RecipeError(f"{lines[0]}.", hint=hint)
    raise RecipeError(f"{document.path} has {len(lines)} errors.", hint=hint, details=lines)


def _key(where: Location) -> str:
    text = ""
    for part in where:
        text += f"[{part + 1}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _frozen(value: Any) -> Any:
    """Lists as tuples: what a strict model of tuples takes."""
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    if isinstance(value, list):
        return tuple(_frozen(each) for each in value)
    return value


def _problem(model: type[BaseModel], error: Any) -> Problem:
    where = _without_tags(error["loc"])
    kind = error["type"]
    given = error.get("input")
    if kind == "extra_forbidden":
        known = _known_keys(model, error["loc"][:-1])
        return Problem(where, f"unknown key{nearest(str(where[-1]), known)}; known here: {', '.join(sorted(known))}")
    if kind == "missing":
        return Problem(where, "missing; the key is required")
    if kind in {"literal_error", "union_tag_invalid"}:
        expected = error["ctx"].get("expected") or error["ctx"].get("expected_tags")
        return Problem(
            where,
            f"{given!r} is not one of {expected}" if kind == "literal_error" else f"kind is not one of {expected}",
        )
    if kind == "union_tag_not_found":
        return Problem((*where, "kind"), "missing; the key is required")
    if kind == "string_pattern_mismatch":
        return Problem(where, f"{given!r} {_SHAPES.get(error['ctx']['pattern'], 'does not have the right form')}")
    message = error["msg"][0].lower() + error["msg"][1:]
    return Problem(where, f"{message}, not {given!r}" if isinstance(given, str | int | float | bool) else message)


_SHAPES = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "is not a name (letters, digits, dot, hyphen and underscore)",
    r"^[0-9a-f]{7,40}$": "is not a commit id (7 to 40 hexadecimal digits in lower case)",
    r"^[0-9a-f]{40}$": "is not a full id (40 hexadecimal digits in lower case)",
    r"^[0-9a-f]{64}$": "is not a SHA-256 (64 hexadecimal digits in lower case)",
}

_TAGS = {"range", "commit", "pr", "files", "archive", "series"}


def _without_tags(where: Sequence[str | int]) -> Location:
    """Pydantic puts a union's tag into the location after the element's index; the file has no such key."""
    return tuple(
        part
        for index, part in enumerate(where)
        if not (index >= 2 and part in _TAGS and isinstance(where[index - 1], int) and where[index - 2] == "part")
        and part != "[key]"
    )


def _known_keys(model: type[BaseModel], where: Sequence[str | int]) -> set[str]:
    """The keys that the table at ``where`` may have."""
    schema = model.model_json_schema(by_alias=True)
    node: Any = schema
    for part in where:
        node = _resolved(schema, node)
        if "discriminator" in node and part in node["discriminator"]["mapping"]:
            node = {"$ref": node["discriminator"]["mapping"][part]}
        elif isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or _any_pattern(node)
    return set(_resolved(schema, node).get("properties", {}))


def _any_pattern(node: Any) -> Any:
    return next(iter(node.get("patternProperties", {}).values()), {})


def _resolved(schema: Any, node: Any) -> Any:
    while isinstance(node, dict) and "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node if isinstance(node, dict) else {}
