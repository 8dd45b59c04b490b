"""Preflight for HIP in the four layouts of a ROCm tree: which folders the compiler and CMake are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build.hip import check_hip
from llamabuild.build.model import BuildOptions, Target
from llamabuild.build.targets import make_target
from llamabuild.recipe.model import TargetSpec

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.source.lock import Lock

LAYOUTS = {
    "amd": ("", "lib", "lib/llvm/bin/clang++"),
    "therock": ("", "lib", "lib/llvm/bin/clang++"),
    "debian": ("usr", "usr/lib/x86_64-linux-gnu", "usr/bin/clang++-21"),
    "wheels": ("_rocm_sdk_devel", "_rocm_sdk_libraries_gfx120X_all/lib", "_rocm_sdk_core/lib/llvm/bin/clang++"),
}
"""Layout → prefix, library folder and compiler, below the root."""


@pytest.fixture
def target(lock: Lock) -> Target:
    return make_target("hip", TargetSpec(backends=("hip",)), lock, arch="gfx1201", machine="x86_64")


def lay(root: Path, layout: str) -> tuple[Path, Path, str]:
    """A tree with empty files; returns its prefix, library folder and compiler."""
    prefix, libraries, clang = LAYOUTS[layout]
    names = [f"{libraries}/librocblas.so.5", clang, f"{prefix}/include/hip/hip_runtime.h".lstrip("/")]
    names += ["lib/rocm_sysdeps/lib/librocm_sysdeps_z.so.1"] * (layout == "therock")
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root / prefix, root / libraries, str(root / clang)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiler_and_cmake_are_given_the_folder_with_the_headers(
    layout: str, tmp_path: Path, target: Target, machines: Any
) -> None:
    prefix, libraries, clang = lay(tmp_path, layout)
    own = [] if layout == "debian" else [f"--rocm-path={prefix}"]
    helpers = [f"-L{tmp_path}/lib/rocm_sysdeps/lib"] if layout == "therock" else []
    words = [clang, "-x hip --offload-arch=gfx1201", *own, "{source} -o {out}", f"-I{prefix}/include"]
    trial = " ".join([*words, f"-L{libraries}", *helpers, "-lamdhip64 -lhipblas -lrocblas"])
    outputs = {f"{clang} --version": "clang version 21.1.0", trial: ""}
    host = machines.plain(programs={"clang": clang}, outputs=outputs)
    checked = check_hip(target, host, BuildOptions(rocm=tmp_path))
    assert checked.problems == ()
    entries = {"CMAKE_HIP_COMPILER": clang, "CMAKE_PREFIX_PATH": str(prefix)}
    if layout == "debian":
        assert (dict(checked.entries), checked.env) == (entries, ())
    else:
        assert dict(checked.entries) == {**entries, "CMAKE_HIP_COMPILER_ROCM_ROOT": str(prefix)}
        assert dict(checked.env) == {"ROCM_PATH": str(prefix)}


def test_the_release_is_a_tool_so_that_an_upgrade_in_place_shows(tmp_path: Path, target: Target, machines: Any) -> None:
    prefix, _, clang = lay(tmp_path, "debian")
    host = machines.plain(programs={"clang": clang}, outputs={f"{clang} --version": "clang version 21.1.0"})
    assert check_hip(target, host, BuildOptions(rocm=tmp_path)).tools[1].version == "unknown"
    header = "#define HIP_VERSION_MAJOR 6\n#define HIP_VERSION_MINOR 4\n#define HIP_VERSION_PATCH 43483\n"
    (prefix / "include/hip/hip_version.h").write_text(header)
    checked = check_hip(target, host, BuildOptions(rocm=tmp_path))
    assert [(tool.name, tool.version) for tool in checked.tools] == [("hipcc", "21.1.0"), ("rocm", "6.4.43483")]
    assert checked.tools[1].path == tmp_path


def test_runtime_libraries_alone_are_refused_with_what_brings_the_rest(
    tmp_path: Path, target: Target, machines: Any
) -> None:
    lay(tmp_path, "wheels")
    (tmp_path / "_rocm_sdk_devel/include/hip/hip_runtime.h").unlink()
    (problem,) = check_hip(target, machines.plain(), BuildOptions(rocm=tmp_path)).problems
    assert problem.message.startswith(f"{tmp_path} holds ROCm's run-time libraries alone")
    assert problem.package == "rocm-devel"
