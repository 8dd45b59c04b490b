"""Sources from a real git server: pins, pull requests, force-pushes, cut connections, hosts that are not there."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pygit2
import pytest
from makers import pin, use, write_recipe, write_series
from realgit import Git

from llamabuild.core.errors import PatchError, RecipeError, SourceError
from llamabuild.source.apply import patched_source
from llamabuild.source.mirror import has_tree, mirror_of
from llamabuild.source.resolve import resolve
from llamabuild.source.worktree import check_out

if TYPE_CHECKING:
    from gitserver import GitServer

    from llamabuild.core.context import Context

ALLOW = "uploadpack.allowAnySHA1InWant"


@pytest.fixture
def upstream(server: GitServer) -> Git:
    """Ten commits on master, tag v1 (annotated) on the eighth, pull request 7 on the fifth."""
    repository = Git.new(server.root / "llama.cpp")
    for number in range(10):
        repository.commit(
            {"f.txt": "".join(f"{number} {line}\n" for line in range(50)), f"{number}.txt": "x"}, f"c{number}"
        )
    repository("tag", "--annotate", "v1", "--message", "one", "HEAD~2")
    repository("tag", "b8", "HEAD~2")
    repository("checkout", "--quiet", "-b", "pr", "HEAD~5")
    head = repository.commit({"pr.txt": "pull\n"}, "pull request")
    repository("update-ref", "refs/pull/7/head", head)
    repository("checkout", "--quiet", "master")
    repository("branch", "--quiet", "-D", "pr")
    return repository


def history_of(context: Context, url: str, commit: str) -> int:
    return int(Git(mirror_of(url, context).path)("rev-list", "--count", commit))


def test_only_the_pinned_commit_is_fetched_where_the_server_hands_it_out(
    server: GitServer, upstream: Git, context: Context
) -> None:
    upstream("config", ALLOW, "true")
    url = server.of(upstream.path)
    commit, tree = upstream("rev-parse", "master~4"), upstream.tree("master~4")
    recipe = write_recipe(context, "r", pin(url, commit, tree))
    patched = patched_source(recipe, resolve(recipe, context), context)
    assert patched.tree == tree
    assert patched.provider == "git"
    assert history_of(context, url, commit) == 1


@pytest.mark.parametrize("ref", ['ref = "master"', 'ref = "v1"', "pr = 7"])
def test_a_server_that_hands_out_refs_alone_is_asked_for_the_ref(
    server: GitServer, upstream: Git, context: Context, ref: str
) -> None:
    name = {'ref = "master"': "master", 'ref = "v1"': "v1^{commit}", "pr = 7": "refs/pull/7/head"}[ref]
    url = server.of(upstream.path)
    commit, tree = upstream("rev-parse", name), upstream.tree(name)
    recipe = write_recipe(context, "r", pin(url, commit, tree, ref=ref))
    assert patched_source(recipe, resolve(recipe, context), context).tree == tree
    assert history_of(context, url, commit) == 1


def test_a_branch_that_moved_on_still_leads_to_the_pin(server: GitServer, upstream: Git, context: Context) -> None:
    url = server.of(upstream.path)
    commit, tree = upstream("rev-parse", "master~4"), upstream.tree("master~4")
    recipe = write_recipe(context, "r", pin(url, commit, tree))
    assert patched_source(recipe, resolve(recipe, context), context).tree == tree


def test_a_recipe_without_tree_and_date_takes_those_of_its_commit(
    server: GitServer, upstream: Git, context: Context
) -> None:
    url = server.of(upstream.path)
    commit = upstream("rev-parse", "master")
    recipe = write_recipe(context, "r", pin(url, commit, None, date=None))
    lock = resolve(recipe, context)
    assert lock.tree == upstream.tree("master")
    assert lock.date == int(upstream("log", "-1", "--format=%ct", "master"))


def force_push(upstream: Git) -> tuple[str, str]:
    """Replace the head of pull request 7, and let the old one be collected."""
    old = upstream("rev-parse", "refs/pull/7/head")
    upstream("checkout", "--quiet", "--detach", "master~3")
    new = upstream.commit({"pr.txt": "another\n"}, "pull request, again")
    upstream("checkout", "--quiet", "master")
    upstream("update-ref", "refs/pull/7/head", new)
    upstream("reflog", "expire", "--expire=now", "--all")
    upstream("gc", "--quiet", "--prune=now")
    return old, new


def test_a_pull_request_that_was_force_pushed_away_ends_with_both_heads(
    server: GitServer, upstream: Git, context: Context
) -> None:
    tree = upstream.tree("refs/pull/7/head")
    old, new = force_push(upstream)
    recipe = write_recipe(context, "r", pin(server.of(upstream.path), old, tree, ref="pr = 7"))
    with pytest.raises(SourceError) as caught:
        patched_source(recipe, resolve(recipe, context), context)
    assert caught.value.exit_code == 3
    assert old in caught.value.message
    assert new in caught.value.message
    assert "llamabuild resolve --recipe r --update" in (caught.value.hint or "")


def test_a_force_pushed_head_that_is_still_served_is_used(server: GitServer, upstream: Git, context: Context) -> None:
    upstream("config", ALLOW, "true")
    old, tree = upstream("rev-parse", "refs/pull/7/head"), upstream.tree("refs/pull/7/head")
    upstream("update-ref", "refs/pull/7/head", upstream("rev-parse", "master"))
    recipe = write_recipe(context, "r", pin(server.of(upstream.path), old, tree, ref="pr = 7"))
    assert patched_source(recipe, resolve(recipe, context), context).tree == tree


def test_another_tree_is_refused_with_both_ids(server: GitServer, upstream: Git, context: Context) -> None:
    wanted = "1234567890" * 4
    recipe = write_recipe(context, "r", pin(server.of(upstream.path), upstream("rev-parse", "master"), wanted))
    with pytest.raises(SourceError) as caught:
        patched_source(recipe, resolve(recipe, context), context)
    assert caught.value.exit_code == 3
    assert wanted in caught.value.message
    assert upstream.tree("master") in caught.value.message


def test_a_cut_connection_leaves_the_mirror_usable(server: GitServer, upstream: Git, context: Context) -> None:
    upstream("config", ALLOW, "true")
    url = server.of(upstream.path)
    first = write_recipe(context, "r", pin(url, upstream("rev-parse", "v1^{commit}"), upstream.tree("v1")))
    assert patched_source(first, resolve(first, context), context).tree == upstream.tree("v1")

    second = write_recipe(context, "s", pin(url, upstream("rev-parse", "master"), upstream.tree("master")))
    server.cut_after = 200
    with pytest.raises(SourceError, match="broke off") as caught:
        patched_source(second, resolve(second, context), context)
    assert caught.value.exit_code == 3

    mirror = pygit2.Repository(str(mirror_of(url, context).path))
    assert has_tree(mirror, upstream.tree("v1"))
    server.cut_after = None
    assert patched_source(second, resolve(second, context), context).tree == upstream.tree("master")
    assert "missing" not in Git(mirror_of(url, context).path)("fsck", "--connectivity-only")


def test_what_a_killed_run_left_in_the_mirror_is_no_hindrance(
    server: GitServer, upstream: Git, context: Context, tmp_path: Path
) -> None:
    url = server.of(upstream.path)
    recipe = write_recipe(
        context, "r", pin(url, upstream("rev-parse", "v1^{commit}"), upstream.tree("v1"), ref='ref = "v1"')
    )
    patched = patched_source(recipe, resolve(recipe, context), context)
    check_out(patched, tmp_path / "tree", context)
    mirror = mirror_of(url, context).path
    (mirror / "objects" / "pack" / "pack_git2_abcdef").write_bytes(b"half a pack")
    for name in ("shallow.lock", "config.lock", "refs/llamabuild/commits/x.lock"):
        (mirror / name).write_text("")
    for name in ("index.lock", "HEAD.lock", "refs/heads/llamabuild.lock"):
        (tmp_path / "tree" / ".git" / name).write_text("")
    second = write_recipe(context, "s", pin(url, upstream("rev-parse", "master"), upstream.tree("master")))
    patched = patched_source(second, resolve(second, context), context)
    assert patched.tree == upstream.tree("master")
    check_out(patched, tmp_path / "tree", context)
    assert Git(tmp_path / "tree")("rev-parse", "HEAD^{tree}") == upstream.tree("master")
    assert not (mirror / "objects" / "pack" / "pack_git2_abcdef").exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/llama.cpp", "https://nowhere.invalid/llama.cpp"])
def test_a_host_that_is_not_there_costs_seconds_and_one_line(context: Context, url: str) -> None:
    recipe = write_recipe(context, "r", pin(url, "12" * 20, "34" * 20))
    began = time.monotonic()
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        patched_source(recipe, resolve(recipe, context), context)
    assert time.monotonic() - began < 10
    assert caught.value.exit_code == 3
    said = context.console.stream.getvalue().splitlines()
    assert len(said) <= 1


def test_offline_uses_the_cache_alone(server: GitServer, upstream: Git, context: Context) -> None:
    url = server.of(upstream.path)
    recipe = write_recipe(context, "r", pin(url, upstream("rev-parse", "master"), upstream.tree("master")))
    offline = dataclasses.replace(context, offline=True)
    with pytest.raises(SourceError, match="--offline"):
        patched_source(recipe, resolve(recipe, offline), offline)
    assert server.requests == []
    online = patched_source(recipe, resolve(recipe, context), context)
    asked = len(server.requests)
    again = patched_source(recipe, resolve(recipe, offline), offline)
    assert again == online
    assert len(server.requests) == asked


def test_a_file_url_is_a_repository_too(upstream: Git, context: Context) -> None:
    url = upstream.path.as_uri()
    recipe = write_recipe(context, "r", pin(url, upstream("rev-parse", "master"), upstream.tree("master")))
    assert patched_source(recipe, resolve(recipe, context), context).tree == upstream.tree("master")


def test_the_patched_commit_has_the_same_id_whoever_brings_the_tree(
    server: GitServer, upstream: Git, context: Context, tmp_path: Path
) -> None:
    squashed = Git.new(server.root / "squashed")
    squashed.write({"f.txt": upstream("show", "master:f.txt") + "\n"} | {f"{number}.txt": "x" for number in range(10)})
    squashed("add", "--all")
    squashed("commit", "--quiet", "--message", "everything")
    assert squashed.tree() == upstream.tree("master")
    write_series(context, "s", '[[part]]\nkind = "files"\nfiles = ["a.diff"]', files={"a.diff": _diff(upstream)})
    found = []
    for name, repository in (("a", upstream), ("b", squashed)):
        url = server.of(repository.path)
        text = pin(url, repository("rev-parse", "master"), upstream.tree("master"))
        recipe = write_recipe(context, name, text, series=use("s"))
        found.append(patched_source(recipe, resolve(recipe, context), context))
    assert found[0].tree == found[1].tree != upstream.tree("master")
    # The message of the first commit names commit and repository, which differ here; with the same pin they do not.
    assert found[0].commit != found[1].commit


def _diff(upstream: Git) -> bytes:
    upstream.write({"0.txt": "changed\n"})
    diff = upstream.run("diff").stdout
    upstream("checkout", "--quiet", "--", ".")
    return diff


def test_an_abbreviated_commit_is_refused_with_the_command_that_mends_it(context: Context) -> None:
    recipe = write_recipe(context, "r", pin("https://nowhere.invalid/x", "7fe450e19", "34" * 20))
    with pytest.raises(RecipeError, match="7fe450e19") as caught:
        resolve(recipe, context)
    assert caught.value.exit_code == 2
    assert "resolve --recipe r --update" in (caught.value.hint or "")


def test_a_patch_that_does_not_fit_ends_with_both_sides_and_changes_nothing(
    server: GitServer, upstream: Git, context: Context, tmp_path: Path
) -> None:
    diff = b"--- a/f.txt\n+++ b/f.txt\n@@ -1,3 +1,3 @@\n 9 0\n-8 1\n+mine\n 9 2\n"
    write_series(context, "s", '[[part]]\nkind = "files"\nfiles = ["a.diff"]', files={"a.diff": diff})
    url = server.of(upstream.path)
    text = pin(url, upstream("rev-parse", "master"), upstream.tree("master"))
    recipe = write_recipe(context, "r", text, series=use("s"))
    lock = resolve(recipe, context)
    with pytest.raises(PatchError) as caught:
        patched_source(recipe, lock, context, keep_conflict=tmp_path / "kept")
    assert caught.value.exit_code == 4
    assert "a.diff" in caught.value.message
    assert "f.txt, hunk 1" in caught.value.message
    shown = "\n".join(caught.value.details)
    assert "target: 9 1" in shown
    assert "patch: +mine" in shown
    kept = (tmp_path / "kept" / "f.txt").read_text()
    assert kept.startswith("<<<<<<< target\n9 0\n9 1\n9 2\n=======\n9 0\nmine\n9 2\n>>>>>>> patch\n9 3\n")
    mirror = Git(mirror_of(url, context).path)
    assert "refs/llamabuild/patched" not in mirror("for-each-ref")
