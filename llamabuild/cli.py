"""The command line: arguments, exit codes, and one sentence for every failure."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
from pathlib import Path

from llamabuild import __version__
from llamabuild.core.console import Console
from llamabuild.core.context import Context, Home
from llamabuild.core.errors import LlamabuildError

_COMMAND_MODULES = (
    "make",
    "bundle",
    "recipes",
    "series",
    "verify",
    "inspect",
    "doctor",
    "runtime",
    "smoke",
    "size",
    "serve_check",
    "bench",
    "release",
)
"""Modules of ``llamabuild.commands`` in the order their verbs are listed; each has ``register(verbs)``."""

_INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """All verbs with their options; imports nothing heavy."""
    parser = argparse.ArgumentParser(
        prog="llamabuild",
        description="Build pinned, patched llama.cpp runtimes as relocatable archives that are proven to hold what "
        "they claim.",
        epilog="exit codes: 0 done, 1 verification found errors, 2 usage or recipe, 3 source, 4 patch, 5 tool missing, "
        "6 build, 7 bundling, 130 interrupted\n\nexample:\n  llamabuild make --recipe dflash2-2026-09 --target cpu",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"llamabuild {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name in _COMMAND_MODULES:
        importlib.import_module(f"llamabuild.commands.{name}").register(verbs)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code of the contract."""
    args = build_parser().parse_args(argv)
    verbosity = -1 if args.quiet else int(args.verbose)
    console = Console.for_terminal(os.environ, verbosity=verbosity)
    _end_as_by_ctrl_c()
    # What is made here is for others to read and run, and the same whoever makes it.
    os.umask(0o022)
    context = Context(
        home=Home.from_environment(os.environ),
        console=console,
        env=dict(os.environ),
        cwd=Path.cwd(),
        offline=args.offline,
    )
    try:
        code: int = args.run(args, context)
        sys.stdout.flush()
    except LlamabuildError as failure:
        console.error(failure)
        return failure.exit_code
    except KeyboardInterrupt:
        console.warn("interrupted; finished stages are kept and the next run goes on from there")
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (``llamabuild … | head``): nothing is left to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as failure:
        where = f"{failure.filename}: " if failure.filename else ""
        console.error(
            LlamabuildError(
                f"{where}{failure.strerror or failure}.",
                hint="Free some space, or check the path and its permissions; nothing was left half-written.",
            )
        )
        return LlamabuildError.exit_code
    return code


def _end_as_by_ctrl_c() -> None:
    """Let a cancelled CI job (SIGTERM) and a closed terminal (SIGHUP) end a run as Ctrl-C does: tools first, in words.

    Tools run in sessions of their own, so that a signal to us alone would leave them working. One that is ignored
    (``nohup``) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
