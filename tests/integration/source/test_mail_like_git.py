"""Generated mails: subject, author and message are those that ``git mailinfo`` reads."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from realgit import Git

from llamabuild.source.mail import parse_patch

if TYPE_CHECKING:
    from collections.abc import Iterator

WORDS = st.text(st.sampled_from("abcXYZ 019 []():;,.|'\"`\\/-_#*=?éßж漢🙂"), min_size=1, max_size=90)
# git takes the address for the name where that is longer than 60 bytes or looks like an address; an open bracket or
# quote that is not closed makes it read past the end of its buffer.
NAMES = st.text(st.sampled_from("abc XYZ.,[]'éß漢"), min_size=1, max_size=18)
DIFF = b"diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.fixture(scope="module")
def git() -> Iterator[Git]:
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        repository = Git.new(Path(folder) / "bench")
        repository.commit({"a.txt": "a\n"}, "a")
        repository.commit({"a.txt": "b\n"}, "b")
        yield repository


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(subject=WORDS, body=st.lists(WORDS, max_size=4), name=NAMES)
def test_generated_mails_are_read_as_git_reads_them(git: Git, subject: str, body: list[str], name: str) -> None:
    # Lines that end the message for git itself.
    assume(not any(line.startswith(("---", "diff -", "Index: ", "-- ")) or line == "-- " for line in body))
    author = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": "x@example.org"}
    text = "\n".join([subject.strip(), "", *body]).encode()
    made = git.run("commit-tree", "HEAD^{tree}", "-p", "HEAD~1", data=text, env=author)
    assume(made.returncode == 0)
    commit = made.stdout.decode().strip()
    mail = git.run("format-patch", "-1", "--stdout", commit).stdout
    info = git.run("mailinfo", ".git/message", ".git/diff", data=mail).stdout.decode()
    fields = dict(line.split(": ", 1) for line in info.splitlines() if ": " in line)
    assume(fields.get("Subject"))
    message = (git.path / ".git" / "message").read_text().strip()
    ours = parse_patch(mail, "x.patch")
    assert ours.subject == fields["Subject"]
    assert ours.message.partition("\n")[2].strip() == message
    assert ours.author is not None
    assert (ours.author.name, ours.author.email) == (fields["Author"], fields["Email"])
