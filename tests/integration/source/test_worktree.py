"""The work tree: whole, a real one, and kind to incremental builds."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import pytest
from makers import pin, use, write_recipe, write_series
from realgit import Git

from llamabuild.core.errors import SourceError
from llamabuild.source.apply import patched_source
from llamabuild.source.resolve import resolve
from llamabuild.source.worktree import check_out

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.core.context import Context
    from llamabuild.source.lock import PatchedSource

DIFF = b"--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n"


@pytest.fixture
def upstream(tmp_path: Path) -> Git:
    repository = Git.new(tmp_path / "llama.cpp")
    repository.write({"a.txt": "one\ntwo\n", "sub/b.txt": "b\r\n", "run.sh": "#!/bin/sh\n", "la\udcffn": b"\xff"})
    (repository.path / "run.sh").chmod(0o755)
    (repository.path / "link").symlink_to("a.txt")
    (repository.path / ".gitattributes").write_text("* text=auto eol=crlf\n")
    repository("add", "--all")
    repository("commit", "--quiet", "--message", "all kinds")
    return repository


@pytest.fixture
def sources(upstream: Git, context: Context) -> tuple[PatchedSource, PatchedSource]:
    """Without and with a patch."""
    write_series(context, "s", '[[part]]\nkind = "files"\nfiles = ["a.diff"]', files={"a.diff": DIFF})
    text = pin(upstream.path.as_uri(), upstream("rev-parse", "HEAD"), upstream.tree())
    plain, patched = write_recipe(context, "plain", text), write_recipe(context, "patched", text, series=use("s"))
    return tuple(patched_source(each, resolve(each, context), context) for each in (plain, patched))


def times(folder: Path) -> dict[str, int]:
    return {
        str(each.relative_to(folder)): each.lstat().st_mtime_ns
        for each in folder.rglob("*")
        if ".git" not in each.relative_to(folder).parts and not each.is_dir()
    }


def test_it_is_a_real_work_tree_with_one_commit_a_patch(sources, upstream: Git, context: Context, tmp_path) -> None:
    folder = check_out(sources[1], tmp_path / "out", context)
    git = Git(folder)
    assert git("rev-parse", "HEAD") == sources[1].commit
    assert git("log", "--format=%s").splitlines() == ["a", "master"]
    # Bytes are those of the tree, whatever attributes and configuration would make of them.
    assert (folder / "sub" / "b.txt").read_bytes() == upstream.run("show", "HEAD:sub/b.txt").stdout
    assert (folder / "a.txt").read_bytes() == b"one\nTWO\n"
    assert os.access(folder / "run.sh", os.X_OK)
    assert not os.access(folder / "a.txt", os.X_OK)
    assert (folder / "link").readlink().name == "a.txt"
    assert b"la\xffn" in {os.fsencode(each.name) for each in folder.iterdir()}
    hashed = {name: git("hash-object", "--no-filters", name) for name in ("a.txt", "sub/b.txt", "run.sh")}
    assert hashed == {name: git("rev-parse", f"HEAD:{name}") for name in hashed}


def test_an_update_touches_what_changed_alone(sources, context: Context, tmp_path) -> None:
    folder = check_out(sources[0], tmp_path / "out", context)
    (folder / "build").mkdir()
    (folder / "build" / "made.o").write_text("object")
    before = times(folder)
    check_out(sources[1], folder, context)
    after = times(folder)
    assert {name for name in before if before[name] != after[name]} == {"a.txt"}
    assert (folder / "a.txt").read_text() == "one\nTWO\n"
    assert (folder / "build" / "made.o").read_text() == "object"
    check_out(sources[1], folder, context)
    assert times(folder) == after
    assert Git(folder)("rev-parse", "HEAD") == sources[1].commit


def test_what_a_person_or_a_kill_left_wrong_is_put_right(sources, context: Context, tmp_path) -> None:
    folder = check_out(sources[1], tmp_path / "out", context)
    (folder / "a.txt").write_text("edited\n")
    (folder / "sub" / "b.txt").unlink()
    (folder / "run.sh").chmod(0o644)
    check_out(sources[1], folder, context)
    assert (folder / "a.txt").read_text() == "one\nTWO\n"
    assert (folder / "sub" / "b.txt").is_file()
    assert os.access(folder / "run.sh", os.X_OK)
    # Killed in the middle of an update: the marker says so, and half of the files are those of the other tree.
    marker = folder / ".git" / "llamabuild.json"
    known = json.loads(marker.read_text())
    marker.write_text(json.dumps({"commit": "", "files": known["files"] | {"gone.txt": []}}))
    (folder / "a.txt").write_text("one\ntwo\n")
    (folder / "gone.txt").write_text("of the other tree")
    check_out(sources[1], folder, context)
    assert (folder / "a.txt").read_text() == "one\nTWO\n"
    assert not (folder / "gone.txt").exists()


def test_a_folder_of_somebody_else_is_left_alone(sources, context: Context, tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(SourceError, match="not a work tree of llamabuild"):
        check_out(sources[0], tmp_path / "mine", context)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_tree_that_was_interrupted_at_first_is_nobodys(sources, context: Context, tmp_path, monkeypatch) -> None:
    import llamabuild.source.worktree as module

    def stop(*_: object) -> list[int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_write", stop)
    with pytest.raises(KeyboardInterrupt):
        check_out(sources[0], tmp_path / "out", context)
    assert not (tmp_path / "out").exists()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".out")] == []


def test_the_work_of_a_person_is_not_put_right(sources, context: Context, tmp_path) -> None:
    folder = check_out(sources[0], tmp_path / "out", context, standalone=True)
    (folder / "a.txt").write_text("my idea\n")
    with pytest.raises(SourceError, match=r"changed by hand: a\.txt"):
        check_out(sources[1], folder, context, standalone=True)
    assert (folder / "a.txt").read_text() == "my idea\n"


def test_it_reads_without_the_cache(sources, context: Context, tmp_path) -> None:
    """``source --to`` is for people: the history has to survive a cleared cache."""
    folder = check_out(sources[1], tmp_path / "out", context, standalone=True)
    moved = dataclasses.replace(context.home, root=tmp_path / "elsewhere")
    context.home.root.rename(moved.root)
    git = Git(folder)
    assert git("log", "--format=%s").splitlines() == ["a", "master"]
    assert git("fsck", "--full", "--no-dangling") == ""
