"""``recipes``, ``resolve`` and ``source``: what a recipe says, what it means exactly, and its patched source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_offline, add_recipe, add_verb, emit, emit_json

if TYPE_CHECKING:
    import argparse

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context


def register(verbs: Subparsers) -> None:
    """Add the verbs."""
    recipes = add_verb(
        verbs,
        "recipes",
        _recipes,
        summary="list recipes, or show one",
        example="llamabuild recipes show dflash2-2026-09",
    )
    recipes.add_argument("action", choices=("list", "show"), help="what to do")
    recipes.add_argument("name", nargs="?", metavar="NAME|FILE", help="the recipe to show")
    add_json(recipes)

    resolve = add_verb(
        verbs,
        "resolve",
        _resolve,
        summary="write and print a recipe's lock",
        example="llamabuild resolve --recipe dflash2-2026-09",
    )
    add_recipe(resolve)
    resolve.add_argument("--update", action="store_true", help="move the pin to what the ref or pull request is now")
    add_json(resolve)
    add_offline(resolve)

    source = add_verb(
        verbs,
        "source",
        _source,
        summary="make the patched source tree, one commit a patch",
        example="llamabuild source --recipe dflash2-2026-09 --to llama.cpp",
    )
    add_recipe(source)
    source.add_argument(
        "--keep-conflict", metavar="DIR", type=Path, help="when a patch conflicts, write the tree with markers here"
    )
    source.add_argument("--to", metavar="DIR", type=Path, help="where to write a git work tree")
    add_json(source)
    add_offline(source)


def _recipes(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.core.errors import UsageError
    from llamabuild.recipe.find import find_recipe
    from llamabuild.recipe.load import list_recipes, load_recipe

    if args.action == "list":
        listed = list_recipes(context)
        if args.json:
            emit_json(
                {"recipes": [{"name": each.name, "summary": each.summary, "valid": each.valid} for each in listed]}
            )
        else:
            width = max((len(each.name) for each in listed), default=0)
            emit("\n".join(f"{each.name:<{width}}  {each.summary}" for each in listed))
        return 0
    if args.name is None:
        raise UsageError("recipes show needs a recipe.", hint="See what there is with: llamabuild recipes list")
    recipe = load_recipe(args.name, context)
    path = find_recipe(args.name, context)
    if args.json:
        emit_json({"file": str(path), "recipe": recipe.model_dump(mode="json", by_alias=True)})
    else:
        emit(f"# {path}\n{path.read_text()}")
    return 0


def _resolve(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.recipe.load import load_recipe
    from llamabuild.source.resolve import lock_path, resolve

    recipe = load_recipe(args.recipe, context)
    resolve(recipe, context, update=args.update)
    path = lock_path(recipe.name, context)
    context.console.note(f"written to {path}")
    emit(path.read_text(encoding="utf-8").rstrip())
    return 0


def _source(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.recipe.load import load_recipe
    from llamabuild.source.apply import patched_source
    from llamabuild.source.resolve import resolve
    from llamabuild.source.worktree import check_out

    recipe = load_recipe(args.recipe, context)
    kept = None if args.keep_conflict is None else context.cwd / args.keep_conflict
    patched = patched_source(recipe, resolve(recipe, context), context, keep_conflict=kept)
    folder = None if args.to is None else check_out(patched, context.cwd / args.to, context, standalone=True)
    if args.json:
        emit_json(
            {
                "recipe": recipe.name,
                "provider": patched.provider,
                "base": patched.base,
                "commit": patched.commit,
                "tree": patched.tree,
                "folder": None if folder is None else str(folder),
                "patches": [
                    {"id": each.patch.id, "subject": each.patch.subject, "state": each.state, "note": each.note}
                    for each in patched.outcomes
                ],
            }
        )
        return 0
    for each in patched.outcomes:
        note = f" ({each.note})" if each.note else ""
        emit(f"{each.state}{note}: {each.patch.id}  {each.patch.subject}")
    emit(f"commit {patched.commit}, tree {patched.tree}, from {patched.provider}")
    if folder is not None:
        emit(str(folder))
    return 0
