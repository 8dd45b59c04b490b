"""The real runtime: nothing is found on it, and what is broken in it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from llamabuild.build.cmake_cache import read_cache
from llamabuild.recipe.load import load_recipe
from llamabuild.verify.check import Options, verify_path
from llamabuild.verify.inspect.run import inspect_path

pytestmark = pytest.mark.network

RECIPE = "dflash2-2026-09"


@pytest.fixture
def recipe(context):
    return load_recipe(RECIPE, context)


def test_nothing_is_found_on_the_unpacked_archive(real_bundle, recipe, context):
    report = verify_path(real_bundle, context=context, recipe=recipe, target="cpu")
    assert [finding for finding in report.findings if finding.name != "program.same-user"] == []


def swap(root: Path) -> None:
    (root / "lib/libllama.so.0.5.0").write_bytes((root / "lib/libggml.so.0.25.1").read_bytes())


def poison(name: str, old: bytes, new: bytes):
    def change(root: Path) -> None:
        path = root / name
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new))

    return change


def unlink(name: str):
    return lambda root: (root / name).unlink()


MUTATIONS = [
    (swap, "closure.version-missing|closure.symbol-undefined"),
    (unlink("lib/libgomp.so.1"), "closure.not-bundled"),
    (unlink("lib/libstdc++.so.6"), "link.dangling|closure.host-library"),
    (unlink("bin/libggml-cpu.so"), "plugin.missing"),
    (poison("lib/libllama.so.0.5.0", b"dflash_selector_top_k", b"dflash_selector_top_j"), "feature.missing"),
    (poison("lib/libllama-common.so.0.5.0", b"7fe450e19\0", b"7fe450e18\0"), "program.version"),
    (poison("lib/libllama-common.so.0.5.0", b"draft-dflash", b"draft-dflask"), "feature.missing"),
    (poison("bin/llama-server", b"$ORIGIN/../lib", b"/opt/x/yz/lib\0"), "elf.rpath-absolute"),
    (lambda root: os.truncate(root / "lib/libmtmd.so.0.5.0", 50_000), "elf.damaged"),
    (lambda root: (root / "bin/llama-cli").chmod(0o644), "program.not-executable"),
    (lambda root: shutil.copy(root / "BUILD_INFO.json", root / "lib/model.gguf"), "content.weights"),
    (poison("BUILD_INFO.json", b"7fe450e19305", b"7fe450e19306"), "metadata.recipe-differs"),
]


@pytest.mark.parametrize(
    ("change", "names"), MUTATIONS, ids=[f"{index}-{name}" for index, (_, name) in enumerate(MUTATIONS)]
)
def test_what_is_broken_in_it_is_found(change, names, real_bundle, recipe, context, tmp_path):
    root = tmp_path / real_bundle.name
    shutil.copytree(real_bundle, root, symlinks=True)
    change(root)
    run = "feature" in names or "program" in names
    report = verify_path(root, context=context, recipe=recipe, target="cpu", options=Options(run=run))
    assert {finding.name for finding in report.findings} & set(names.split("|"))


def test_inspect_reads_its_identity_from_the_binaries(real_bundle):
    inspection = inspect_path(real_bundle)
    assert inspection.backends["cpu"].kind == "plugin"
    assert inspection.details["build_number"] == 11146
    assert "7fe450e19305".startswith(inspection.details["commit"])
    assert inspection.disagreements == ()


def test_its_real_cache_is_read_as_cmake_reads_it(real_make):
    caches = [
        path
        for path in Path(real_make.env["LLAMABUILD_HOME"]).glob("src/**/CMakeCache.txt")
        if "CMakeScratch" not in path.parts and (path.parent / "build.ninja").exists()
    ]
    assert caches, "the build folder is kept"
    cache = max(caches, key=lambda path: path.stat().st_mtime)
    words = [Path(sysconfig.get_path("scripts")) / "cmake", "-LA", "-N", cache.parent]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    entries = read_cache(cache).entries.values()
    mine = {
        f"{each.name}:{each.kind}={each.value}"
        for each in entries
        if each.kind not in {"INTERNAL", "STATIC", "UNINITIALIZED"}
    }
    assert mine == {line for line in listed if not line.startswith("-- ")}
    inspection = inspect_path(cache.parent)
    assert inspection.native is False
    assert inspection.native_from == "compile commands"
    assert inspection.ignored_options == ()
    assert inspection.backends["cpu"].state == "on"
    assert inspection.details["built"]["backends"] == ["cpu"]
