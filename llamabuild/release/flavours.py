"""Flavours: which targets and archs of a recipe a release is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError
from llamabuild.recipe.toml import read_document
from llamabuild.release.schemas import schema_problems

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Flavour:
    """One target for one arch, with what a CI job needs to build it."""

    target: str
    arch: str = ""
    """Empty: the recipe's own for this target."""
    runs_on: str = ""
    """A runner label; empty: chosen from the backends."""
    toolkit: str = ""
    """As ``--cuda-toolkit`` takes it; empty: the one of the host."""
    packages: tuple[str, ...] | None = None
    """Distribution packages that the job installs first; None: chosen from the backends."""

    @property
    def name(self) -> str:
        """``<target>[-<arch>]``: what stands in the names of the release's files."""
        return flavour_name(self.target, self.arch)


def flavour_name(target: str, arch: str) -> str:
    """``<target>[-<arch>]``, as it stands in the names of bundles and archives."""
    return f"{target}-{arch}" if arch else target


def read_flavours(values: Sequence[str], cwd: Path) -> tuple[Flavour, ...]:
    """Read every ``--flavour``: a TOML file's path, ``TARGET``, or ``TARGET:ARCH``, in the order given.

    Raises UsageError for a file that cannot be read or is not valid (all its errors at once), and for a flavour that
    is there twice.
    """
    found: list[Flavour] = []
    for value in values:
        if value.endswith(".toml") or "/" in value:
            found.extend(_from_file(cwd / value))
        else:
            target, _, arch = value.partition(":")
            if not target:
                raise UsageError(
                    f"--flavour {value!r} names no target.", hint="Write TARGET or TARGET:ARCH, such as cuda:86."
                )
            found.append(Flavour(target=target, arch=arch))
    names = [flavour.name for flavour in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"The flavour {name} is asked for {names.count(name)} times.", hint="Name each flavour once."
            )
    return tuple(found)


def _from_file(path: Path) -> list[Flavour]:
    document = read_document(path)
    problems = schema_problems(document.values, "flavours-1")
    if problems:
        lines = [f"{path}:{document.line_of(problem.where)}: {problem}" for problem in problems]
        raise UsageError(
            lines[0],
            hint="A list of flavours has schema = 1 and a [[flavour]] with its target for each one; "
            "ci/flavours.toml is one.",
            details=tuple(lines[1:]),
        )
    return [
        Flavour(
            target=entry["target"],
            arch=entry.get("arch", ""),
            runs_on=entry.get("runs-on", ""),
            toolkit=entry.get("toolkit", ""),
            packages=tuple(entry["packages"]) if "packages" in entry else None,
        )
        for entry in document.values["flavour"]
    ]
