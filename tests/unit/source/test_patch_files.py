"""Patch files: what they say, and what is said about damaged ones."""

from __future__ import annotations

import pytest

from llamabuild.core.errors import PatchError
from llamabuild.source.diff import parse_diff
from llamabuild.source.mail import parse_patch
from llamabuild.source.treepatch import check_path

DIFF = b"diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n"
HEAD = (
    b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
    b"From: Ada <ada@example.org>\nDate: Tue, 1 Sep 2026 10:00:00 +0200\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DIFF[:-5], "it ends inside hunk 1"),
        (DIFF.replace(b"+1,2", b"+1,5"), "it ends inside hunk 1"),
        (DIFF.replace(b"-two", b"*two"), "hunk 1 is not as long as its header says"),
        (DIFF.replace(b"+++ b/a.txt\n", b""), "--- without +++"),
        (b"@@ -1 +1 @@\n-a\n+b\n", "a hunk without a file header"),
        (b"diff --git a/x b/y\nindex 1..2\nGIT binary patch\n", "a binary patch without content"),
        (b"diff --git a/x b/x\nGIT binary patch\nliteral 3\nKcm\n\n", "a binary"),
        (b"hello\n", "holds no patch"),
    ],
)
def test_a_damaged_patch_is_told_with_its_place(text: bytes, said: str) -> None:
    with pytest.raises(PatchError) as caught:
        parse_patch(text, "x.patch")
    assert said in caught.value.message
    assert caught.value.message.startswith("x.patch")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("header", "subject"),
    [
        (b"Subject: [PATCH 03/47] server: a thing", "server: a thing"),
        (b"Subject: [PATCH] a subject that is\n folded over lines", "a subject that is folded over lines"),
        (b"Subject: =?UTF-8?q?Gr=C3=B6=C3=9Fe?= and\n =?UTF-8?q?_more?=", "Größe and more"),
        (b"Subject: =?ISO-8859-1?Q?caf=E9?=", "café"),
        (b"Subject: caf\xc3\xa9 raw", "café raw"),
        (b"Subject: caf\xe9 latin", "café latin"),
    ],
)
def test_subjects_with_any_character(header: bytes, subject: str) -> None:
    patch = parse_patch(HEAD + header + b"\n\nBody.\n---\n a.txt | 2 +-\n\n" + DIFF + b"-- \n2.39.5\n", "x.patch")
    assert patch.subject == subject
    assert patch.message == f"{subject}\n\nBody.\n"
    assert patch.author is not None
    assert (patch.author.name, patch.author.email, patch.author.offset) == ("Ada", "ada@example.org", 120)
    assert patch.author.when == 1788249600
    (file,) = patch.files
    assert file.hunks[0].new == (b"one\n", b"TWO\n")


def test_a_from_line_in_the_body_is_the_author() -> None:
    text = HEAD + b"Subject: x\n\nFrom: Bea <bea@example.org>\n\nWords.\n---\n" + DIFF
    patch = parse_patch(text, "x.patch")
    assert patch.author is not None
    assert patch.author.name == "Bea"
    assert patch.message == "x\n\nWords.\n"


def test_a_mail_saved_with_crlf_is_the_same_patch() -> None:
    text = HEAD + b"Subject: x\n\n---\n" + DIFF
    assert parse_patch(text.replace(b"\n", b"\r\n"), "x").files == parse_patch(text, "x").files
    # A patch of a file with such line ends keeps them.
    crlf = DIFF.replace(b"one\n", b"one\r\n").replace(b"two\n", b"two\r\n").replace(b"TWO\n", b"TWO\r\n")
    assert parse_patch(crlf, "x").files[0].hunks[0].old == (b"one\r\n", b"two\r\n")


def test_a_plain_diff_is_named_after_its_file() -> None:
    patch = parse_patch(b"words before\n" + DIFF, "patches/s/0001-do-it.diff")
    assert patch.subject == "0001-do-it"
    assert patch.author is None


def test_quoted_paths_and_paths_with_blanks() -> None:
    text = (
        b'diff --git "a/caf\\303\\251 \\"x\\"" "b/caf\\303\\251 \\"x\\""\nnew file mode 100755\n'
        b"diff --git a/two words b/two words\nold mode 100644\nnew mode 100755\n"
        b"diff --git a/old name b/new name\nsimilarity index 100%\nrename from old name\nrename to new name\n"
    )
    first, second, third = parse_diff(text, "x")
    assert (first.old_path, first.new_path) == (None, 'café "x"'.encode())
    assert (second.old_path, second.new_mode) == (b"two words", 0o100755)
    assert (third.old_path, third.new_path) == (b"old name", b"new name")


@pytest.mark.parametrize(
    "path",
    [b"../x", b"a/../../x", b"/etc/passwd", b".git/config", b"a/.GIT/hooks/x", b".git. /x", b"GIT~1/x", b"a\\..\\x",
     b"", b"a//b", b"./a", ".g\u200cit/config".encode(), b".git::$INDEX_ALLOCATION/x"],
)  # fmt: skip
def test_paths_that_leave_the_tree_are_refused(path: bytes) -> None:
    with pytest.raises(PatchError, match="not a path inside the tree"):
        check_path(path, "x.patch")


@pytest.mark.parametrize(
    "path", [b"a", b".github/x", b".gitignore", b"dir/.gitattributes", b"git/x", b"a..b", b"la\xff"]
)
def test_ordinary_paths_are_not(path: bytes) -> None:
    check_path(path, "x.patch")
