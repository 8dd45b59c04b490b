"""The ordinary pip client: how it is called, what it says when it fails, and a tool installed with it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from typing import TYPE_CHECKING

from llamabuild.core.errors import ToolError
from llamabuild.core.files import atomic_folder, locked
from llamabuild.core.process import run

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.core.context import Context

_PIP_SECONDS = 900.0


def install_tool(requirement: str, context: Context) -> Path:
    """A folder under ``$LLAMABUILD_HOME/tools`` that has a pinned wheel unpacked in it, installed on first use.

    Raises ToolError when pip cannot install it.
    """
    folder = context.home.root / "tools" / requirement
    with locked(context.home.locks / f"tool-{requirement}.lock", say=context.console.note):
        if folder.is_dir():
            return folder
        if context.offline:
            raise ToolError(f"{requirement} is not installed, and --offline forbids it.", hint="Run once without it.")
        with context.console.step(f"Install {requirement}"), atomic_folder(folder) as part:
            done = run(
                [
                    *pip_command(context),
                    "install",
                    "--no-deps",
                    "--only-binary",
                    ":all:",
                    "--target",
                    part,
                    requirement,
                ],
                env=context.env,
                log=context.home.logs / "pip.log",
                timeout=_PIP_SECONDS,
            )
            if not done.ok:
                raise ToolError(
                    f"pip could not install {requirement}: {failure_reason(done.tail)}.",
                    log=context.home.logs / "pip.log",
                )
    return folder


def failure_reason(tail: tuple[str, ...]) -> str:
    """What pip says that failed: its last error line, else its last line."""
    errors = [line.partition(": ")[2] for line in tail if line.lower().startswith("error: ")]
    return (errors or [line.strip() for line in tail if line.strip()] or ["no source archive came"])[-1].rstrip(".")


def pip_command(context: Context) -> list[str]:
    """The words that call pip: this interpreter's, else the one on PATH.

    Raises ToolError when there is none.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip3", path=context.env.get("PATH")) or shutil.which("pip", path=context.env.get("PATH"))
    if program is None:
        raise ToolError("pip is not installed, so a source archive cannot be fetched.", hint="Install pip.")
    return [program]
