"""What looking for a tool gives: the tool, or what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.build.model import Tool

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.build.host import Host

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_ERROR = re.compile(r"error|cannot find|undefined|not supported|fatal", re.IGNORECASE)


@dataclass(frozen=True)
class Problem:
    """Something a target needs and this host lacks."""

    tool: str
    message: str
    package: str
    """Key for ``install_line``."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """What looking for a part of a toolchain gave."""

    tools: tuple[Tool, ...] = ()
    problems: tuple[Problem, ...] = ()
    entries: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    runtime_folders: tuple[Path, ...] = ()
    checksums: tuple[tuple[str, str], ...] = ()

    def path_of(self, name: str) -> Path | None:
        """The path of the tool of that name, where it was found."""
        return next((tool.path for tool in self.tools if tool.name == name), None)


def find_tool(name: str, *programs: str, host: Host, argument: str = "--version") -> Tool | None:
    """The first of ``programs`` that is there and says a version; ``name`` is what it is called from then on."""
    for program in programs or (name,):
        path = host.which(program)
        done = host.run([str(path), argument]) if path else None
        if path and done and done.ok:
            found = _VERSION.search(done.text)
            return Tool(name=name, path=path, version=found[0] if found else "unknown")
    return None


def first_errors(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of a tool's output that say what is wrong, three at most."""
    errors = tuple(line.strip() for line in lines if _ERROR.search(line))
    return (errors or lines)[:3]
