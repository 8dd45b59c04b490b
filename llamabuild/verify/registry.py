"""Every kind of finding, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.verify import policy, provenance_kinds, unpack
from llamabuild.verify.checks import (
    closure,
    content,
    device_code,
    elf_hygiene,
    features,
    floors,
    links,
    metadata,
    programs,
    search_paths,
    symbols,
    tensile,
    wheel,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llamabuild.verify.kinds import Kind

_SECTIONS = (
    ("The archive", unpack.KINDS),
    ("Metadata", metadata.KINDS),
    ("Python wheels", wheel.KINDS),
    ("Links", links.KINDS),
    ("Search paths", search_paths.KINDS),
    ("Dependencies", (*closure.KINDS, *symbols.KINDS)),
    ("Version floors", floors.KINDS),
    ("ELF files", elf_hygiene.KINDS),
    ("Programs and plugins", programs.KINDS),
    ("Features", features.KINDS),
    ("Device code", device_code.KINDS),
    ("Kernel libraries", tensile.KINDS),
    ("Content", content.KINDS),
    ("A release's provenance", provenance_kinds.KINDS),
    ("The verification itself", policy.KINDS),
)


_PREAMBLE = (
    "Each finding has a name that stays, a severity, the file, the evidence and what to do. Errors fail the "
    "verification (exit code 1); warnings do with `--strict`; notes never do. `--allow NAME=REASON` turns the findings "
    "of one name into notes that carry the reason. A check that could not run has a finding of its own, so that "
    "silence always means that something was looked at."
)


def all_kinds() -> Mapping[str, Kind]:
    """Name → kind."""
    return {kind.name: kind for _, kinds in _SECTIONS for kind in kinds}


def sections() -> tuple[tuple[str, tuple[Kind, ...]], ...]:
    """The kinds in the order of the page that explains them."""
    return _SECTIONS


def docs_page() -> str:
    """The page that explains every finding, in Markdown."""
    lines = ["# What `llamabuild verify` finds", "", _PREAMBLE, ""]
    for title, kinds in _SECTIONS:
        lines += [f"## {title}", ""]
        for kind in kinds:
            lines += [f"### `{kind.name}` ({kind.severity})", "", kind.meaning, "", f"What to do: {kind.action}", ""]
    return "\n".join(lines)
