"""A patch file as a commit: subject, author and message out of ``git format-patch`` mail, or of a plain diff's name."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import quopri
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.errors import PatchError
from llamabuild.source.diff import parse_diff

if TYPE_CHECKING:
    from llamabuild.source.diff import FileDiff

_PREFIX = re.compile(r"^(?:re:|[ \t:]|\[[^\]]*\])+", re.IGNORECASE)
"""What ``git mailinfo`` takes off the front of a subject."""
_ENCODED = re.compile(rb"=\?([^?\s]+)\?([bBqQ])\?([^?]*)\?=")
_ADDRESS = re.compile(r"^(.*?)\s*<([^<>]*)>\s*$", re.DOTALL)
_BODY_END = re.compile(rb"^(---\s*$|diff --git |Index: |--- .+\n\+\+\+ )", re.MULTILINE)


@dataclass(frozen=True)
class Author:
    """Who wrote a patch, and when (seconds since the epoch, minutes east of UTC)."""

    name: str
    email: str
    when: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class PatchFile:
    """A patch file's content."""

    name: str
    subject: str
    message: str
    """The whole commit message."""
    author: Author | None
    """None for a plain diff."""
    files: tuple[FileDiff, ...]


def parse_patch(data: bytes, name: str) -> PatchFile:
    """Read a mail patch or a plain diff.

    A file whose every line ends in CR LF (a mail that was saved on Windows) is read without the CRs, as ``git am``
    does; a patch of a file with CR LF lines keeps them.

    Raises PatchError for text that is damaged or changes nothing.
    """
    if b"\r\n" in data and not re.search(rb"(?<!\r)\n", data):
        data = data.replace(b"\r\n", b"\n")
    if not re.match(rb"(From |From: |Subject: |Date: )", data):
        files = _diffs(data, name)
        subject = name.rsplit("/", 1)[-1].removesuffix(".diff").removesuffix(".patch")
        return PatchFile(name=name, subject=subject, message=f"{subject}\n", author=None, files=files)
    head, _, body = data.partition(b"\n\n")
    headers = _headers(head)
    body = _decoded(headers.get("content-transfer-encoding", ""), body)
    subject = " ".join(_PREFIX.sub("", headers.get("subject", "")).split()) or name
    end = _BODY_END.search(body)
    text = _text(body[: end.start()] if end else body).strip()
    author, text = _author(headers, text)
    message = f"{subject}\n\n{text}\n" if text else f"{subject}\n"
    return PatchFile(name=name, subject=subject, message=message, author=author, files=_diffs(body, name))


def _diffs(text: bytes, name: str) -> tuple[FileDiff, ...]:
    # The signature that format-patch ends a mail with is two hyphens and a blank: the hunk before it is complete by
    # then, so the parser passes over it.
    files = parse_diff(text, name)
    if not files:
        raise PatchError(
            f"{name} holds no patch.", hint="A patch is a unified diff, as git diff or git format-patch write it."
        )
    return files


def _headers(head: bytes) -> dict[str, str]:
    """The headers of a mail by name in lower case, unfolded and decoded."""
    lines = re.sub(rb"\n[ \t]+", b" ", head).split(b"\n")
    pairs = (line.partition(b":") for line in lines if not line.startswith(b"From "))
    return {name.decode(errors="replace").lower(): _words(value.strip()) for name, _, value in pairs}


def _words(value: bytes) -> str:
    """A header's text; encoded words (RFC 2047) may be split inside a character, so neighbours are joined first."""
    # Blanks between two encoded words are no part of the text.
    value = re.sub(rb"(\?=)\s+(?==\?)", rb"\1", value)
    parts: list[tuple[str, bytes]] = []
    at = 0
    for match in _ENCODED.finditer(value):
        parts.append(("", value[at : match.start()]))
        charset, kind, data = match.group(1).decode().lower(), match.group(2).lower(), match.group(3)
        decoded = base64.b64decode(data) if kind == b"b" else quopri.decodestring(data, header=True)
        if parts[-1] == ("", b"") and len(parts) > 1 and parts[-2][0] == charset:
            parts[-2:] = [(charset, parts[-2][1] + decoded)]
        else:
            parts.append((charset, decoded))
        at = match.end()
    parts.append(("", value[at:]))
    return "".join(_text(data, charset) for charset, data in parts)


def _decoded(encoding: str, body: bytes) -> bytes:
    kind = encoding.strip().lower()
    if kind == "quoted-printable":
        return quopri.decodestring(body)
    return base64.b64decode(body) if kind == "base64" else body


def _text(data: bytes, charset: str = "") -> str:
    for each in (charset, "utf-8"):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return data.decode(each or "utf-8")
    return data.decode("latin-1")


def _author(headers: dict[str, str], text: str) -> tuple[Author | None, str]:
    """The author: a ``From:`` line that begins the body wins over the mail's own sender, as in ``git mailinfo``."""
    sender = headers.get("from", "")
    if text.startswith("From: "):
        sender, _, text = text.removeprefix("From: ").partition("\n")
        text = text.lstrip("\n")
    match = _ADDRESS.match(sender)
    name, address = (match.group(1), match.group(2)) if match else ("", sender)
    if name.startswith('"') and name.endswith('"') and len(name) > 1:
        name = re.sub(r"\\(.)", r"\1", name[1:-1])
    name, address = " ".join(name.split()), address.strip()
    if not name and not address:
        return None, text
    when, offset = None, 0
    stamp = email.utils.parsedate_tz(headers.get("date", ""))
    if stamp is not None:
        when, offset = email.utils.mktime_tz(stamp), (stamp[9] or 0) // 60
    return Author(name or address, address or "unknown", when, offset), text
