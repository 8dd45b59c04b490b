"""The answer of ``inspect``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

State = Literal["on", "off", "ignored"]


@dataclass(frozen=True)
class Backend:
    """One backend of ggml."""

    state: State
    """``ignored``: asked for by a name that the tree does not read."""
    option: str = ""
    """What decided it: a cache entry, a file, a symbol."""
    kind: Literal["plugin", "linked", ""] = ""
    """Opened at run time, or linked in; empty where it is not known or not on."""
    note: str = ""


@dataclass(frozen=True)
class Ignored:
    """An option that was given and that the tree did not take."""

    name: str
    value: str
    suggestion: str | None
    """The name that this tree reads instead; None where there is none."""
    note: str = ""


@dataclass(frozen=True)
class Inspection:
    """What can be told about one path. ``None`` and empty: not told by what is there."""

    subject: str
    kind: Literal["cmake-cache", "build", "bundle", "archive", "elf"]
    backends: Mapping[str, Backend] = field(default_factory=dict)
    archs: tuple[str, ...] = ()
    """As asked for, or as embedded where there are only binaries."""
    native: bool | None = None
    native_from: str = ""
    """Where ``native`` was read: ``compile commands``, ``cache``."""
    rccl: bool | None = None
    nccl: bool | None = None
    missing_tools: tuple[str, ...] = ()
    ignored_options: tuple[Ignored, ...] = ()
    leftovers: tuple[str, ...] = ()
    """Traces of an earlier configure that no longer mean anything, one sentence each."""
    disagreements: tuple[str, ...] = ()
    """Where two sources contradict each other, one sentence each."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Build type, generator, compilers, toolkit, source, commit, …: keys of the JSON document as they are."""

    def to_json(self) -> dict[str, Any]:
        """The document that ``inspect --json`` prints."""
        return {
            "schema": 1,
            "kind": self.kind,
            "subject": self.subject,
            "backends": {
                name: {
                    "state": backend.state,
                    **{
                        key: value
                        for key, value in (("option", backend.option), ("kind", backend.kind), ("note", backend.note))
                        if value
                    },
                }
                for name, backend in self.backends.items()
            },
            "archs": list(self.archs),
            "native": self.native,
            "native_from": self.native_from or None,
            "rccl": self.rccl,
            "nccl": self.nccl,
            "missing_tools": list(self.missing_tools),
            "ignored_options": [
                {"name": each.name, "value": each.value, "suggestion": each.suggestion, "note": each.note}
                for each in self.ignored_options
            ],
            "leftovers": list(self.leftovers),
            "disagreements": list(self.disagreements),
            **self.details,
        }
