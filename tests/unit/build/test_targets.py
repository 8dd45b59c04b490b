"""From a recipe's targets to CMake entries, and the choice among them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build.targets import cpu_baseline, make_target, resolve_target
from llamabuild.core.errors import RecipeError, UsageError
from llamabuild.recipe.decided import decided_by
from llamabuild.recipe.model import Recipe, TargetSpec

if TYPE_CHECKING:
    from llamabuild.source.lock import Lock


def spec(**fields: Any) -> TargetSpec:
    return TargetSpec.model_validate(fields)


def test_every_target_is_portable_and_says_the_true_version(recipe: Recipe, lock: Lock) -> None:
    for name, written in recipe.targets.items():
        entries = dict(make_target(name, written, lock, arch=written.arch or "", machine="x86_64").entries)
        assert entries["GGML_NATIVE"] == "OFF"
        assert entries["GGML_BACKEND_DL"] == entries["BUILD_SHARED_LIBS"] == "ON"
        assert entries["GGML_CUDA_NCCL"] == entries["GGML_HIP_RCCL"] == "OFF"
        assert entries["LLAMA_BUILD_UI"] == entries["LLAMA_USE_PREBUILT_UI"] == entries["LLAMA_OPENSSL"] == "OFF"
        assert (entries["LLAMA_BUILD_NUMBER"], entries["LLAMA_BUILD_COMMIT"]) == ("11146", "7fe450e19")
        assert entries["LLAMA_BUILD_IS_DEV"] == "OFF"


def test_a_recipe_that_is_no_release_pin_keeps_the_dev_mark(lock: Lock) -> None:
    target = make_target("cpu", spec(backends=("cpu",)), replace(lock, release=False), arch="", machine="x86_64")
    assert dict(target.entries)["LLAMA_BUILD_IS_DEV"] == "ON"


def test_the_cpu_plugin_has_a_named_baseline_on_x86_and_the_compilers_own_elsewhere(lock: Lock) -> None:
    x86 = make_target("cpu", spec(backends=("cpu",)), lock, arch="", machine="x86_64")
    arm = make_target("cpu", spec(backends=("cpu",)), lock, arch="", machine="aarch64")
    assert dict(x86.entries)["GGML_AVX2"] == dict(x86.entries)["GGML_FMA"] == dict(x86.entries)["GGML_F16C"] == "ON"
    assert not any(name.startswith("GGML_AVX") for name, _ in arm.entries)
    assert "AVX2" in cpu_baseline(x86, "x86_64")
    assert "AArch64" in cpu_baseline(arm, "aarch64")


def test_every_cpu_variant_is_a_plugin_and_none_is_the_baseline(lock: Lock) -> None:
    target = make_target("cpu-all", spec(backends=("cpu",), cpu_variants=True), lock, arch="", machine="x86_64")
    entries = dict(target.entries)
    assert entries["GGML_CPU_ALL_VARIANTS"] == "ON"
    assert "GGML_AVX2" not in entries
    assert "run time" in cpu_baseline(target, "x86_64")


def test_hip_for_one_card_without_collectives(lock: Lock) -> None:
    target = make_target("hip", spec(backends=("hip",), arch="gfx1201"), lock, arch="gfx1201", machine="x86_64")
    entries = dict(target.entries)
    assert entries["GGML_HIP"] == "ON"
    assert entries["CMAKE_HIP_ARCHITECTURES"] == "gfx1201"
    assert entries["GGML_HIP_RCCL"] == "OFF"
    assert "GGML_CUDA" not in entries
    assert (target.rccl, target.nccl) == (False, False)


def test_collectives_are_on_when_the_recipe_asks(lock: Lock) -> None:
    hip = make_target("hip", spec(backends=("hip",), rccl=True), lock, arch="gfx942", machine="x86_64")
    cuda = make_target("cuda", spec(backends=("cuda",), nccl=True), lock, arch="90", machine="x86_64")
    assert dict(hip.entries)["GGML_HIP_RCCL"] == "ON"
    assert dict(hip.entries)["GGML_CUDA_NCCL"] == "OFF"
    assert dict(cuda.entries)["GGML_CUDA_NCCL"] == "ON"


def test_two_backends_in_one_build(recipe: Recipe, lock: Lock, machines: Any) -> None:
    target = resolve_target(recipe, lock, name="cuda-vulkan", arch=None, host=machines.plain())
    entries = dict(target.entries)
    assert entries["GGML_CUDA"] == entries["GGML_VULKAN"] == "ON"
    assert entries["CMAKE_CUDA_ARCHITECTURES"] == target.arch == "86"


def test_hip_with_cuda_is_refused(lock: Lock) -> None:
    with pytest.raises(RecipeError, match="cuda and hip"):
        make_target("both", spec(backends=("cuda", "hip")), lock, arch="86", machine="x86_64")


def test_a_recipes_own_entries_win_and_are_remembered(lock: Lock) -> None:
    written = spec(backends=("cpu",), cmake={"GGML_OPENMP": "OFF", "LLAMA_OPENSSL": "ON"})
    target = make_target("cpu", written, lock, arch="", machine="x86_64")
    assert dict(target.entries)["LLAMA_OPENSSL"] == "ON"
    assert target.asked == ("GGML_OPENMP", "LLAMA_OPENSSL")


def test_what_a_target_decides_is_not_open_to_a_recipes_own_entries(recipe: Recipe, lock: Lock) -> None:
    given: set[str] = set()
    for name, written in recipe.targets.items():
        given |= {key for key, _ in make_target(name, written, lock, arch=written.arch or "", machine="x86_64").entries}
    left = {name for name in given if decided_by(name) is None}
    assert left == {
        *("CMAKE_BUILD_TYPE", "CMAKE_EXPORT_COMPILE_COMMANDS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TESTS"),
        *("LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL"),
        *("GGML_AVX", "GGML_AVX2", "GGML_BMI2", "GGML_F16C", "GGML_FMA", "GGML_SSE42"),
    }


@pytest.mark.parametrize("arch", ["86", "86-real", "86-virtual", "120a", "120a-real", "90a"])
def test_cuda_archs_are_kept_as_written(arch: str, recipe: Recipe, lock: Lock, machines: Any) -> None:
    target = resolve_target(recipe, lock, name="cuda", arch=arch, host=machines.plain())
    assert target.arch == arch
    assert dict(target.entries)["CMAKE_CUDA_ARCHITECTURES"] == arch


@pytest.mark.parametrize(
    ("target", "arch", "words"),
    [
        ("cuda", "sm_86", "86."),
        ("cuda", "8.6", "86."),
        ("cuda", "compute_120a", "120a."),
        ("cuda", "native", "--arch auto"),
        ("cuda", "gfx1100", "AMD arch"),
        ("cuda", "ampere", "86-real"),
        ("hip", "86", "gfx1201"),
        ("hip", "gfx", "gfx1201"),
        ("hip", "gfx110X", "gfx1100, gfx1101, gfx1102 or gfx1103"),
        ("hip", "gfx103X-dgpu", "gfx1030, gfx1031, gfx1032 or gfx1034"),
        ("hip", "gfx120X-all", "gfx1200 or gfx1201"),
        ("hip", "gfx11-generic", "gfx1150"),
        ("cpu", "86", "Leave it out"),
        ("vulkan", "86", "Leave it out"),
        ("cuda", "86,89", "single-arch = false"),
        ("cuda", "86; 89", "single-arch = false"),
        ("cuda", " 86", "86-real"),
        ("hip", "gfx1100;gfx1101", "Make a target for each"),
        ("hip", "gfx90a:xnack-", "Write gfx90a: code without a mode runs in each."),
    ],
)
def test_an_arch_that_cannot_be_is_refused_with_what_can(
    target: str, arch: str, words: str, recipe: Recipe, lock: Lock, machines: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_target(recipe, lock, name=target, arch=arch, host=machines.plain())
    assert caught.value.exit_code == 2
    assert words in (caught.value.hint or "")


def test_a_list_is_taken_where_the_target_says_so(recipe: Recipe, lock: Lock, machines: Any) -> None:
    many = recipe.targets["cuda"].model_copy(update={"single_arch": False})
    other = recipe.model_copy(update={"targets": {"cuda": many}})
    target = resolve_target(other, lock, name="cuda", arch="86,89", host=machines.plain())
    assert target.arch == "86,89"
    assert dict(target.entries)["CMAKE_CUDA_ARCHITECTURES"] == "86;89"
    with pytest.raises(UsageError, match="twice"):
        resolve_target(other, lock, name="cuda", arch="86,86", host=machines.plain())
    for arch in ("86;89", "86, 89", "86 89", "86,89,"):
        with pytest.raises(UsageError) as caught:
            resolve_target(other, lock, name="cuda", arch=arch, host=machines.plain())
        assert caught.value.hint == "Write 86,89."
    amd = recipe.model_copy(
        update={"targets": {"hip": recipe.targets["hip"].model_copy(update={"single_arch": False})}}
    )
    with pytest.raises(UsageError, match="an AMD target takes exactly one arch"):
        resolve_target(amd, lock, name="hip", arch="gfx1100,gfx1101", host=machines.plain())


def test_a_gpu_target_without_an_arch_asks_for_one(recipe: Recipe, lock: Lock, machines: Any) -> None:
    bare = recipe.targets["cuda"].model_copy(update={"arch": None})
    other = recipe.model_copy(update={"targets": {"cuda": bare}})
    with pytest.raises(UsageError, match="needs an arch") as caught:
        resolve_target(other, lock, name="cuda", arch=None, host=machines.plain())
    assert "--arch auto" in (caught.value.hint or "")


def test_an_unknown_target_is_refused_with_the_nearest(recipe: Recipe, lock: Lock, machines: Any) -> None:
    with pytest.raises(UsageError, match="no target 'cuda-vulcan'") as caught:
        resolve_target(recipe, lock, name="cuda-vulcan", arch=None, host=machines.plain())
    assert "Did you mean cuda-vulkan?" in (caught.value.hint or "")


def test_auto_is_cpu_where_no_gpu_is_although_a_compiler_for_one_is(recipe: Recipe, lock: Lock, machines: Any) -> None:
    stray = machines.plain(
        programs={"nvcc": "/usr/local/cuda/bin/nvcc"}, outputs={"nvcc --version": "release 13.0, V13.0.48"}
    )
    assert resolve_target(recipe, lock, name=None, arch=None, host=stray).name == "cpu"
    assert resolve_target(recipe, lock, name="auto", arch=None, host=stray).name == "cpu"


def test_auto_with_an_arch_that_nothing_here_has_is_refused(recipe: Recipe, lock: Lock, machines: Any) -> None:
    with pytest.raises(UsageError, match="--arch 86"):
        resolve_target(recipe, lock, name="auto", arch="86", host=machines.plain())
