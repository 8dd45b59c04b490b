"""``series``: patch series, what is in them, whether they still apply, and as files for others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_offline, add_verb, emit, emit_json

if TYPE_CHECKING:
    import argparse

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.source.attempt import Attempt
    from llamabuild.source.check import Checked

_CONFLICT = 4


def register(verbs: Subparsers) -> None:
    """Add the verb."""
    series = add_verb(
        verbs,
        "series",
        _series,
        summary="list, show, check or export patch series",
        example="llamabuild series check recurrent-state-fill --onto b11200",
    )
    series.add_argument("action", choices=("list", "show", "check", "export"), help="what to do")
    series.add_argument("name", nargs="?", metavar="SERIES", help="the series")
    target = series.add_mutually_exclusive_group()
    target.add_argument("--onto", metavar="REF", help="check: a tag, branch, pr/N or full commit of upstream")
    target.add_argument("--onto-tree", metavar="DIR", type=Path, help="check: a folder with a source tree")
    series.add_argument("--repository", metavar="URL", help="check: where --onto is, instead of the series' upstream")
    series.add_argument(
        "--history", action="store_true", help="check: fetch upstream's history, to name the commits behind a conflict"
    )
    series.add_argument(
        "--keep-conflict", metavar="DIR", type=Path, help="check: write the first conflict's tree, with markers, here"
    )
    series.add_argument("--out", metavar="FILE.tar.gz", type=Path, help="export: the archive to write")
    add_json(series)
    add_offline(series)


def _series(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.core.errors import UsageError

    if args.action == "list":
        return _list(args, context)
    if args.name is None:
        raise UsageError(f"series {args.action} needs a series.", hint="See what there is with: llamabuild series list")
    return {"show": _show, "check": _check, "export": _export}[args.action](args, context)


def _list(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.recipe.load import list_series

    listed = list_series(context)
    if args.json:
        emit_json({"series": [{"name": each.name, "summary": each.summary, "valid": each.valid} for each in listed]})
    else:
        width = max((len(each.name) for each in listed), default=0)
        emit("\n".join(f"{each.name:<{width}}  {each.summary}" for each in listed))
    return 0


def _show(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.recipe.load import load_series

    series, path = load_series(args.name, context)
    if args.json:
        emit_json({"file": str(path), "series": series.model_dump(mode="json", by_alias=True)})
    else:
        emit(f"# {path}\n{path.read_text()}")
    return 0


def _check(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.core.errors import UsageError
    from llamabuild.source.check import check_series

    if args.onto is None and args.onto_tree is None:
        raise UsageError("series check needs a target.", hint="Give --onto REF or --onto-tree DIR.")
    checked = check_series(
        args.name,
        context,
        onto=args.onto,
        folder=None if args.onto_tree is None else context.cwd / args.onto_tree,
        repository=args.repository,
        history=args.history,
        keep_conflict=None if args.keep_conflict is None else context.cwd / args.keep_conflict,
    )
    if args.json:
        emit_json(checked.to_json())
    else:
        emit(_table(checked))
    return 0 if checked.ok else _CONFLICT


def _table(checked: Checked) -> str:
    lines = [f"{checked.series} onto {checked.onto} ({checked.commit or 'tree ' + checked.tree})", ""]
    states = [f"{tried.state} ({tried.note})" if tried.note else tried.state for tried in _attempts(checked)]
    width = max(map(len, states), default=0)
    for step, state in zip(checked.steps, states, strict=True):
        tried, locked = step.attempt, step.patch.locked
        name = f"{locked.id[:9]}  " if len(locked.id) == 40 else ""
        lines.append(f"{step.patch.number:>4}  {state:<{width}}  {name}{locked.subject}")
        lines += [f"      {line}" for conflict in tried.conflicts for line in conflict.lines()]
        if step.needs:
            lines.append(f"      may be because of patch {', '.join(str(each.number) for each in step.needs)}")
    counts: dict[str, int] = {}
    for tried in _attempts(checked):
        counts[tried.state] = counts.get(tried.state, 0) + 1
    lines += ["", ", ".join(f"{count} {state}" for state, count in counts.items()) or "no patches"]
    return "\n".join(lines)


def _attempts(checked: Checked) -> list[Attempt]:
    return [step.attempt for step in checked.steps]


def _export(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.core.errors import UsageError
    from llamabuild.core.files import sha256_file
    from llamabuild.source.export import export_series

    if args.out is None:
        raise UsageError("series export needs a file to write.", hint="Give --out FILE.tar.gz.")
    out = context.cwd / args.out
    names = export_series(args.name, out, context)
    digest = sha256_file(out)
    if args.json:
        emit_json({"file": str(out), "sha256": digest, "members": list(names)})
    else:
        emit(f"{digest}  {out}")
    return 0
