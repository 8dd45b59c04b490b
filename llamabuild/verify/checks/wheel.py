"""A Python wheel's own list of files (RECORD) is true."""

from __future__ import annotations

import base64
import csv
from typing import TYPE_CHECKING

from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import File, Subject

DIGEST = Kind(
    "wheel.digest",
    "error",
    "A file of the wheel is not the one that its RECORD lists: it was changed after the wheel was made.",
    "Fetch the wheel again.",
)
MISSING = Kind("wheel.file-missing", "error", "The wheel's RECORD lists a file that is not there.", "Fetch it again.")
UNLISTED = Kind(
    "wheel.file-unlisted",
    "warning",
    "The wheel holds a file that its RECORD does not list: pip installs it and never removes it.",
    "Make the wheel again.",
)
NOT_READ = Kind(
    "wheel.record-not-read",
    "error",
    "The wheel's RECORD could not be read, so nothing was held against it.",
    "Make it again.",
)

KINDS = (DIGEST, MISSING, UNLISTED, NOT_READ)

_UNLISTED_BY_RULE = ("/RECORD.jws", "/RECORD.p7s")
"""Signatures of RECORD itself (the wheel format leaves them out)."""


def check(subject: Subject) -> Iterator[Finding]:
    """Hold every file against each RECORD at the top, as PyPA's binary distribution format has it."""
    for path, file in subject.files.items():
        folder, _, name = path.rpartition("/")
        if name == "RECORD" and folder.endswith(".dist-info") and "/" not in folder:
            yield from _judge(subject, file)


def _judge(subject: Subject, record: File) -> Iterator[Finding]:
    try:
        with record.real.open(encoding="utf-8", newline="") as handle:
            rows = [row for row in csv.reader(handle) if row]
    except (UnicodeDecodeError, csv.Error) as exc:
        yield NOT_READ.at(record.path, f"{record.path} could not be read.", evidence=str(exc))
        return
    listed = {row[0]: row[1] if len(row) > 1 else "" for row in rows}
    for path, told in listed.items():
        file = subject.files.get(path)
        if file is None:
            if not path.startswith("../"):
                yield MISSING.at(path, f"{record.path} lists {path}, which is not there.")
        elif told.startswith("sha256=") and told.removeprefix("sha256=") != _encoded(file.sha256):
            yield DIGEST.at(path, f"{path} is not the file that {record.path} lists.", evidence=f"{told}")
    for path in subject.files:
        if path not in listed and not path.endswith(_UNLISTED_BY_RULE):
            yield UNLISTED.at(path, f"{path} is not listed in {record.path}.")


def _encoded(digest: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip("=")
