"""Will this command line die on its first request? Findings about it, before anything is loaded."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import LlamabuildError, UsageError
from llamabuild.core.process import run
from llamabuild.runtime.command_line import parse_words
from llamabuild.runtime.devices import list_devices
from llamabuild.runtime.gguf_model import Model, load_model
from llamabuild.runtime.help_flags import ask_flags
from llamabuild.runtime.serve_case import PROBED, Case
from llamabuild.runtime.serve_device_rules import DEVICE_RULES
from llamabuild.runtime.serve_draft_rules import DRAFT_RULES
from llamabuild.runtime.serve_rules import RULES
from llamabuild.verify.findings import Finding, Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llamabuild.core.context import Context

ALL_RULES = (*RULES, *DEVICE_RULES, *DRAFT_RULES)

_PCI_SECONDS = 20.0
_PROBE_BLOCK = 1 << 22


def check_command(
    words: Sequence[str],
    bundle: Path,
    context: Context,
    *,
    env: Mapping[str, str] | None = None,
    devices: Sequence[str] | None = None,
) -> Report:
    """Judge a command line against a bundle. ``devices`` stand in for what the bundle sees on this machine.

    Raises UsageError without words, ServerError when the bundle does not hold the program.
    """
    if not words:
        raise UsageError("No command line is given.", hint="Write it after --, or give --unit.")
    named = [Path(word).name for word in words if Path(word).name in {"llama-server", "llama-bench", "llama-cli"}]
    program = named[0] if named else "llama-server"
    with tempfile.TemporaryDirectory(prefix="llamabuild-home-") as home:
        flags = ask_flags(bundle, program, env=context.env, home=Path(home))
    line = parse_words(words, flags, env=env)
    problems: list[tuple[str, str]] = []
    case = Case(
        line=line,
        flags=flags,
        model=_model(line.value("--model"), "--model", problems, context.cwd),
        draft=_model(line.value("--spec-draft-model"), "--spec-draft-model", problems, context.cwd),
        problems=tuple(problems),
        devices=tuple(devices) if devices is not None else _seen_devices(bundle, context),
        symbols=probe_symbols(bundle),
        atomics=_atomics(context.env),
    )
    findings = [finding for rule in ALL_RULES for finding in rule.findings(case)]
    if case.split_mode == "tensor" and case.atomics is None:
        findings.append(
            Finding(
                "split.atomics", "note", "", "Whether this host's links have PCIe atomics was not looked at.",
                hint="lspci -vv says so (AtomicOpsCtl), as root.",
            )
        )  # fmt: skip
    return Report(subject=" ".join(words), findings=tuple(findings))


def probe_symbols(bundle: Path) -> frozenset[str]:
    """Which of `PROBED` stand in a bundle's own libraries (llama's, not the backends')."""
    # Without the string's end: these are C++ names, and their types are mangled into them.
    wanted = {name.encode(): name for name in PROBED}
    found: set[str] = set()
    for folder in ("lib", "bin", "."):
        for path in sorted((bundle / folder).glob("libllama*.so*")):
            if path.is_file() and not path.is_symlink():
                found |= {name for raw, name in wanted.items() if _holds(path, raw)}
    return frozenset(found)


def parse_atomics(text: str) -> bool | None:
    """Whether every display controller of an ``lspci -vv`` has atomics enabled; None where it does not say."""
    found = []
    for block in re.split(r"\n(?=\S)", text):
        if re.search(r"^\S+ (?:VGA compatible|3D|Display) controller", block):
            found += re.findall(r"AtomicOpsCtl: ReqEn([+-])", block)
    return all(sign == "+" for sign in found) if found else None


def _atomics(env: Mapping[str, str]) -> bool | None:
    program = shutil.which("lspci", path=env.get("PATH"))
    if program is None:
        return None
    try:
        return parse_atomics(run((program, "-vv"), env=env, timeout=_PCI_SECONDS, tail_lines=None).text)
    except LlamabuildError:
        return None


def _model(name: str | None, flag: str, problems: list[tuple[str, str]], cwd: Path) -> Model | None:
    if not name:
        return None
    try:
        return load_model(str(cwd / name))
    except LlamabuildError as failure:
        problems.append((flag, failure.message))
        return None


def _seen_devices(bundle: Path, context: Context) -> tuple[str, ...] | None:
    try:
        return tuple(device.name for device in list_devices(bundle, env=context.env).devices)
    except LlamabuildError:
        return None


def _holds(path: Path, raw: bytes) -> bool:
    tail = b""
    with path.open("rb") as handle:
        while block := handle.read(_PROBE_BLOCK):
            if raw in tail + block:
                return True
            tail = block[-len(raw) :]
    return False
