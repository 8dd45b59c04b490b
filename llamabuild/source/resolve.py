"""Recipe to lock: nothing is left open afterwards."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import RecipeError, SourceError, ToolError
from llamabuild.core.files import write_json
from llamabuild.source.apply import upstream_by_number
from llamabuild.source.commits import tree_of
from llamabuild.source.gitremote import UnreachableError, fetch_commit
from llamabuild.source.lock import Lock
from llamabuild.source.mirror import mirror_of, writing
from llamabuild.source.patches import load_patches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe

_FULL = 40
_TOOLKIT = "toolkit_files"
"""The one part of a written lock that comes later: toolkits are found when a target is chosen."""


def resolve(recipe: Recipe, context: Context, *, update: bool = False) -> Lock:
    """The lock of a recipe, also written to ``lock_path``; ``update`` moves its pins first.

    A recipe with tree and date is resolved without asking anybody, but for the commits of forks. Without them, they are
    taken from the commit, which is fetched for that.

    Raises RecipeError when the recipe pins no full commit or lacks its build number, SourceError when commits that are
    needed cannot be had.
    """
    if update:
        from llamabuild.source.update import update_pins

        recipe, moved = update_pins(recipe, context)
        for line in (line for each in moved for line in each.lines()):
            context.console.note(line)
    source = recipe.source
    commit, build_number = _pinned(recipe)
    ref = source.ref or (f"refs/pull/{source.pr}/head" if source.pr else commit)
    with writing(mirror_of(source.repository, context), context) as repository:
        tree, date = source.tree, source.date
        if tree is None or date is None:
            again = f"llamabuild resolve --recipe {recipe.name} --update"
            try:
                fetch_commit(repository, source.repository, commit, ref=ref, context=context, again=again)
            except UnreachableError as exc:
                raise SourceError(
                    f"Recipe {recipe.name} leaves its tree or date to its commit, and {exc.message}",
                    hint="Make the repository reachable, or write tree and date into the recipe.",
                ) from exc
            tree = tree or tree_of(repository, commit)
            date = date or datetime.fromtimestamp(repository[commit].commit_time, UTC)
        patches = load_patches(recipe, repository, context, upstream=upstream_by_number(build_number))
    lock = Lock(
        recipe=recipe.name,
        summary=recipe.summary,
        release=recipe.release,
        repository=source.repository,
        ref=ref,
        commit=commit,
        tree=tree,
        build_number=build_number,
        date=int(date.timestamp()),
        features=source.features,
        patches=tuple(each.locked for each in patches),
    )
    kept = _written(recipe.name, context).get(_TOOLKIT)
    document = {"schema": 1, **asdict(lock), **({_TOOLKIT: kept} if kept else {})}
    write_json(lock_path(recipe.name, context), document)
    return lock


def _pinned(recipe: Recipe) -> tuple[str, int]:
    """The full commit id and the build number of a recipe.

    Raises RecipeError for a recipe that leaves one open.
    """
    source = recipe.source
    again = f"llamabuild resolve --recipe {recipe.name} --update writes it."
    if source.commit is None:
        raise RecipeError(f"Recipe {recipe.name} pins no commit.", hint=again)
    if len(source.commit) < _FULL:
        raise RecipeError(
            f"Recipe {recipe.name} pins the abbreviated commit {source.commit}; a pin is the full id.", hint=again
        )
    if source.build_number is None:
        raise RecipeError(f"Recipe {recipe.name} has no build-number.", hint=again)
    return source.commit, source.build_number


def lock_path(name: str, context: Context) -> Path:
    """Where a recipe's lock is written."""
    return context.home.root / "resolved" / f"{name}.json"


def record_toolkit(name: str, files: Mapping[str, str], context: Context) -> None:
    """Write into a recipe's lock what a toolkit of its targets was assembled from: file names and SHA-256.

    They take the place of what another version was assembled from. Raises ToolError when a file has another digest than
    the lock has for its name: a registry, or somebody on the way, brought something else than before.
    """
    document = _written(name, context)
    before = document.get(_TOOLKIT, {})
    for file, digest in sorted(files.items()):
        if before.get(file, digest) != digest:
            raise ToolError(
                f"{file} is not the file that recipe {name} was built with: its SHA-256 is {digest}, and "
                f"{lock_path(name, context)} has {before[file]}.",
                hint=f"Remove {context.home.root / 'toolkits'} to have it fetched again; where the new file is the "
                "right one, remove it from the lock.",
            )
    write_json(lock_path(name, context), {**document, _TOOLKIT: dict(files)})


def _written(name: str, context: Context) -> dict[str, Any]:
    try:
        document = json.loads(lock_path(name, context).read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
