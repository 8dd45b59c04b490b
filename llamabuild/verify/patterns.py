"""What must not be inside a file: paths of the machine that built it, keys and tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.verify.subject import Hit

if TYPE_CHECKING:
    from collections.abc import Iterator

OVERLAP = 4096
"""Longest match in bytes: a path cannot be longer on Linux."""

_SOURCE_END = re.compile(rb"\.(?:c|cc|cpp|cxx|cu|cuh|h|hh|hpp|m|mm|comp|glsl|hip|o|a|f90|s|S)(?=[\x00:\"'\s)])")
"""Starts with a literal, which is what makes the search fast; the path in front is found backwards."""
_PATH_BEFORE = re.compile(rb"(?<![^\x00-\x20\"'(=,;<\[\x7f-\xff])(/(?!/)[!\x23-\x26\x28-\x7e]{2,1000})$")
_SYSTEM = (b"/usr/", b"/opt/", b"/lib/", b"/lib64/", b"/proc/", b"/sys/", b"/dev/", b"/etc/")
"""Places of the system and of toolkits: they tell which distribution built it, not whose folder it was."""

_SECRETS = (
    ("private key", re.compile(rb"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[\r\n]+[A-Za-z0-9+/=\r\n]{60}")),
    ("GitHub token", re.compile(rb"gh[pousr]_[A-Za-z0-9]{36}(?![A-Za-z0-9])")),
    ("GitHub token", re.compile(rb"github_pat_[A-Za-z0-9_]{60}")),
    ("Hugging Face token", re.compile(rb"hf_[A-Za-z]{34}(?![A-Za-z0-9])")),
    ("npm token", re.compile(rb"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])")),
    ("AWS key id", re.compile(rb"AKIA[0-9A-Z]{16}(?![A-Za-z0-9])")),
    ("Slack token", re.compile(rb"xox[abp]-[0-9]{8}[0-9A-Za-z-]{20}")),
)


@dataclass(frozen=True)
class Patterns:
    """What is searched for."""

    folders: tuple[bytes, ...] = ()
    """Folders of this machine that must not show: where recipes are built, the user's home."""
    searching: bool = True
    """Whether contents are searched at all."""

    def search(self, text: bytes, *, base: int) -> Iterator[Hit]:
        """Yield the hits in ``text``, which stands at byte ``base`` of its file."""
        for end in _SOURCE_END.finditer(text):
            found = _PATH_BEFORE.search(text, max(0, end.start() - 1000), end.end())
            if found and not found[1].startswith(_SYSTEM):
                yield Hit("build-path", found[1].decode("ascii"), base + found.start(1))
        for folder in self.folders:
            place = text.find(folder)
            if place >= 0:
                stop = next(
                    (at for at in range(place, min(len(text), place + 300)) if not 0x21 <= text[at] < 0x7F), place
                )
                yield Hit("build-path", text[place:stop].decode("ascii", errors="replace"), base + place)
        for what, pattern in _SECRETS:
            if match := pattern.search(text):
                yield Hit("secret", what, base + match.start())
