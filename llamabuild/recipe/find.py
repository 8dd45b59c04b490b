"""Where recipes and series manifests are looked up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import RecipeError
from llamabuild.recipe.problems import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.core.context import Context

_NOT_RECIPES = frozenset({"features"})


def builtin_folder(kind: str) -> Path:
    """``recipes`` or ``patches`` as shipped: in the source checkout, or inside the installed package."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent / kind
    return checkout if checkout.is_dir() and (package.parent / "pyproject.toml").is_file() else package / "data" / kind


def recipe_folders(context: Context) -> tuple[Path, ...]:
    """``./recipes``, then those of ``$LLAMABUILD_RECIPES``, then the shipped ones; each once."""
    listed = [context.cwd / "recipes"]
    listed += [Path(each).expanduser() for each in context.env.get("LLAMABUILD_RECIPES", "").split(os.pathsep) if each]
    listed.append(builtin_folder("recipes"))
    return tuple(dict.fromkeys((context.cwd / folder).resolve() for folder in listed))


def series_folders(context: Context, *, beside: Path | None = None) -> tuple[Path, ...]:
    """``patches`` beside the recipe's folder, then beside each recipe folder, then the shipped one."""
    listed = [] if beside is None else [beside.parent.parent / "patches", beside.parent / "patches"]
    listed += [folder.parent / "patches" for folder in recipe_folders(context)]
    listed.append(builtin_folder("patches"))
    return tuple(dict.fromkeys(folder.resolve() for folder in listed))


def find_recipe(name: str, context: Context) -> Path:
    """The file of a recipe, by its path or its name.

    Raises RecipeError for an unknown one, with the nearest name that is known.
    """
    if name.endswith(".toml") or "/" in name:
        path = context.cwd / name
        if path.is_file():
            return path
        raise RecipeError(
            f"There is no recipe file {path}.", hint="Check the path, or name a recipe: llamabuild recipes list."
        )
    return _find(name, recipe_folders(context), what="recipe", verb="recipes list")


def find_series(name: str, context: Context, *, beside: Path | None = None) -> Path:
    """The manifest of a series, by name; ``beside`` is the recipe file that asks for it.

    Raises RecipeError for an unknown one, with the nearest name that is known.
    """
    return _find(name, series_folders(context, beside=beside), what="series", verb="series list")


def files_in(folders: tuple[Path, ...]) -> Iterator[Path]:
    """The TOML files of the folders, by name, the first of a name alone."""
    seen: set[str] = set(_NOT_RECIPES)
    for folder in folders:
        for path in sorted(folder.glob("*.toml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield path


def _find(name: str, folders: tuple[Path, ...], *, what: str, verb: str) -> Path:
    known = {path.stem: path for path in files_in(folders)}
    if name in known:
        return known[name]
    guess = nearest(name, known)
    raise RecipeError(
        f"There is no {what} named {name!r}{guess}.",
        hint=f"See what there is with: llamabuild {verb}. Looked in: {', '.join(str(each) for each in folders)}.",
    )
