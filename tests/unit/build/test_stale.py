"""When a build folder may be used again, and what is said when it may not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llamabuild.build.model import BuildOptions, Target, Tool, Toolchain
from llamabuild.build.stale import STAMP, stale_reason, stamp_of, write_stamp
from llamabuild.build.targets import make_target
from llamabuild.recipe.model import TargetSpec

if TYPE_CHECKING:
    from llamabuild.source.lock import Lock

TOOLCHAIN = Toolchain(
    tools=(
        Tool("cc", Path("/usr/bin/cc"), "12.2.0"),
        Tool("cxx", Path("/usr/bin/c++"), "12.2.0"),
        Tool("nvcc", Path("/opt/cuda/bin/nvcc"), "13.0.88"),
        Tool("rocm", Path("/opt/rocm"), "6.4.1"),
    ),
    cc=Path("/usr/bin/cc"),
    cxx=Path("/usr/bin/c++"),
    entries=(("CUDAToolkit_ROOT", "/opt/cuda"),),
    env=(),
    options=BuildOptions(),
)


@pytest.fixture
def target(lock: Lock) -> Target:
    return make_target("cuda", TargetSpec(backends=("cuda",)), lock, arch="86", machine="x86_64")


def change_tool(name: str, **changes: object) -> Toolchain:
    tools = tuple(replace(tool, **changes) if tool.name == name else tool for tool in TOOLCHAIN.tools)  # type: ignore[arg-type]
    return replace(TOOLCHAIN, tools=tools)


def test_the_same_again_is_used_again(tmp_path: Path, target: Target) -> None:
    assert stale_reason(tmp_path / "missing", stamp_of(Path("/s"), target, TOOLCHAIN)) is None
    assert stale_reason(tmp_path, stamp_of(Path("/s"), target, TOOLCHAIN)) is None
    write_stamp(tmp_path, stamp_of(Path("/s"), target, TOOLCHAIN))
    assert stale_reason(tmp_path, stamp_of(Path("/s"), target, TOOLCHAIN)) is None


@pytest.mark.parametrize(
    ("source", "toolchain", "words"),
    [
        ("/other", TOOLCHAIN, "another source tree (/s, now /other)"),
        ("/s", change_tool("cc", version="13.1.0"), "another C compiler (/usr/bin/cc 12.2.0, now /usr/bin/cc 13.1.0)"),
        ("/s", change_tool("cxx", path=Path("/usr/bin/clang++")), "another C++ compiler"),
        ("/s", change_tool("nvcc", version="12.9.86"), "another CUDA compiler"),
        ("/s", change_tool("rocm", version="6.4.2"), "another ROCm (/opt/rocm 6.4.1, now /opt/rocm 6.4.2)"),
        ("/s", replace(TOOLCHAIN, entries=(("CUDAToolkit_ROOT", "/usr/local/cuda"),)), "another toolkit"),
        ("/s", replace(TOOLCHAIN, options=BuildOptions(launcher="none")), "another launcher (ccache, now none)"),
    ],
)
def test_what_changed_is_said(source: str, toolchain: Toolchain, words: str, tmp_path: Path, target: Target) -> None:
    write_stamp(tmp_path, stamp_of(Path("/s"), target, TOOLCHAIN))
    assert words in (stale_reason(tmp_path, stamp_of(Path(source), target, toolchain)) or "")


def test_a_backend_that_was_turned_off_does_not_linger(tmp_path: Path, target: Target, lock: Lock) -> None:
    write_stamp(tmp_path, stamp_of(Path("/s"), target, TOOLCHAIN))
    cpu = make_target("cuda", TargetSpec(backends=("cpu",)), lock, arch="", machine="x86_64")
    assert "without GGML_CUDA=ON" in (stale_reason(tmp_path, stamp_of(Path("/s"), cpu, TOOLCHAIN)) or "")


def test_a_folder_of_unknown_origin_is_not_used(tmp_path: Path, target: Target) -> None:
    stamp = stamp_of(Path("/s"), target, TOOLCHAIN)
    cache = tmp_path / "CMakeCache.txt"
    cache.write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\nCMAKE_GENERATOR:INTERNAL=Ninja\n")
    assert "another source tree (/elsewhere, now /s)" in (stale_reason(tmp_path, stamp) or "")
    cache.write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/s\nCMAKE_GENERATOR:INTERNAL=Ninja\n")
    assert stale_reason(tmp_path, stamp) == "it was not configured by llamabuild"
    (tmp_path / STAMP).write_text("{ half")
    assert stale_reason(tmp_path, stamp) == "it was not configured by llamabuild"
