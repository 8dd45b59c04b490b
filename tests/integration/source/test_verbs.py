"""``recipes``, ``resolve`` and ``source`` as processes: output, exit codes, two at once, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from makers import pin, use, write_recipe, write_series
from realgit import Git

from llamabuild.source.mirror import has_tree, mirror_of

if TYPE_CHECKING:
    from gitserver import GitServer

    from llamabuild.core.context import Context

DIFF = b"--- a/f.txt\n+++ b/f.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n"


@pytest.fixture
def upstream(server: GitServer) -> Git:
    repository = Git.new(server.root / "llama.cpp")
    repository.commit({"f.txt": "one\ntwo\n", **{f"{number}.bin": os.urandom(2000) for number in range(50)}}, "base")
    return repository


@pytest.fixture
def recipe(server: GitServer, upstream: Git, context: Context) -> str:
    write_series(context, "s", '[[part]]\nkind = "files"\nfiles = ["a.diff"]', files={"a.diff": DIFF})
    url = server.of(upstream.path)
    write_recipe(context, "r", pin(url, upstream("rev-parse", "master"), upstream.tree()), series=use("s"))
    return url


def start(context: Context, *words: str, largest_file: int | None = None) -> subprocess.Popen[str]:
    env = {**context.env, "LLAMABUILD_HOME": str(context.home.root), "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "llamabuild", *words]
    if largest_file is not None:
        limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file}, {largest_file}))"
        code = f"import resource, runpy; {limit}; runpy.run_module('llamabuild', run_name='__main__', alter_sys=True)"
        argv[1:3] = ["-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(argv, cwd=context.cwd, env=env, text=True, start_new_session=True, **pipes)


def run(context: Context, *words: str) -> tuple[int, str, str]:
    process = start(context, *words)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_resolve_prints_the_lock_that_it_writes(recipe: str, upstream: Git, context: Context) -> None:
    code, out, _ = run(context, "resolve", "--recipe", "r")
    assert code == 0
    lock = json.loads(out)
    assert lock["schema"] == 1
    assert lock["tree"] == upstream.tree()
    assert [each["id"] for each in lock["patches"]] == ["a.diff"]
    assert json.loads((context.home.root / "resolved" / "r.json").read_text()) == lock


def test_source_says_what_became_of_each_patch(recipe: str, context: Context) -> None:
    code, out, err = run(context, "source", "--recipe", "r", "--to", "tree", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["patches"] == [{"id": "a.diff", "subject": "a", "state": "applied", "note": ""}]
    assert Git(context.cwd / "tree")("rev-parse", "HEAD") == document["commit"]
    assert (context.cwd / "tree" / "f.txt").read_text() == "one\nTWO\n"


def test_two_at_once_come_to_the_same(recipe: str, context: Context) -> None:
    both = [start(context, "source", "--recipe", "r", "--to", "tree") for _ in range(2)]
    said = [each.communicate(timeout=60) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert said[0][0].splitlines()[:2] == said[1][0].splitlines()[:2]
    assert Git(context.cwd / "tree")("status", "--porcelain") == ""


def test_an_interrupt_ends_with_130_and_the_next_run_finishes(
    recipe: str, server: GitServer, upstream: Git, context: Context
) -> None:
    server.stalled = threading.Event()
    process = start(context, "source", "--recipe", "r")
    deadline = time.monotonic() + 30
    while not any("POST" in each for each in server.requests) and time.monotonic() < deadline:
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert time.monotonic() - began < 10
    server.stalled.set()
    server.stalled = None
    code, _, err = run(context, "source", "--recipe", "r")
    assert code == 0, err
    import pygit2

    assert has_tree(pygit2.Repository(str(mirror_of(recipe, context).path)), upstream.tree())


@pytest.mark.parametrize("size", [2_000, 20_000, 60_000])
def test_a_disk_that_is_full_is_said_and_leaves_nothing_half_written(
    recipe: str, upstream: Git, context: Context, size: int
) -> None:
    """A limit on the size of a file fails writes in the same places as a full disk, without needing one."""
    process = start(context, "source", "--recipe", "r", "--to", "tree", largest_file=size)
    _, err = process.communicate(timeout=60)
    assert process.returncode in {2, 3}, err
    assert "error: " in err
    assert "Traceback" not in err
    assert not (context.cwd / "tree").exists()
    code, _, err = run(context, "source", "--recipe", "r", "--to", "tree")
    assert code == 0, err
    assert Git(context.cwd / "tree")("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("recipes", "show"), 2, "needs a recipe"),
        (("recipes", "show", "rr"), 2, 'did you mean "r"'),
        (("resolve", "--recipe", "nowhere.toml"), 2, "There is no recipe file"),
        (("source", "--recipe", "r", "--offline"), 3, "--offline"),
        (("source", "--recipe", "r", "--to", "recipes"), 3, "not a work tree of llamabuild"),
    ],
)
def test_bad_input_is_one_sentence_and_its_code(recipe: str, context: Context, words, code: int, said: str) -> None:
    found, out, err = run(context, *words)
    assert (found, out) == (code, "")
    assert err.splitlines()[0].startswith("error: ") or "error: " in err
    assert said in err
    assert "hint: " in err
    assert "Traceback" not in err


def test_recipes_can_be_listed_and_shown(recipe: str, context: Context) -> None:
    code, out, _ = run(context, "recipes", "list", "--json")
    assert code == 0
    names = {each["name"]: each["valid"] for each in json.loads(out)["recipes"]}
    assert names["r"] is True
    assert names["dflash2-2026-09"] is True
    code, out, _ = run(context, "recipes", "show", "r", "--json")
    assert json.loads(out)["recipe"]["source"]["build-number"] == 5
    code, out, _ = run(context, "recipes", "show", "r")
    assert (context.cwd / "recipes" / "r.toml").read_text().strip() in out
