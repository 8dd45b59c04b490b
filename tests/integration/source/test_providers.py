"""Mirrors of a tree: a git bundle in an npm package, a folder in a source archive; by the ordinary clients."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pygit2
import pytest
from makers import write_recipe

from llamabuild.core.errors import SourceError
from llamabuild.recipe.model import MirrorSpec
from llamabuild.source.apply import patched_source
from llamabuild.source.folder import tree_of_folder
from llamabuild.source.pypi import tree_from_pypi
from llamabuild.source.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_httpserver import HTTPServer
    from realgit import Git

    from llamabuild.core.context import Context

NPM = 'kind = "npm"\npackage = "@scope/pack"\nversion = "1.0.0"\nmember = "package/gitRelease.bundle"'
GONE = "http://127.0.0.1:9/llama.cpp"


@pytest.fixture
def source(git: Git) -> Git:
    git.commit({"a.txt": "a\n", "sub/run.sh": "#!/bin/sh\n"}, "first")
    (git.path / "sub" / "run.sh").chmod(0o755)
    git.commit({"a.txt": "a\n" * 200}, "second")
    return git


def tarball(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def bundle(source: Git, *what: str) -> bytes:
    source("bundle", "create", "--quiet", "out.bundle", *what)
    data = (source.path / "out.bundle").read_bytes()
    (source.path / "out.bundle").unlink()
    return data


def mirrored(context: Context, source: Git, tree: str, mirror: str, *, name: str = "r"):
    pins = f'repository = "{GONE}"\nref = "v1"\ncommit = "{source("rev-parse", "HEAD")}"\ntree = "{tree}"\n'
    pins += "build-number = 2\ndate = 2026-09-23T00:00:00Z\n"
    recipe = write_recipe(context, name, f"{pins}\n[[source.mirror]]\n{mirror}")
    return patched_source(recipe, resolve(recipe, context), context)


def put_package(context: Context, data: bytes) -> Path:
    """The package as ``npm pack`` left it in the downloads."""
    kept = context.home.downloads / "npm" / "@scope+pack@1.0.0.tgz"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(tarball({"package/gitRelease.bundle": data}))
    return kept


@pytest.mark.parametrize("what", [("HEAD",), ("--all",), ("HEAD", "--all")])
def test_a_bundle_brings_its_tree_when_the_repository_is_gone(source: Git, context: Context, what) -> None:
    put_package(context, bundle(source, *what))
    patched = mirrored(context, source, source.tree(), NPM)
    assert patched.tree == source.tree()
    assert patched.provider == "npm @scope/pack@1.0.0"
    # One line for the repository that is not there, one for the step.
    lines = context.console.stream.getvalue().splitlines()
    assert [line for line in lines if GONE in line and "cannot be reached" in line] == lines[:1]
    # The cache remembers who brought it.
    offline = dataclasses.replace(context, offline=True)
    assert mirrored(offline, source, source.tree(), NPM).provider == "npm @scope/pack@1.0.0"


def test_a_mirror_with_another_tree_is_refused_with_both_ids(source: Git, context: Context) -> None:
    put_package(context, bundle(source, "HEAD"))
    wanted = source.tree("HEAD~1")
    with pytest.raises(SourceError) as caught:
        mirrored(context, source, wanted, NPM)
    assert caught.value.exit_code == 3
    assert wanted in caught.value.message
    assert source.tree() in caught.value.message
    assert "npm @scope/pack@1.0.0" in caught.value.message


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: data[: len(data) // 2], "checksum is another"),
        (lambda _: b"no bundle at all", "not a git bundle"),
        (lambda data: data[:-8] + b"\0" * 8, "checksum is another"),
    ],
)
def test_a_damaged_bundle_is_said_and_fetched_anew(source: Git, context: Context, damage, text) -> None:
    kept = put_package(context, damage(bundle(source, "HEAD")))
    # No npm on PATH: the next attempt must not quietly succeed.
    bare = dataclasses.replace(
        context, env={**context.env, "PATH": "/nonexistent", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    )
    with pytest.raises(SourceError, match="No provider brought the source") as caught:
        mirrored(bare, source, source.tree(), NPM)
    assert text in " ".join(caught.value.details)
    assert not kept.exists()


def test_a_bundle_that_needs_other_commits_is_refused(source: Git, context: Context) -> None:
    put_package(context, bundle(source, "HEAD", "^HEAD~1"))
    with pytest.raises(SourceError) as caught:
        mirrored(context, source, source.tree(), NPM)
    assert "needs commits that are not in it" in " ".join(caught.value.details)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_npm_client_says_why_it_could_not(source: Git, context: Context, tmp_path: Path) -> None:
    (tmp_path / "npmrc").write_text(
        "registry=http://127.0.0.1:9/\nfetch-retries=0\naudit=false\nupdate-notifier=false\n"
    )
    env = {**context.env, "npm_config_userconfig": str(tmp_path / "npmrc"), "npm_config_cache": str(tmp_path / "cache")}
    env = {name: value for name, value in env.items() if name.lower() != "npm_config_registry"}
    with pytest.raises(SourceError, match="No provider") as caught:
        mirrored(dataclasses.replace(context, env=env), source, source.tree(), NPM)
    assert any("npm could not fetch @scope/pack@1.0.0" in line for line in caught.value.details)
    assert not list((context.home.downloads / "npm").glob("*.tgz"))


@pytest.fixture
def index(httpserver: HTTPServer, context: Context) -> Context:
    """pip's index on loopback, with one source archive whose build must not run."""
    sentinel = context.cwd / "built"
    setup = f"open({str(sentinel)!r}, 'w').write('built')\nraise SystemExit('must not be built')\n".encode()
    data = tarball(
        {
            "some_pack-1.2.3/PKG-INFO": b"Metadata-Version: 2.1\nName: some-pack\nVersion: 1.2.3\n",
            "some_pack-1.2.3/setup.py": setup,
            "some_pack-1.2.3/backend.py": setup,
            "some_pack-1.2.3/pyproject.toml": b'[build-system]\nrequires = ["not-a-package-at-all"]\n'
            b'build-backend = "backend:there"\nbackend-path = ["."]\n',
            "some_pack-1.2.3/vendor/tree/.git": b"gitdir: ../../.git/modules/vendor\n",
            "some_pack-1.2.3/vendor/tree/a.txt": b"a\n" * 200,
            "some_pack-1.2.3/vendor/tree/sub/run.sh": b"#!/bin/sh\n",
            "some_pack-1.2.3/vendor/other.txt": b"no part of it\n",
        }
    )
    httpserver.expect_request("/simple/some-pack/").respond_with_data(
        '<a href="/files/some_pack-1.2.3.tar.gz">some_pack-1.2.3.tar.gz</a>', content_type="text/html"
    )
    httpserver.expect_request("/files/some_pack-1.2.3.tar.gz").respond_with_data(data)
    env = {name: value for name, value in context.env.items() if not name.startswith("PIP_")}
    env |= {"PIP_INDEX_URL": httpserver.url_for("/simple/"), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    return dataclasses.replace(context, env=env)


def test_a_source_archive_brings_its_folder_without_being_built(source: Git, index: Context) -> None:
    mirror = 'kind = "pypi"\npackage = "some-pack"\nversion = "1.2.3"\nmember = "vendor/tree"'
    patched = mirrored(index, source, source.tree(), mirror)
    assert patched.tree == source.tree()
    assert patched.provider == "pypi some-pack@1.2.3"
    assert not (index.cwd / "built").exists()


def test_a_folder_that_is_not_in_the_archive_is_said(source: Git, index: Context) -> None:
    spec = MirrorSpec(kind="pypi", package="some-pack", version="1.2.3", member="vendor/nothing")
    store = pygit2.init_repository(str(index.cwd / "store.git"), bare=True)
    with pytest.raises(SourceError, match="has no folder vendor/nothing"):
        tree_from_pypi(store, spec, index)
    missing = MirrorSpec(kind="pypi", package="some-pack", version="9", member="vendor/tree")
    with pytest.raises(SourceError, match="pip could not fetch"):
        tree_from_pypi(store, missing, index)


def test_a_folder_is_the_tree_that_git_makes_of_it(git: Git, tmp_path: Path) -> None:
    git.write({"a.txt": "a", "sub/b": b"\0", "sub/.gitignore": "*\n", "zeta": "", "sub.txt": "x", "la\udcffn": b"\xff"})
    (git.path / "a.txt").chmod(0o755)
    (git.path / "link").symlink_to("sub")
    (git.path / "dangling").symlink_to("nowhere")
    (git.path / "empty").mkdir()
    git("add", "--all", "--force")
    store = pygit2.init_repository(str(tmp_path / "store.git"), bare=True)
    assert tree_of_folder(store, git.path) == git("write-tree")


def test_the_stand_in_backend_is_for_pip_alone() -> None:
    """It answers only where pip's hook asks for a backend: any other Python that sees the folder is left alone."""
    from llamabuild.source import pypi

    code = f"{pypi._SITECUSTOMIZE}\nimport json; print(json.dumps('ok'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    assert done.stdout.strip() == '"ok"'
