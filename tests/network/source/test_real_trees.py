"""Sources and series on real upstream trees, with git's own results and grep's line numbers as the measure."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pygit2
import pytest

from llamabuild.core.context import Home
from llamabuild.core.errors import LlamabuildError
from llamabuild.recipe.load import load_recipe
from llamabuild.recipe.model import MirrorSpec
from llamabuild.source.apply import patched_source
from llamabuild.source.check import check_series
from llamabuild.source.npm import tree_from_npm
from llamabuild.source.pypi import download_sdist, tree_from_pypi
from llamabuild.source.resolve import resolve
from llamabuild.source.worktree import check_out

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.core.context import Context

pytestmark = pytest.mark.network

V050_TREE = "fd570ef54b10ec5fecb739e7e04c8ce44a6f415a"
"""Of upstream commit 7fe450e19305b828c199d602c23a8337aaa1f03b, as the public repository records it."""
OLD_LINE = "ggml_scale_inplace(ctx0, state_zero, 0)"
NEW_LINE = "ggml_fill_inplace(ctx0, state_zero, 0.0f)"
V050_AT = 3496
"""The line of v0.5.0 that the fill replaces."""


def git(folder: Path, *words: str | Path) -> str:
    return subprocess.run(
        ["git", *map(str, words)], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="session", params=["0.3.36", "0.3.35", "0.3.34"])
def upstream_tree(
    request: pytest.FixtureRequest, real_context: Context, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Another real upstream commit, as the folder ``vendor/llama.cpp`` of a source archive."""
    try:
        archive = download_sdist("llama-cpp-python", request.param, real_context)
    except LlamabuildError as exc:
        pytest.skip(f"llama-cpp-python {request.param} cannot be fetched here: {exc.message}")
    folder = tmp_path_factory.mktemp("upstream")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    return next(folder.glob("*/vendor/llama.cpp"))


def test_the_npm_mirror_brings_the_very_tree_of_the_tag(v050: tuple[Path, str]) -> None:
    mirror, tree = v050
    assert tree == V050_TREE
    assert git(mirror, "cat-file", "-t", V050_TREE) == "tree"
    listed = git(mirror, "ls-tree", "-r", "--name-only", V050_TREE).splitlines()
    assert "src/llama-graph.cpp" in listed
    assert git(mirror, "rev-list", "--objects", "--missing=print", V050_TREE).count("?") == 0


def test_the_recipe_is_the_pinned_tree_with_the_fill(
    v050: tuple[Path, str], real_context: Context, tmp_path: Path
) -> None:
    offline = dataclasses.replace(real_context, offline=True)
    recipe = load_recipe("dflash2-2026-09", offline)
    patched = patched_source(recipe, resolve(recipe, offline), offline)
    folder = check_out(patched, tmp_path / "llama.cpp", offline, standalone=True)
    assert git(folder, "rev-parse", "HEAD~1^{tree}") == V050_TREE
    assert git(folder, "status", "--porcelain") == ""
    changed = git(folder, "diff", "--unified=0", "HEAD~1", "HEAD").splitlines()
    assert [line for line in changed if line.startswith(("-  ", "+  "))] == [
        f"-    ggml_build_forward_expand(gf, {OLD_LINE});",
        f"+    ggml_build_forward_expand(gf, {NEW_LINE});",
    ]
    # The same here and anywhere else: nothing of this machine is in it.
    assert patched.commit == git(folder, "rev-parse", "HEAD")
    assert patched_source(recipe, resolve(recipe, offline), offline).commit == patched.commit


def test_the_fill_still_applies_to_other_upstreams(upstream_tree: Path, v050: Any, real_context: Context) -> None:
    text = (upstream_tree / "src" / "llama-graph.cpp").read_text().splitlines()
    (at,) = [number for number, line in enumerate(text, start=1) if OLD_LINE in line]
    assert at != V050_AT
    began = time.monotonic()
    checked = check_series("recurrent-state-fill", real_context, folder=upstream_tree)
    assert time.monotonic() - began < 30
    assert [(each.attempt.state, each.attempt.note) for each in checked.steps] == [("merged", f"offset {at - V050_AT}")]
    # And once more on its own result: there is nothing left to do.
    patched = upstream_tree / "src" / "llama-graph.cpp"
    whole = patched.read_text()
    patched.write_text(whole.replace(OLD_LINE, NEW_LINE))
    try:
        checked = check_series("recurrent-state-fill", real_context, folder=upstream_tree)
    finally:
        patched.write_text(whole)
    assert [each.attempt.state for each in checked.steps] == ["already-upstream"]


def test_what_upstream_took_long_ago_is_already_there(upstream_tree: Path, v050: Any, real_context: Context) -> None:
    checked = check_series("moe-tensor-offload", real_context, folder=upstream_tree)
    assert [each.attempt.state for each in checked.steps] == ["already-upstream"]
    line = "ggml_is_contiguous(tensor) || split_state.axis == GGML_BACKEND_SPLIT_AXIS_MIRRORED"
    assert line in (upstream_tree / "ggml" / "src" / "ggml-backend-meta.cpp").read_text()


