"""Verbs ``release``, ``matrix`` and ``diff-builds``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.commands.base import add_verb, emit, emit_json

if TYPE_CHECKING:
    import argparse

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context


def register(verbs: Subparsers) -> None:
    """Add the verbs of this module."""
    _register_matrix(verbs)


def _add_flavour(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--flavour",
        action="append",
        default=[],
        metavar="FILE|TARGET[:ARCH]",
        help="what to make: a TOML file with a list, or one target (repeatable; default: every target of the recipe)",
    )


def _register_matrix(verbs: Subparsers) -> None:
    parser = add_verb(
        verbs,
        "matrix",
        _matrix,
        summary="print recipes and flavours as a job matrix for a CI system",
        example="llamabuild matrix --recipe dflash2-2026-09 --flavour ci/flavours.toml --format github",
    )
    parser.add_argument(
        "--recipe", action="append", default=[], metavar="NAME|FILE", help="repeatable; default: every known recipe"
    )
    _add_flavour(parser)
    parser.add_argument(
        "--format",
        choices=("github", "json"),
        default="json",
        help="github: one line for fromJSON in strategy.matrix; json: the same jobs as a document",
    )


def _matrix(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.core.errors import RecipeError
    from llamabuild.core.files import canonical_json
    from llamabuild.recipe.load import list_recipes, load_recipe
    from llamabuild.release.flavours import read_flavours
    from llamabuild.release.matrix import github_matrix, plan_jobs

    flavours = read_flavours(args.flavour, context.cwd)
    names = args.recipe or [listed.name for listed in list_recipes(context) if listed.valid]
    if not names:
        raise RecipeError("No recipe is known here.", hint="Name one with --recipe NAME|FILE.")
    jobs = [job for name in names for job in plan_jobs(load_recipe(name, context), flavours)]
    if args.format == "github":
        emit(canonical_json(github_matrix(jobs)))
    else:
        emit_json({"jobs": [job.to_json() for job in jobs]})
    return 0
