"""A patch file as a commit: subject, author and message out of ``git format-patch`` mail, or of a plain diff's name."""

from __future__ import annotations

import email
import email.header
import email.utils
import re
from dataclasses import dataclass
from email import policy
from typing import TYPE_CHECKING

from llamabuild.core.errors import PatchError
from llamabuild.source.diff import parse_diff

if TYPE_CHECKING:
    from email.message import Message

    from llamabuild.source.diff import FileDiff

_PREFIX = re.compile(r"^(\s*(\[[^\]]*\]|re:)\s*)+", re.IGNORECASE)
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
    mail = email.message_from_bytes(re.sub(rb"^From [^\n]*\n", b"", head) + b"\n\n", policy=policy.compat32)
    body = _decoded(mail, body)
    subject = _header(mail, "Subject")
    subject = _PREFIX.sub("", re.sub(r"\s*\n\s*", " ", subject)).strip() or name
    end = _BODY_END.search(body)
    text = _text(body[: end.start()] if end else body).strip()
    author, text = _author(mail, text)
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


def _decoded(mail: Message, body: bytes) -> bytes:
    kind = str(mail.get("Content-Transfer-Encoding", "")).strip().lower()
    if kind == "quoted-printable":
        import quopri

        return quopri.decodestring(body)
    if kind == "base64":
        import base64

        return base64.b64decode(body)
    return body


def _header(mail: Message, key: str) -> str:
    value = mail.get(key)
    if value is None:
        return ""
    parts = []
    for part, charset in email.header.decode_header(value):
        if isinstance(part, str):
            parts.append(part)
            continue
        try:
            parts.append(part.decode(charset if charset and charset != "unknown-8bit" else "utf-8"))
        except (LookupError, UnicodeDecodeError):
            parts.append(_text(part))
    return "".join(parts)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _author(mail: Message, text: str) -> tuple[Author | None, str]:
    """The author: a ``From:`` line that begins the body wins over the mail's own sender, as in ``git mailinfo``."""
    sender = _header(mail, "From")
    if text.startswith("From: "):
        sender, _, text = text.removeprefix("From: ").partition("\n")
        text = text.lstrip("\n")
    who, address = email.utils.parseaddr(sender.encode(errors="surrogateescape").decode(errors="replace"))
    if not who and not address:
        return None, text
    when, offset = None, 0
    stamp = email.utils.parsedate_tz(_header(mail, "Date"))
    if stamp is not None:
        when, offset = email.utils.mktime_tz(stamp), (stamp[9] or 0) // 60
    return Author(who or address, address or "unknown", when, offset), text
