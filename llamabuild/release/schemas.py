"""The JSON schemas that ship in the package, and checking a document against one."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema.exceptions import ValidationError


@dataclass(frozen=True)
class SchemaProblem:
    """One thing that a schema does not allow."""

    where: tuple[str | int, ...]
    """Keys and indexes from the document's root."""
    text: str

    def __str__(self) -> str:
        """One sentence: where and what."""
        return f"{'.'.join(str(part) for part in self.where) or 'the document'}: {self.text}."


def load_schema(name: str) -> dict[str, Any]:
    """The schema ``name`` (``build-info-1``, ``flavours-1``, ``statement-1``) as it ships in the package."""
    text = resources.files("llamabuild.release").joinpath("schema", f"{name}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def schema_problems(document: Any, name: str) -> tuple[SchemaProblem, ...]:
    """Everything in ``document`` that the schema ``name`` does not allow, in the document's order.

    A document of another ``schema`` number gets that one problem alone: its other keys are not ours to judge.
    """
    from jsonschema import Draft202012Validator

    schema = load_schema(name)
    known = schema["properties"].get("schema", {}).get("const")
    if known is not None and isinstance(document, dict) and document.get("schema") != known:
        found = f"schema {document['schema']!r} is there" if "schema" in document else "no schema number is there"
        return (SchemaProblem(("schema",), f"{found}, and this program reads schema {known}"),)
    errors = sorted(Draft202012Validator(schema).iter_errors(document), key=lambda error: [str(p) for p in error.path])
    return tuple(problem for error in errors for problem in _problems(error))


def _problems(error: ValidationError) -> Iterator[SchemaProblem]:
    where = tuple(error.path)
    instance = error.instance
    unknown = error.validator == "additionalProperties"
    if not (unknown and isinstance(error.schema, dict) and isinstance(instance, dict)):
        yield SchemaProblem(where, error.message)
        return
    known = list(error.schema.get("properties", {}))
    for key in instance:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            yield SchemaProblem((*where, key), "an unknown key" + (f" (did you mean {near[0]!r}?)" if near else ""))
