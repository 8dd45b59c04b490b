"""What is known when a command line is judged, and the rules' common shape."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.verify.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llamabuild.runtime.command_line import CommandLine
    from llamabuild.runtime.gguf_model import Model
    from llamabuild.runtime.help_flags import Flags


@dataclass(frozen=True)
class Case:
    """A command line beside the build, the models and the machine; None where something is not known."""

    line: CommandLine
    flags: Flags
    model: Model | None = None
    draft: Model | None = None
    problems: tuple[tuple[str, str], ...] = ()
    """Model files that could not be read: the flag and why."""
    devices: tuple[str, ...] | None = None
    """Names as ``--list-devices`` gives them."""
    symbols: frozenset[str] | None = None
    """Those of `PROBED` that the build's libraries have."""
    atomics: bool | None = None
    """Whether every GPU's link has PCIe atomics enabled."""

    @property
    def used(self) -> tuple[str, ...] | None:
        """The devices that the target uses: ``--device``, else all; None when neither is known."""
        given = self.line.value("--device")
        if given and given != "none":
            return tuple(re.split(r"[,/]", given))
        return self.devices

    @property
    def several(self) -> bool:
        """Whether the target certainly uses more than one device."""
        shares = self.line.value("--tensor-split") or ""
        return len(self.used or ()) > 1 or len([share for share in re.split(r"[,/]", shares) if share]) > 1

    @property
    def split_mode(self) -> str:
        """``layer`` unless another is given."""
        return self.line.value("--split-mode") or "layer"

    @property
    def drafts(self) -> bool:
        """Whether a drafter is given."""
        return self.line.has("--spec-draft-model") or self.line.has("--spec-draft-hf")

    @property
    def context(self) -> int:
        """Positions of all slots together; 0 when it is not known."""
        return self.line.number("--ctx-size") or (self.model.context if self.model else 0)


PROBED = ("llama_model_get_split_mode", "common_speculative_is_block_draft", "llama_model_dflash_selector_top_k")
"""Exported names that show a feature in the libraries: the first two the dflash2-tensor series, the last DFlash2."""


@dataclass(frozen=True)
class Rule:
    """A judgement of one kind: what is looked for, where that comes from, and what would show it wrong."""

    name: str
    severity: Severity
    source: str
    disproof: str
    look: Callable[[Case], Iterator[tuple[str, str, str]]]
    """Yields message, evidence and hint of each finding."""

    def findings(self, case: Case) -> Iterator[Finding]:
        """Apply the rule."""
        for message, evidence, hint in self.look(case):
            yield Finding(self.name, self.severity, "", message, evidence, f"{hint} [source: {self.source}]")
