"""The shader cache in front of a compiler that notes each of its runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from llamabuild.build import shader_cache

GLSLC = """#!/bin/sh
# Writes what it was given and all that it read; counts its runs.
echo run >> {runs}
while [ $# -gt 0 ]; do
    case "$1" in
    -o) out=$2; shift;;
    -MF) deps=$2; shift;;
    -*) flags="$flags $1";;
    *) source=$1;;
    esac
    shift
done
folder=$(dirname "$source")
case "$flags" in *-DWARN*) echo "warning: odd" >&2;; *-DFAIL*) echo "error: no" >&2; exit 1;; esac
{{ echo "$flags"; cat "$source" "$folder"/*.glsl; }} > "$out"
[ -z "$deps" ] || echo "$out: $source $folder/types.glsl" > "$deps"
"""


@dataclass
class Shaders:
    folder: Path
    runs: Path
    glslc: Path

    @property
    def count(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0

    def tree(self, name: str) -> Path:
        tree = self.folder / name
        tree.mkdir()
        (tree / "add.comp").write_text('#include "types.glsl"\nvoid main() {}\n')
        (tree / "types.glsl").write_text("#define A 1\n")
        return tree

    def compile(self, tree: Path, *flags: str, identity: str = "glslc 1") -> tuple[int, str]:
        out, deps = tree / "add.spv", tree / "add.cpp.d"
        out.unlink(missing_ok=True)
        argv = [sys.executable, "-I", "-S", shader_cache.__file__, self.glslc, identity, self.folder / "cache"]
        argv += ["-fshader-stage=compute", tree / "add.comp", "-o", out, "-MD", "-MF", deps, *flags]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr


@pytest.fixture
def shaders(tmp_path: Path) -> Shaders:
    glslc, runs = tmp_path / "glslc", tmp_path / "runs"
    glslc.write_text(GLSLC.format(runs=runs))
    glslc.chmod(0o755)
    return Shaders(tmp_path, runs, glslc)


def test_another_tree_with_the_same_shader_is_answered_with_its_own_paths(shaders: Shaders) -> None:
    one, two = shaders.tree("one"), shaders.tree("two")
    assert shaders.compile(one, "-DX=1") == (0, "")
    assert shaders.compile(two, "-DX=1") == (0, "")
    assert shaders.count == 1
    assert (two / "add.spv").read_bytes() == (one / "add.spv").read_bytes()
    assert (two / "add.cpp.d").read_text() == f"{two}/add.spv: {two}/add.comp {two}/types.glsl\n"


def test_what_decides_the_result_decides_the_hit(shaders: Shaders) -> None:
    tree = shaders.tree("one")
    shaders.compile(tree, "-DX=1")
    shaders.compile(tree, "-DX=2")
    shaders.compile(tree, "-DX=1", identity="glslc 2")
    (tree / "types.glsl").write_text("#define A 2\n")
    shaders.compile(tree, "-DX=1")
    assert b"#define A 2" in (tree / "add.spv").read_bytes()
    (tree / "add.comp").write_text('#include "types.glsl"\nvoid main() { A; }\n')
    shaders.compile(tree, "-DX=1")
    assert shaders.count == 5


def test_warnings_failures_and_debug_information_are_not_kept(shaders: Shaders) -> None:
    tree = shaders.tree("one")
    for _ in range(2):
        assert shaders.compile(tree, "-DWARN") == (0, "warning: odd\n")
        assert shaders.compile(tree, "-DFAIL") == (1, "error: no\n")
        assert shaders.compile(tree, "-g")[0] == 0
    assert shaders.count == 6


def test_an_include_that_is_not_there_is_left_to_the_compiler(shaders: Shaders) -> None:
    tree = shaders.tree("one")
    (tree / "add.comp").write_text('#include "generated.glsl"\n')
    for _ in range(2):
        assert shaders.compile(tree)[0] == 0
    assert shaders.count == 2
