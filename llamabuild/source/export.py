"""A series as a reproducible archive of mail patches with an index page, which ``git am`` takes."""

from __future__ import annotations

import email.charset
import email.header
import gzip
import io
import re
import tarfile
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from llamabuild.core.errors import PatchError
from llamabuild.core.files import atomic_write
from llamabuild.recipe.load import load_series
from llamabuild.source.attempt import diff_text
from llamabuild.source.mirror import mirror_of, writing
from llamabuild.source.patch import TextChange, TreeChange
from llamabuild.source.patches import load_series_patches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.series import Series
    from llamabuild.source.mail import Author
    from llamabuild.source.patch import Patch

_EPOCH = "Mon Sep 17 00:00:00 2001"
"""The date that ``git format-patch`` gives every ``From`` line: it marks a patch, not a time."""


@dataclass(frozen=True)
class Mail:
    """One file of the archive."""

    name: str
    data: bytes


def export_series(name: str, out: Path, context: Context, *, beside: Path | None = None) -> tuple[str, ...]:
    """Write a series to ``out`` (``.tar.gz``) and return the names in it; the bytes depend on the patches alone.

    ``beside`` is the recipe file that asks for it.
    Raises RecipeError for the manifest, SourceError when a fork's commits cannot be had.
    """
    series, path = load_series(name, context, beside=beside)
    with writing(mirror_of(series.upstream, context), context) as repository:
        patches = load_series_patches(
            series, path, repository, context=context, upstream=lambda _since, _feature: False
        )
        mails = [Mail(_name(each), mail_of(repository, each)) for each in patches]
    members = [Mail("INDEX.md", index_page(series, patches).encode()), *mails]
    with atomic_write(out) as handle:
        handle.write(_archive(series.name, members))
    return tuple(each.name for each in members)


def mail_of(repository: pygit2.Repository, patch: Patch) -> bytes:
    """A patch as ``git format-patch`` writes it; a mail patch stays as it is."""
    change = patch.change
    if isinstance(change, TextChange):
        if patch.author is not None:
            return change.data
        text = change.data
    elif isinstance(change, TreeChange):
        text = diff_text(repository, change, renames=True)
    else:
        raise PatchError(f"Patch {patch.locked.id} is upstream's and was not fetched.", hint="Run without --offline.")
    commit = patch.locked.id if re.fullmatch(r"[0-9a-f]{40}", patch.locked.id) else "0" * 40
    subject, _, body = patch.message.partition("\n")
    head = [f"From {commit} {_EPOCH}".encode(), *_headers(subject, body, patch.author)]
    words = [body.strip("\n").encode()] if body.strip() else []
    return b"\n".join([*head, b"", *words, b"---", b"", text]) + b"-- \nllamabuild\n"


def index_page(series: Series, patches: Sequence[Patch]) -> str:
    """The index: every patch with group, switches and where it comes from."""
    lines = [f"# {series.name}", "", series.summary, ""]
    lines += ["Apply with `git am *.patch`, in the order of the numbers.", ""]
    lines += ["| patch | group | subject | switches | commit |", "|---|---|---|---|---|"]
    for each in patches:
        cells = [
            f"{each.number:04d}",
            each.locked.group,
            each.locked.subject,
            " ".join(f"`{switch}`" for switch in each.locked.switches),
            each.locked.id if isinstance(each.change, TreeChange) else "",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if series.flags:
        lines += ["", "In `llama-server --help` afterwards: " + ", ".join(f"`{flag}`" for flag in series.flags) + "."]
    return "\n".join(lines) + "\n"


def _name(patch: Patch) -> str:
    words = re.sub(r"[^A-Za-z0-9.]+", "-", patch.locked.subject).strip("-.")[:60].rstrip("-.")
    return f"{patch.number:04d}-{words or 'patch'}.patch"


def _headers(subject: str, body: str, author: Author | None) -> list[bytes]:
    name, address = (author.name, author.email) if author is not None else ("llamabuild", "llamabuild@localhost")
    zone = timezone(timedelta(minutes=author.offset if author is not None else 0))
    when = datetime.fromtimestamp((author.when if author is not None else None) or 0, zone)
    lines = [f"From: {_encoded(name, quoted=True)} <{address}>"]
    lines.append(f"Date: {when.strftime('%a, %d %b %Y %H:%M:%S %z')}")
    # A subject of its own brackets would lose them to ``git am``: it strips whatever stands in front in brackets.
    lines.append(f"Subject: [PATCH] {_encoded(subject)}")
    if not (subject + body + name).isascii():
        lines += ["MIME-Version: 1.0", "Content-Type: text/plain; charset=UTF-8", "Content-Transfer-Encoding: 8bit"]
    return [line.encode() for line in lines]


def _encoded(text: str, *, quoted: bool = False) -> str:
    if not text.isascii():
        charset = email.charset.Charset("utf-8")
        charset.header_encoding = email.charset.QP
        return email.header.Header(text, charset, maxlinelen=70).encode(linesep="\n")
    if quoted and re.search(r"[^\w\s'-]", text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _archive(name: str, members: Sequence[Mail]) -> bytes:
    out = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for member in sorted(members, key=lambda each: each.name):
            info = tarfile.TarInfo(f"{name}/{member.name}")
            info.size, info.mode = len(member.data), 0o644
            archive.addfile(info, io.BytesIO(member.data))
    return out.getvalue()
