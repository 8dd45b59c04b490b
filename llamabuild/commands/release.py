"""Verbs ``release``, ``matrix`` and ``diff-builds``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_offline, add_recipe, add_verb, emit, emit_json
from llamabuild.commands.make import add_build_options, build_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from llamabuild.bundle.model import Artifact
    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.release.diff import Difference

_DESCRIPTION = """Build every flavour of a recipe, or take parts that other runs finished (--from), and put everything
that is published into one new folder: archives, patches, BUILD_INFO, SBOM, provenance, report pages, release notes and
SHA256SUMS. All of it is checked against the archives before the folder appears."""


def register(verbs: Subparsers) -> None:
    """Add the verbs of this module."""
    _register_release(verbs)
    _register_matrix(verbs)
    _register_diff(verbs)


def _add_flavour(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--flavour",
        action="append",
        default=[],
        metavar="FILE|TARGET[:ARCH]",
        help="what to make: a TOML file with a list, or one target (repeatable; default: every target of the recipe)",
    )


def _register_release(verbs: Subparsers) -> None:
    parser = add_verb(
        verbs,
        "release",
        _release,
        summary="make a complete, checkable release of several flavours in one folder",
        example="llamabuild release --recipe dflash2-2026-09 --flavour cpu --with-baseline --out release",
        description=_DESCRIPTION,
    )
    add_recipe(parser)
    _add_flavour(parser)
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("release"), help="a new folder (default: release)"
    )
    parser.add_argument("--from", dest="source", metavar="DIR", type=Path, help="put together finished parts below DIR")
    parser.add_argument(
        "--since", metavar="DIR|FILE", type=Path, help="an earlier release, or one of its BUILD_INFO files"
    )
    parser.add_argument("--with-baseline", action="store_true", help="also build the same source without patches")
    parser.add_argument(
        "--with-container", action="store_true", help="add a container's build context for each flavour"
    )
    parser.add_argument("--with-wheel", action="store_true", help="add a Python wheel for each flavour")
    parser.add_argument("--smoke", action="store_true", help="serve a tiny model with each flavour, and tell")
    add_build_options(parser)
    add_offline(parser)
    add_json(parser)


def _release(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.commands.release_run import Wanted, run_release

    published = run_release(
        Wanted(
            recipe=args.recipe,
            flavours=tuple(args.flavour),
            out=context.cwd / args.out,
            source=None if args.source is None else context.cwd / args.source,
            since=None if args.since is None else context.cwd / args.since,
            baseline=args.with_baseline,
            container=args.with_container,
            wheel=args.with_wheel,
            smoke=args.smoke,
            options=build_options(args),
        ),
        context,
    )
    if args.json:
        emit_json({"folder": str(args.out), "artifacts": [_artifact(artifact) for artifact in published]})
    else:
        for artifact in published:
            emit(f"{artifact.sha256}  {artifact.size:>11,}  {args.out / artifact.path.name}")
    return 0


def _artifact(artifact: Artifact) -> dict[str, object]:
    return {"name": artifact.path.name, "sha256": artifact.sha256, "size": artifact.size}


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


def _register_diff(verbs: Subparsers) -> None:
    parser = add_verb(
        verbs,
        "diff-builds",
        _diff,
        summary="say where two builds differ: which file, and in an ELF file which section",
        example="llamabuild diff-builds a/llama-dflash2-2026-09-cpu.tar.zst b/llama-dflash2-2026-09-cpu.tar.zst",
        description="Compare two folders, archives or single files. Exit code 0 when they are the same, 1 when not.",
    )
    parser.add_argument("a", metavar="A", type=Path, help="a folder, tar.gz, tar.zst or any file")
    parser.add_argument("b", metavar="B", type=Path, help="what to compare it with")
    add_json(parser)


def _diff(args: argparse.Namespace, context: Context) -> int:
    from dataclasses import asdict

    from llamabuild.release.diff_paths import diff_paths

    found = diff_paths(context.cwd / args.a, context.cwd / args.b, context)
    if args.json:
        emit_json({"same": not found, "differences": [asdict(each) for each in found]})
    else:
        emit(_diff_text(found))
    return 1 if found else 0


def _diff_text(found: Sequence[Difference]) -> str:
    if not found:
        return "no difference"
    lines = []
    for each in found:
        place = " ".join(part for part in (each.file or "(the archive)", each.where) if part)
        lines.append(f"{place}: {each.what}" + (f": {each.a or '-'} | {each.b or '-'}" if each.a or each.b else ""))
    return "\n".join(lines)
