"""Recipes and series manifests from their files: every error in one pass, with file, line and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.errors import RecipeError
from llamabuild.recipe.features import load_features
from llamabuild.recipe.find import files_in, find_recipe, find_series, recipe_folders, series_folders
from llamabuild.recipe.model import Recipe
from llamabuild.recipe.problems import Problem, nearest, refuse, validate
from llamabuild.recipe.rules import recipe_problems, series_problems
from llamabuild.recipe.series import Series
from llamabuild.recipe.toml import read_document

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from llamabuild.core.context import Context
    from llamabuild.recipe.toml import Document, Location

_RECIPE_HINT = "The recipe format is explained in the README; compare with: llamabuild recipes show dflash2-2026-09."
_SERIES_HINT = "Compare with: llamabuild series show recurrent-state-fill."


@dataclass(frozen=True)
class Listed:
    """A recipe or series that was found by name."""

    name: str
    path: Path
    summary: str
    """Its own summary, or what is wrong with the file."""
    valid: bool


def load_recipe(name: str, context: Context) -> Recipe:
    """The recipe of a name or file, valid in itself and in what it names (features, series, groups).

    Raises RecipeError that tells every problem at once.
    """
    return read_recipe(find_recipe(name, context), context)


def read_recipe(path: Path, context: Context) -> Recipe:
    """The recipe in a file; see load_recipe."""
    document = read_document(path)
    recipe, problems = validate(Recipe, document)
    problems += recipe_problems(document.values)
    problems += _unknown_features(document, context)
    problems += _series_use_problems(document, context)
    refuse(document, problems, hint=_RECIPE_HINT)
    if recipe is None:
        raise RecipeError(f"{path} is not a valid recipe.", hint=_RECIPE_HINT)
    recipe._file = path  # noqa: SLF001 - set once, here
    return recipe


def load_series(name: str, context: Context, *, beside: Path | None = None) -> tuple[Series, Path]:
    """The series manifest of a name, and its file; ``beside`` is the recipe file that asks for it.

    Raises RecipeError that tells every problem at once.
    """
    path = find_series(name, context, beside=beside)
    document = read_document(path)
    series, problems = validate(Series, document)
    problems += series_problems(document.values, path)
    problems += _unknown_series_features(document, context)
    refuse(document, problems, hint=_SERIES_HINT)
    if series is None:
        raise RecipeError(f"{path} is not a valid series manifest.", hint=_SERIES_HINT)
    return series, path


def list_recipes(context: Context) -> tuple[Listed, ...]:
    """Every recipe that can be named here; one that is not valid is listed with what is wrong."""
    found = []
    for path in files_in(recipe_folders(context)):
        try:
            found.append(Listed(path.stem, path, read_recipe(path, context).summary, valid=True))
        except RecipeError as exc:
            found.append(Listed(path.stem, path, exc.message, valid=False))
    return tuple(found)


def list_series(context: Context) -> tuple[Listed, ...]:
    """Every series that can be named here."""
    found = []
    for path in files_in(series_folders(context)):
        try:
            found.append(Listed(path.stem, path, load_series(path.stem, context)[0].summary, valid=True))
        except RecipeError as exc:
            found.append(Listed(path.stem, path, exc.message, valid=False))
    return tuple(found)


def patch_names(series: Series, context: Context, path: Path) -> dict[str, str]:
    """Every patch of a series by the name a recipe can leave it out by (commit id or file name), with its group.

    ``path`` is its manifest's file, beside which the series that it takes in are looked up.
    """
    names: dict[str, str] = {}
    for part in series.part:
        if part.kind == "range":
            names |= {note.id: note.group for note in part.commit}
        elif part.kind == "commit":
            names[part.id] = part.group
        elif part.kind == "pr":
            names[part.commit] = part.group
        elif part.kind == "series":
            inner, file = load_series(part.name, context, beside=path)
            if file != path:
                names |= dict.fromkeys(patch_names(inner, context, file), part.group)
        else:
            names |= dict.fromkeys(part.files, part.group)
    return names


def matches(without: str, *, name: str, number: int) -> bool:
    """Whether a recipe's ``without`` entry means this patch: its number, its file name, or a prefix of either id."""
    if without.isdecimal() and len(without) < 7:
        return int(without) == number
    return name.startswith(without) or (len(name) >= 7 and without.startswith(name))


def _unknown_features(document: Document, context: Context) -> list[Problem]:
    given = _table(document.values.get("source")).get("features")
    if not isinstance(given, list):
        return []
    known = load_features(context)
    return [
        Problem(("source", "features"), f"unknown feature {each!r}{nearest(str(each), known)}")
        for each in given
        if isinstance(each, str) and each not in known
    ]


def _unknown_series_features(document: Document, context: Context) -> list[Problem]:
    known = load_features(context)
    named: list[tuple[Location, Any]] = [(("features",), each) for each in document.values.get("features") or ()]
    parts = document.values.get("part")
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        named += [(("part", index, "feature"), _table(part)["feature"])] if "feature" in _table(part) else []
    return [
        Problem(where, f"unknown feature {each!r}{nearest(each, known)}")
        for where, each in named
        if isinstance(each, str) and each not in known
    ]


def _series_use_problems(document: Document, context: Context) -> list[Problem]:
    uses = document.values.get("series")
    if not isinstance(uses, list):
        return []
    problems: list[Problem] = []
    for index, use in enumerate(uses):
        name = _table(use).get("name")
        if not isinstance(name, str):
            continue
        try:
            series, path = load_series(name, context, beside=document.path)
        except RecipeError as exc:
            problems.append(Problem(("series", index, "name"), exc.message.rstrip(".")))
            continue
        problems += _selection_problems(series, use, index, names=patch_names(series, context, path))
    return problems


def _selection_problems(series: Series, use: dict[str, Any], index: int, *, names: dict[str, str]) -> list[Problem]:
    groups = set(names.values()) - {""}
    problems = [
        Problem(("series", index, "groups"), f"series {series.name} has no group {each!r}{nearest(each, groups)}")
        for each in use.get("groups") or ()
        if isinstance(each, str) and each not in groups
    ]
    whole = any(part.kind == "archive" and not part.files for part in series.part)
    problems += [
        Problem(("series", index, "without"), f"series {series.name} has no patch {each!r}{nearest(each, names)}")
        for each in use.get("without") or ()
        if isinstance(each, str)
        and not whole
        and not any(matches(each, name=name, number=number) for number, name in enumerate(names, start=1))
    ]
    return problems


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