def test_a_changed_line_is_a_conflict_with_both_sides(upstream_tree: Path, v050: Any, real_context: Context) -> None:
    source = upstream_tree / "src" / "llama-graph.cpp"
    whole = source.read_text()
    source.write_text(whole.replace(OLD_LINE, "ggml_something_else(ctx0, state_zero)"))
    try:
        checked = check_series("recurrent-state-fill", real_context, folder=upstream_tree)
    finally:
        source.write_text(whole)
    assert not checked.ok
    (conflict,) = checked.steps[0].attempt.conflicts
    assert conflict.file == "src/llama-graph.cpp"
    assert any("ggml_something_else" in line for line in conflict.ours)
    assert any(line.startswith("+") and NEW_LINE in line for line in conflict.theirs)


def test_the_pypi_provider_writes_the_folder_as_git_would(
    upstream_tree: Path, real_context: Context, tmp_path: Path
) -> None:
    version = upstream_tree.parents[1].name.rpartition("-")[2]
    store = pygit2.init_repository(str(tmp_path / "store.git"), bare=True)
    spec = MirrorSpec(kind="pypi", package="llama-cpp-python", version=version, member="vendor/llama.cpp")
    tree = tree_from_pypi(store, spec, real_context)
    own = tmp_path / "own"
    shutil.copytree(upstream_tree, own, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    git(own, "init", "--quiet")
    git(own, "-c", "core.autocrlf=false", "add", "--force", "--all")
    assert tree == git(own, "write-tree")


def test_a_real_patch_of_the_mirror_package_is_judged_as_git_does(
    v050: Any, real_context: Context, tmp_path: Path
) -> None:
    packed = next((real_context.home.downloads / "npm").glob("node-llama-cpp@3.22.1.tgz"), None)
    if packed is None:
        pytest.skip("node-llama-cpp 3.22.1 did not have to be fetched: the tree came from elsewhere")
    with tarfile.open(packed) as package:
        data = package.extractfile("package/llama/patches/PR-22566.diff").read()
    (tmp_path / "patches" / "pr").mkdir(parents=True)
    (tmp_path / "patches" / "pr" / "PR-22566.diff").write_bytes(data)
    (tmp_path / "patches" / "pr.toml").write_text(
        'schema = 1\nname = "pr"\nsummary = "x"\n[[part]]\nkind = "files"\nfiles = ["PR-22566.diff"]\n'
    )
    context = dataclasses.replace(real_context, cwd=tmp_path)
    mirror, tree = v050
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "--quiet")
    (work / ".git" / "objects" / "info" / "alternates").write_text(f"{mirror / 'objects'}\n")
    git(work, "read-tree", tree)
    git(work, "checkout-index", "--all")
    said = subprocess.run(
        ["git", "apply", "--cached", "--verbose", tmp_path / "patches" / "pr" / "PR-22566.diff"],
        cwd=work, capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    offsets = [int(line.split("(offset ")[1].split()[0]) for line in said.splitlines() if "(offset " in line]
    checked = check_series("pr", context, folder=work)
    (step,) = checked.steps
    assert step.attempt.note == f"offset {max(offsets, key=abs)}"
    assert step.attempt.tree == git(work, "write-tree")


def test_94_commits_end_as_with_git_and_take_no_longer(bench: Any, v050: tuple[Path, str], tmp_path: Path) -> None:
    fork = bench.make_fork(*v050, tmp_path / "fork")
    assert len(fork.commits) == bench.COMMITS == 94
    for target in ("base", "target"):
        figures = bench.measure(fork, target)
        print(json.dumps(figures))
        assert figures["trees_equal_am"]
        assert figures["trees_equal_cherry_pick"]
        assert figures["ratio_mails_to_am"] <= 1
        assert figures["ratio_commits_to_am"] <= 1


def test_a_machine_without_npm_gets_one_by_pip(real_context: Context, tmp_path: Path) -> None:
    """A fresh machine has Python and a compiler; npm comes as a wheel then."""
    env = {**real_context.env, "PATH": str(tmp_path), "npm_config_cache": str(tmp_path / "cache")}
    context = dataclasses.replace(real_context, env=env, home=Home(tmp_path / "home"))
    spec = MirrorSpec(kind="npm", package="node-llama-cpp", version="3.22.1", member="package/llama/gitRelease.bundle")
    store = pygit2.init_repository(str(tmp_path / "store.git"), bare=True)
    try:
        tree = tree_from_npm(store, spec, context)
    except LlamabuildError as exc:
        pytest.skip(f"npm cannot be had by pip here: {exc.message}")
    assert tree == V050_TREE
