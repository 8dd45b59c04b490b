"""The verb ``serve-check``: a command line is judged before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_verb, emit, emit_json
from llamabuild.commands.rest import take_rest
from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context


def register(verbs: Subparsers) -> None:
    """Add ``serve-check``."""
    check = add_verb(
        verbs,
        "serve-check",
        run_serve_check,
        summary="judge a server's command line before it is run",
        example="llamabuild serve-check --bundle llama-dflash2-2026-09-cpu -- llama-server -m m.gguf -c 131072 -np 4",
        description="Against the bundle's own --help, the models' headers and the devices. Exit code 1 when a finding\n"
        "is an error. --rules lists every rule with its source and what would disprove it.",
    )
    check.add_argument("--bundle", metavar="BUNDLE|ARCHIVE", help="what will run it; default: where its program stands")
    check.add_argument("--unit", metavar="FILE", type=Path, help="a systemd unit instead of words after --")
    check.add_argument("--env-file", metavar="FILE", type=Path, help="variables that the server is started with")
    check.add_argument("--devices", metavar="A,B", help="device names instead of those that the bundle sees here")
    check.add_argument("--rules", action="store_true", help="list the rules and stop")
    take_rest(check, "words")
    add_json(check)


def run_serve_check(args: argparse.Namespace, context: Context) -> int:
    """Print the findings."""
    from llamabuild.commands.smoke import opened_bundle
    from llamabuild.runtime.command_line import read_environment_file, read_unit
    from llamabuild.runtime.serve_check import ALL_RULES, check_command
    from llamabuild.verify.output import render_text

    rules = [
        {"name": rule.name, "severity": rule.severity, "source": rule.source, "disproof": rule.disproof}
        for rule in ALL_RULES
    ]
    if args.rules:
        if args.json:
            emit_json({"kind": "serve-rules", "rules": rules})
        else:
            emit(
                "\n\n".join(
                    "{name} ({severity})\n  source: {source}\n  disproved if {disproof}".format(**r) for r in rules
                )
            )
        return 0
    words, env = list(args.words), dict[str, str]()
    if args.unit:
        if words:
            raise UsageError("Both --unit and words after -- are given.", hint="Give one of them.")
        words, env = read_unit(context.cwd / args.unit)
    if args.env_file:
        env.update(read_environment_file(context.cwd / args.env_file))
    with opened_bundle(args.bundle or _bundle_of(words), context) as bundle:
        devices = [name for name in args.devices.split(",") if name] if args.devices is not None else None
        report = check_command(words, bundle, context, env=env, devices=devices)
    if args.json:
        document = report.to_json()
        named = {finding.name for finding in report.findings}
        document.pop("schema")
        emit_json({"kind": "serve-check", **document, "rules": [rule for rule in rules if rule["name"] in named]})
    else:
        emit(render_text(report, everything=True))
    return 0 if report.ok else 1


def _bundle_of(words: list[str]) -> str:
    for word in words:
        path = Path(word)
        if path.name.startswith("llama-") and path.is_file():
            return str(path.parent.parent if path.parent.name == "bin" else path.parent)
    raise UsageError("Which bundle will run this is not known.", hint="Give --bundle, or the program with its path.")
