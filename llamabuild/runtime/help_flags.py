"""A program's flags as its own ``--help`` tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.process import run
from llamabuild.runtime.server import clean_environment, find_program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAME = re.compile(r"(-{1,2}[A-Za-z][\w.-]*)(?:,?\s+(?=-)|\s+|$|,\s*)")
_ENV = re.compile(r"\(env: ([A-Z][A-Z0-9_]*)\)")
_CHOICES = re.compile(r"^(?:[\[{<]([^\]}>]*)[\]}>]|([a-z0-9-]+(?:,[a-z0-9-]+)+))$")
_REMOVED = "the argument has been removed"
_SECONDS = 60.0


@dataclass(frozen=True)
class Flag:
    """One flag with all its names."""

    names: tuple[str, ...]
    values: int
    """How many words follow it: 0, 1 or 2."""
    choices: tuple[str, ...] = ()
    """The words it takes, where the help lists them in its heading."""
    env: str = ""
    """The variable that sets it."""
    removed: str = ""
    """What the help says of a flag that no longer does anything."""

    @property
    def canonical(self) -> str:
        """The longest name: what rules ask for."""
        return max(self.names, key=len)


@dataclass(frozen=True)
class Flags:
    """All flags of a program, by each of their names."""

    by_name: dict[str, Flag]
    version: str = ""

    def find(self, name: str) -> Flag | None:
        """A flag by one of its names; underscores count as dashes, as in ``common/arg.cpp``."""
        return self.by_name.get(name.replace("_", "-") if name.startswith("--") else name)

    def by_env(self) -> dict[str, Flag]:
        """Those that an environment variable sets."""
        return {flag.env: flag for flag in self.by_name.values() if flag.env}

    @property
    def build(self) -> int:
        """The build number, 0 when the program does not tell it."""
        found = re.search(r"build (\d+)|version: (\d+) \(", self.version)
        return int(found[1] or found[2]) if found else 0


def ask_flags(bundle: Path, program: str, *, env: Mapping[str, str], home: Path) -> Flags:
    """Run a bundle's program with ``--help`` and ``--version``. Raises ServerError, ToolError."""
    path = find_program(bundle, program)
    clean = clean_environment(env, home=home)
    texts = [run((path, word), env=clean, timeout=_SECONDS, tail_lines=None).text for word in ("--help", "--version")]
    return Flags(by_name=parse_help(texts[0]).by_name, version=texts[1])


def parse_help(text: str) -> Flags:
    """Flags of a help text: their headings begin a line, or are indented by two as llama-bench does."""
    by_name: dict[str, Flag] = {}
    flag: Flag | None = None
    for line in text.splitlines():
        heading = _heading(line)
        if heading is not None:
            flag = _flag(heading)
        if flag is None:
            continue
        env = _ENV.search(line)
        if env:
            flag = Flag(flag.names, flag.values, flag.choices, env[1], flag.removed)
        if _REMOVED in line:
            flag = Flag(flag.names, flag.values, flag.choices, flag.env, line.strip()[line.strip().find(_REMOVED) :])
        by_name.update(dict.fromkeys(flag.names, flag))
    return Flags(by_name)


def _heading(line: str) -> str | None:
    indent = len(line) - len(line.lstrip())
    if indent > 2 or not line.lstrip().startswith("-") or line.lstrip().startswith(("- ", "---")):
        return None
    # The description begins after two spaces, but two spaces also pad a short name.
    body = line.strip()
    names = re.match(r"(?:-{1,2}[A-Za-z][\w.-]*(?:,\s*|\s+(?=-))?)+", body)
    end = names.end() if names else 0
    return body[:end] + body[end:].split("  ")[0]


def _flag(heading: str) -> Flag:
    names, at = [], 0
    while found := _NAME.match(heading, at):
        names.append(found[1])
        at = found.end()
    value = heading[at:].strip()
    if not value or value.startswith("("):
        return Flag(tuple(names), 0)
    listed = _CHOICES.match(value)
    inner = (listed[1] or listed[2]) if listed else ""
    choices = tuple(word for word in re.split(r"[|,]", inner) if word) if re.search(r"[|,]", inner) else ()
    if any(not re.fullmatch(r"[a-z0-9][a-z0-9+-]*", choice) for choice in choices) or "..." in value:
        choices = ()
    words = 2 if re.fullmatch(r"[A-Z]+ [A-Z]+", value) else 1
    return Flag(tuple(names), words, choices)
