"""``doctor`` as a user runs it, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..bundle.rocm_trees import make_tree, willing_compiler


def doctor(tmp_path: Path, *words: str, **env: str) -> tuple[int, Any, str]:
    argv = [sys.executable, "-m", "llamabuild", "doctor", *words]
    whole = {**os.environ, "LLAMABUILD_HOME": str(tmp_path), **env}
    done = subprocess.run(argv, env=whole, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_document_names_each_tool_as_the_tool_names_itself(tmp_path: Path) -> None:
    code, out, _ = doctor(tmp_path, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["schema"] == 1
    assert document["ok"] is True
    assert document["target"] == "cpu"
    rows = {row["name"]: row for row in document["tools"]}
    assert {"cmake", "ninja", "ccache", "strip", "cc", "cxx"} <= set(rows)
    for name in ("cmake", "ninja", "ccache"):
        said = subprocess.check_output([rows[name]["path"], "--version"], text=True)
        assert rows[name]["version"] in said
        assert rows[name]["needed"]
        assert "pip install" in rows[name]["install"]
    assert document["host"]["machine"] == os.uname().machine
    assert document["host"]["cores"] == len(os.sched_getaffinity(0))


def test_a_target_that_cannot_be_built_ends_with_the_exit_code_of_make(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    code, out, _ = doctor(tmp_path, "--target", "hip", "--arch", "gfx1201", "--rocm", str(nowhere), "--json")
    assert code == 5
    document = json.loads(out)
    assert document["ok"] is False
    assert document["arch"] == "gfx1201"
    assert any("holds no ROCm" in problem["message"] for problem in document["problems"])


def test_a_rocm_that_compiles_for_an_arch_and_has_no_kernels_for_it(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "rocm", "amd")
    willing_compiler(tree)
    code, out, _ = doctor(tmp_path, "--target", "hip", "--arch", "gfx1100", "--rocm", str(tree.root))
    assert code == 0
    assert out.startswith("target hip gfx1100: ready\n")
    code, out, _ = doctor(tmp_path, "--target", "hip", "--arch", "gfx1201", "--rocm", str(tree.root))
    assert code == 5
    assert "no kernels for gfx1201; it has them for gfx90a, gfx1030, gfx1100" in out
    assert "  to get it: point --rocm at a tree" in out


def test_the_text_says_what_is_missing_and_what_brings_it(tmp_path: Path) -> None:
    code, out, _ = doctor(tmp_path, "--target", "vulkan", VULKAN_SDK=str(tmp_path), PATH="/nowhere")
    assert code == 5
    assert out.startswith("target vulkan: cannot be built on this host\n")
    assert "glslc: no shader compiler: glslc was not found" in out
    assert "  to get it: " in out
    assert "host: " in out


def test_cuda_12_does_not_come_as_wheels_that_compile(tmp_path: Path) -> None:
    code, _, err = doctor(tmp_path, "--target", "cuda", "--cuda-toolkit", "wheels:12.9")
    assert code == 5
    assert "hold no nvcc" in err
    assert "--cuda-toolkit system" in err


def test_an_empty_option_is_refused(tmp_path: Path) -> None:
    code, _, err = doctor(tmp_path, "--target", "hip", "--rocm", "")
    assert code == 2
    assert "argument --rocm: the value is empty" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--target", "hip", "--arch", "gfx110X"], "gfx110X is a family"),
        (["--target", "cuda", "--arch", "sm_86"], "'sm_86' is not a CUDA arch"),
        (["--target", "cpu", "--arch", "86"], "--arch for target cpu: it has no backend that takes an arch"),
        (["--arch", "86"], "--arch says nothing without a target"),
        (["--target", "cuda", "--arch", ""], "'' is not a CUDA arch"),
        (["--target", "cuda", "--cuda-toolkit", "wheels:latest"], "is no CUDA version that comes as wheels"),
    ],
)
def test_bad_words_get_one_sentence_and_a_hint(words: list[str], sentence: str, tmp_path: Path) -> None:
    code, out, err = doctor(tmp_path, *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "hint: " in err
    assert "Traceback" not in err
