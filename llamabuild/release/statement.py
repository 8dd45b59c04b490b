"""Read a provenance statement that anybody may have written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import UsageError
from llamabuild.release.schemas import schema_problems

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HINT = "Name the file provenance-<flavour>.intoto.json of a release."


def read_statement(path: Path) -> Mapping[str, Any]:
    """The statement, with everything that is looked at in its place.

    Raises UsageError for a file that is none, for a signed envelope around one, and for one of another kind or version.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror or exc}.", hint=_HINT) from exc
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{path} is not JSON: {exc}.", hint=_HINT) from exc
    if isinstance(document, dict) and {"payload", "payloadType"} <= document.keys():
        raise UsageError(
            f"{path} is a signed envelope, not the plain statement.",
            hint="Check its signature with the tool that made it; the plain statement is in the release too.",
        )
    problems = schema_problems(document, "statement-1")
    if problems:
        raise UsageError(
            f"{path} is no provenance statement that is understood here: {problems[0]}",
            hint=f"{_HINT} A statement of another schema needs the llamabuild that made it, or a newer one.",
            details=tuple(str(problem) for problem in problems[1:]),
        )
    statement: Mapping[str, Any] = document
    return statement


def digests_of(described: Any) -> dict[str, str]:
    """Name → SHA-256 of the files that a part of a statement lists."""
    return {entry["name"]: entry["digest"]["sha256"] for entry in described}
