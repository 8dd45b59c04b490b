"""The verb ``smoke``: a bundle is started and asked everything."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.commands.base import add_json, add_verb, emit, emit_json
from llamabuild.commands.rest import take_rest
from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context
    from llamabuild.runtime.tiny import TinyKind

_TINY = ("dense", "moe", "hybrid", "dflash2")


def register(verbs: Subparsers) -> None:
    """Add ``smoke``."""
    smoke = add_verb(
        verbs,
        "smoke",
        run_smoke_verb,
        summary="start a bundle's server and ask it everything a client will",
        example="llamabuild smoke dist/llama-dflash2-2026-09-cpu.tar.zst --tiny dflash2 -- -c 4096 -np 2",
        description="Unpacks elsewhere, starts the real llama-server on a free loopback port with a clean environment, "
        "runs the battery and ends it. Flags after -- are the server's own. Exit code 1 when a check fails.",
    )
    smoke.add_argument("bundle", metavar="BUNDLE|ARCHIVE", help="a bundle folder, a build folder, or an archive")
    smoke.add_argument("--model", metavar="FILE", type=Path, help="the model to serve; default: a tiny random one")
    smoke.add_argument("--draft", metavar="FILE", type=Path, help="a drafter for the model")
    smoke.add_argument(
        "--tiny", choices=_TINY, default="dense", help="which random model; dflash2 is a hybrid's drafter"
    )
    smoke.add_argument(
        "--deep", metavar="TOKENS", type=int, help="length of the long prompt; default: the whole window"
    )
    smoke.add_argument(
        "--expect-device",
        metavar="NAME",
        action="append",
        default=[],
        help="a device that must be there, such as CUDA0",
    )
    take_rest(smoke, "flags")
    add_json(smoke)


def run_smoke_verb(args: argparse.Namespace, context: Context) -> int:
    """Run the battery and print its report."""
    from llamabuild.runtime.smoke import run_smoke
    from llamabuild.runtime.smoke_text import describe_smoke
    from llamabuild.runtime.tiny import write_tiny_model

    if args.draft and not args.model:
        raise UsageError("--draft needs --model: a drafter fits its own target alone.", hint="Give both, or --tiny.")
    with tempfile.TemporaryDirectory(prefix="llamabuild-smoke-") as folder:
        model, draft = args.model, args.draft
        if model is None:
            target: TinyKind = "hybrid" if args.tiny == "dflash2" else args.tiny
            model = write_tiny_model(Path(folder) / f"tiny-{target}.gguf", kind=target)
            if args.tiny == "dflash2":
                draft = write_tiny_model(Path(folder) / "tiny-dflash2.gguf", kind="dflash2")
        with opened_bundle(args.bundle, context) as bundle:
            report = run_smoke(
                bundle,
                context,
                subject=args.bundle,
                model=model,
                draft=draft,
                log=context.home.logs / "smoke" / f"{Path(args.bundle).name}.log",
                flags=args.flags,
                deep=args.deep,
                expected_devices=args.expect_device,
            )
    if args.json:
        emit_json(report.to_json())
    else:
        emit(describe_smoke(report))
    return 0 if report.ok else 1


@contextlib.contextmanager
def opened_bundle(name: str, context: Context) -> Iterator[Path]:
    """A bundle's folder: itself, or an archive unpacked in a temporary place for as long as the block runs."""
    path = Path(name)
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise UsageError(f"{name} does not exist.", hint="Give a bundle's folder or archive.")
    from llamabuild.bundle.unpack import open_archive

    # A name with a space and of no meaning: nothing may depend on where it was built or packed.
    with tempfile.TemporaryDirectory(prefix="llamabuild elsewhere ") as folder:
        with context.console.step(f"Unpack {path.name}"):
            top = open_archive(path, Path(folder))
        yield top
