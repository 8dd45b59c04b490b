"""``verify`` and ``docs``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_recipe, add_verb, emit, emit_json
from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.verify.findings import Report


def register(verbs: Subparsers) -> None:
    """Add the verbs."""
    verify = add_verb(
        verbs,
        "verify",
        _verify,
        summary="prove what a bundle holds, as a folder or an archive, ours or anybody's",
        example="llamabuild verify dist/llama-dflash2-2026-09-cpu.tar.zst --recipe dflash2-2026-09 --target cpu",
        description="Read every file of a bundle once, start its programs from another path with an empty\n"
        "environment, and report findings by name (llamabuild docs explains each). Exit code 1 when there are errors.",
    )
    verify.add_argument("path", metavar="PATH", help="a folder, tar.gz, tar.zst, zip or wheel")
    add_recipe(verify, required=False)
    verify.add_argument("--target", metavar="T", help="the recipe's target (default: what the bundle says)")
    verify.add_argument("--arch", metavar="A", help="the GPU arch that has to be embedded, such as 86 or gfx1201")
    verify.add_argument("--strict", action="store_true", help="warnings fail too")
    verify.add_argument(
        "--allow",
        metavar="NAME=REASON",
        action="append",
        default=[],
        help="accept a finding, with the reason; may be repeated",
    )
    verify.add_argument("--no-run", action="store_true", help="start no program (a finding says so)")
    verify.add_argument("--junit", metavar="FILE", help="also write a JUnit XML report")
    verify.add_argument(
        "--annotations",
        action="store_true",
        help="also write GitHub annotations on standard error (by default in GitHub Actions)",
    )
    verify.add_argument(
        "--provenance",
        metavar="STATEMENT",
        help="check a release's statement against the files it names, and those against each other; PATH is the "
        "release's folder, or one archive in it",
    )
    add_json(verify)

    docs = add_verb(
        verbs,
        "docs",
        _docs,
        summary="explain the findings of verify",
        example="llamabuild docs link.dangling",
    )
    docs.add_argument("name", metavar="NAME", nargs="?", help="one finding; without it the whole page, in Markdown")
    docs.add_argument("--out", metavar="FILE", help="write the page to a file")
    add_json(docs)


def _verify(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.verify.check import Options, verify_path
    from llamabuild.verify.policy import apply_policy

    allow = _parse_allowed(args.allow)
    if args.provenance:
        return _verify_provenance(args, context, allow)
    recipe = None
    if args.recipe:
        from llamabuild.recipe.load import load_recipe

        recipe = load_recipe(args.recipe, context)
    elif args.target:
        raise UsageError("--target was given without --recipe.", hint="Name the recipe that has the target.")
    report = verify_path(
        context.cwd / args.path,
        context=context,
        recipe=recipe,
        target=args.target,
        arch=args.arch,
        options=Options(run=not args.no_run),
    )
    return _tell(apply_policy(report, strict=args.strict, allow=allow), args, context)


def _verify_provenance(args: argparse.Namespace, context: Context, allow: Mapping[str, str]) -> int:
    from llamabuild.release.crosscheck import verify_provenance
    from llamabuild.verify.policy import apply_policy

    path = context.cwd / args.path
    if not path.exists():
        raise UsageError(f"There is no {path}.", hint="Name the release's folder, or one archive in it.")
    statement = context.cwd / args.provenance
    if path.is_dir():
        report = verify_provenance(statement, path)
    else:
        report = verify_provenance(statement, path.parent, archive=path)
    return _tell(apply_policy(report, strict=args.strict, allow=allow), args, context)


def _tell(report: Report, args: argparse.Namespace, context: Context) -> int:
    from llamabuild.core.files import atomic_write
    from llamabuild.verify.output import render_annotations, render_junit, render_text

    if args.junit:
        with atomic_write(context.cwd / args.junit) as handle:
            handle.write(render_junit(report))
    if args.annotations or context.env.get("GITHUB_ACTIONS") == "true":
        context.console.stream.write(render_annotations(report))
    if args.json:
        emit_json(report.to_json())
    else:
        emit(render_text(report, everything=args.verbose))
    return 0 if report.ok else 1


def _parse_allowed(words: list[str]) -> dict[str, str]:
    import difflib

    from llamabuild.verify.registry import all_kinds

    known = all_kinds()
    allow = {}
    for word in words:
        name, _, reason = word.partition("=")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                f"There is no finding named {name!r}.",
                hint=f"Did you mean {near[0]}?" if near else "llamabuild docs lists them.",
            )
        if not reason.strip():
            raise UsageError(f"--allow {name} gives no reason.", hint=f'Write --allow "{name}=why it is accepted".')
        allow[name] = reason.strip()
    return allow


def _docs(args: argparse.Namespace, context: Context) -> int:
    import difflib
    from dataclasses import asdict

    from llamabuild.core.files import write_text
    from llamabuild.verify.registry import all_kinds, docs_page

    known = all_kinds()
    if args.name and args.name not in known:
        near = difflib.get_close_matches(args.name, known, n=1)
        raise UsageError(
            f"There is no finding named {args.name!r}.",
            hint=f"Did you mean {near[0]}?" if near else "llamabuild docs lists them.",
        )
    chosen = [known[args.name]] if args.name else list(known.values())
    if args.json:
        emit_json({"findings": [asdict(kind) for kind in chosen]})
    elif args.name:
        kind = chosen[0]
        emit(f"{kind.name} ({kind.severity})\n\n{kind.meaning}\n\nWhat to do: {kind.action}")
    elif args.out:
        write_text(Path(context.cwd, args.out), docs_page())
        emit(str(Path(context.cwd, args.out)))
    else:
        emit(docs_page())
    return 0
