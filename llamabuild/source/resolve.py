"""Recipe to lock: nothing is left open afterwards."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import RecipeError
from llamabuild.core.files import write_json
from llamabuild.source.apply import upstream_by_number
from llamabuild.source.lock import Lock
from llamabuild.source.mirror import mirror_of, writing
from llamabuild.source.patches import load_patches

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe

_FULL = 40


def resolve(recipe: Recipe, context: Context, *, update: bool = False) -> Lock:
    """The lock of a recipe, also written to ``lock_path``.

    Raises RecipeError when the recipe pins no full commit and tree, or lacks a build number or date.
    """
    if update:
        raise RecipeError("resolve --update is not supported yet.")
    source = recipe.source
    again = f"llamabuild resolve --recipe {recipe.name} --update writes it."
    if source.commit is None:
        raise RecipeError(f"Recipe {recipe.name} pins no commit.", hint=again)
    if len(source.commit) < _FULL:
        raise RecipeError(
            f"Recipe {recipe.name} pins the abbreviated commit {source.commit}; a pin is the full id.", hint=again
        )
    if source.tree is None:
        raise RecipeError(f"Recipe {recipe.name} pins no tree; the tree id is what tells the right source.", hint=again)
    if source.build_number is None:
        raise RecipeError(f"Recipe {recipe.name} has no build-number.", hint=again)
    if source.date is None:
        raise RecipeError(f"Recipe {recipe.name} has no date.", hint=again)
    with writing(mirror_of(source.repository, context), context) as repository:
        patches = load_patches(recipe, repository, context, upstream=upstream_by_number(source.build_number))
    lock = Lock(
        recipe=recipe.name,
        summary=recipe.summary,
        release=recipe.release,
        repository=source.repository,
        ref=source.ref or (f"refs/pull/{source.pr}/head" if source.pr else source.commit),
        commit=source.commit,
        tree=source.tree,
        build_number=source.build_number,
        date=int(source.date.astimezone(UTC).timestamp()),
        features=source.features,
        patches=tuple(each.locked for each in patches),
    )
    write_json(lock_path(recipe.name, context), lock_document(lock))
    return lock


def lock_path(name: str, context: Context) -> Path:
    """Where a recipe's lock is written."""
    return context.home.root / "resolved" / f"{name}.json"


def lock_document(lock: Lock) -> dict[str, Any]:
    """The lock as JSON."""
    return {"schema": 1, **asdict(lock)}
