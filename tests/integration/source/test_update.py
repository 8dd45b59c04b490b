"""``resolve --update``: the only thing that moves a pin."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import pytest
from makers import write_series
from realgit import Git

from llamabuild.core.errors import SourceError, ToolError
from llamabuild.recipe.load import load_recipe
from llamabuild.source.resolve import lock_path, record_toolkit, resolve

if TYPE_CHECKING:
    from gitserver import GitServer

    from llamabuild.core.context import Context

RECIPE = """\
schema = 1
name = "r"  # kept
summary = "test"

# What is pinned.
[source]
repository = "{url}"
{ref}
{pins}
features = []
{series}
[targets.cpu]
backends = ["cpu"]
"""


@pytest.fixture
def upstream(server: GitServer) -> Git:
    repository = Git.new(server.root / "llama.cpp")
    for number in range(4):
        repository.commit({"f.txt": f"{number}\n"}, f"commit {number}")
    repository("tag", "--annotate", "v1", "--message", "one")
    repository("tag", "b1234")
    return repository


def write(context: Context, url: str, ref: str, pins: str = "", series: str = "") -> None:
    (context.cwd / "recipes").mkdir(exist_ok=True)
    text = RECIPE.format(url=url, ref=ref, pins=pins, series=series)
    (context.cwd / "recipes" / "r.toml").write_text(text)


def said(context: Context) -> str:
    return context.console.stream.getvalue()


def test_an_unpinned_recipe_gets_its_pins_from_the_tag(server: GitServer, upstream: Git, context: Context) -> None:
    write(context, server.of(upstream.path), 'ref = "v1"')
    lock = resolve(load_recipe("r", context), context, update=True)
    text = (context.cwd / "recipes" / "r.toml").read_text()
    source = tomllib.loads(text)["source"]
    assert source["commit"] == lock.commit == upstream("rev-parse", "v1^{commit}")
    assert source["tree"] == lock.tree == upstream.tree("v1")
    # The nightly tag on the same commit says the number; no history was fetched for it.
    assert source["build-number"] == 1234
    assert int(source["date"].timestamp()) == lock.date == int(upstream("log", "-1", "--format=%ct"))
    assert 'name = "r"  # kept' in text
    assert "# What is pinned." in text
    assert lock_path("r", context).is_file()
    # What was written is what plain resolve now takes.
    assert resolve(load_recipe("r", context), context) == lock


def test_what_a_toolkit_was_made_of_stays_in_the_written_lock(
    server: GitServer, upstream: Git, context: Context
) -> None:
    write(context, server.of(upstream.path), 'ref = "v1"')
    resolve(load_recipe("r", context), context, update=True)
    before = json.loads(lock_path("r", context).read_text())
    wheels = {"nvidia_cublas-13.0.0-py3-none-linux_x86_64.whl": "ab" * 32}
    record_toolkit("r", wheels, context)
    resolve(load_recipe("r", context), context)
    assert json.loads(lock_path("r", context).read_text()) == {**before, "toolkit_files": wheels}
    with pytest.raises(ToolError, match=r"nvidia_cublas-13\.0\.0.* is not the file that recipe r was built with"):
        record_toolkit("r", dict.fromkeys(wheels, "cd" * 32), context)
    # Another version's files take the place of these.
    newer = {"nvidia_cublas-13.1.0-py3-none-linux_x86_64.whl": "cd" * 32}
    record_toolkit("r", newer, context)
    assert json.loads(lock_path("r", context).read_text()) == {**before, "toolkit_files": newer}


def test_a_moved_branch_is_told_with_the_commits_in_between(server: GitServer, upstream: Git, context: Context) -> None:
    url = server.of(upstream.path)
    write(context, url, 'ref = "master"', f'commit = "{upstream("rev-parse", "master")}"  # why')
    resolve(load_recipe("r", context), context, update=True)
    old = upstream("rev-parse", "master")
    between = [upstream.commit({"f.txt": f"{number}\n"}, f"commit {number}") for number in (10, 11)]
    lock = resolve(load_recipe("r", context), context)
    assert lock.commit == old
    lock = resolve(load_recipe("r", context), context, update=True)
    assert lock.commit == between[1]
    # No nightly tag there: the history is counted.
    assert lock.build_number == 6
    assert f"source master: {old} -> {between[1]}" in said(context)
    assert f"{between[0][:9]} commit 10" in said(context)
    assert f"{between[1][:9]} commit 11" in said(context)
    assert "# why" in (context.cwd / "recipes" / "r.toml").read_text()


def test_a_force_pushed_pull_request_is_pinned_anew(server: GitServer, upstream: Git, context: Context) -> None:
    url = server.of(upstream.path)
    base = upstream("rev-parse", "master")
    upstream("update-ref", "refs/pull/5/head", upstream.commit({"p.txt": "one\n"}, "one"))
    old = upstream("rev-parse", "HEAD")
    upstream("reset", "--quiet", "--hard", base)
    write(context, url, "pr = 5", f'commit = "{old}"\ntree = "{upstream.tree(old)}"\nbuild-number = 5')
    new = upstream.commit({"p.txt": "two\n"}, "two")
    upstream("update-ref", "refs/pull/5/head", new)
    upstream("reset", "--quiet", "--hard", base)
    lock = resolve(load_recipe("r", context), context, update=True)
    assert lock.commit == new
    assert lock.tree == upstream.tree(new)
    assert f"source pull request 5: {old} -> {new}" in said(context)


def test_pull_requests_of_series_move_with_it(server: GitServer, upstream: Git, context: Context) -> None:
    url = server.of(upstream.path)
    base = upstream("rev-parse", "master")
    heads = []
    for text in ("one\n", "two\n"):
        heads.append(upstream.commit({"p.txt": text}, text.strip()))
        upstream("reset", "--quiet", "--hard", base)
    upstream("update-ref", "refs/pull/5/head", heads[1])
    manifest = write_series(
        context, "s", f'[[part]]\nkind = "pr"\nrepository = "{url}"\npr = 5\ncommit = "{heads[0]}"\nsubject = "five"'
    )
    write(context, url, 'ref = "v1"', series='[[series]]\nname = "s"')
    lock = resolve(load_recipe("r", context), context, update=True)
    assert [each.id for each in lock.patches] == [heads[1]]
    assert f'commit = "{heads[1]}"' in manifest.read_text()


def test_a_tag_that_is_gone_is_said(server: GitServer, upstream: Git, context: Context) -> None:
    write(context, server.of(upstream.path), 'ref = "v2"')
    with pytest.raises(SourceError, match="has no v2") as caught:
        resolve(load_recipe("r", context), context, update=True)
    assert caught.value.exit_code == 3
