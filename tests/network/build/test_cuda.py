"""A CUDA toolkit of NVIDIA's wheels, and real configures of v0.5.0 with it."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build.cmake import build_folder
from llamabuild.build.launchers import launcher_entries, launcher_env
from llamabuild.build.model import BuildOptions
from llamabuild.core.context import Home
from llamabuild.core.errors import ToolError
from llamabuild.elf.device_code import read_device_code
from llamabuild.elf.read import read_elf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.network
WHEELS = BuildOptions(cuda_toolkit="wheels:13.0")


@pytest.fixture(scope="module")
def toolkit(real: Any) -> Any:
    """The toolchain of a CUDA target for one arch, with its toolkit assembled."""
    try:
        return real.prepare("cuda", arch="86-real", options=WHEELS, backends=("cuda",))
    except ToolError as failure:
        if failure.log:
            pytest.skip(f"NVIDIA's wheels cannot be had: {failure.message}")
        raise


def test_the_wheels_become_a_whole_toolkit(toolkit: Any, tmp_path: Path) -> None:
    _, toolchain = toolkit
    nvcc = toolchain.tool("nvcc")
    assert nvcc.version.startswith("13.0.")
    root = nvcc.path.parents[1]
    assert toolchain.runtime_folders == (root / "lib64",)
    assert {name.split("-")[0] for name, _ in toolchain.checksums} >= {
        "nvidia_cuda_nvcc",
        "nvidia_cublas",
        "nvidia_nvvm",
    }
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for _, digest in toolchain.checksums)
    # A plugin that uses the driver must keep it in NEEDED, under the name of the real one.
    source = tmp_path / "uses.c"
    source.write_text(
        "int cuMemCreate(void), cuMemMap(void), cuGetErrorString(void);\n"
        "int f(void) { return cuMemCreate() + cuMemMap() + cuGetErrorString(); }\n"
    )
    argv = ["cc", "-shared", "-fPIC", "-Wl,--no-undefined", "-o", tmp_path / "uses.so", source]
    subprocess.run([*argv, f"-L{root}/lib64/stubs", "-lcuda"], check=True)
    assert "[libcuda.so.1]" in subprocess.check_output(["readelf", "-d", tmp_path / "uses.so"], text=True)
    assert (root / "licenses").is_dir()


def test_a_second_preflight_neither_fetches_nor_assembles_again(real: Any, toolkit: Any) -> None:
    root = toolkit[1].tool("nvcc").path.parents[1]
    before = root.stat().st_ctime_ns
    again = real.prepare("cuda", arch="86-real", options=WHEELS, backends=("cuda",))
    assert root.stat().st_ctime_ns == before
    assert again[1].checksums == toolkit[1].checksums


def test_an_object_of_one_tree_is_a_hit_in_another(real: Any, toolkit: Any, tmp_path: Path) -> None:
    target, toolchain = toolkit
    context = replace(real.context, home=Home(tmp_path))
    objects = []
    for name in ("one", "two"):
        tree = tmp_path / "src" / name
        (tree / "build").mkdir(parents=True)
        (tree / "shared.h").write_text("inline const char * place() { return __FILE__; }\n")
        (tree / "a.cu").write_text(
            '#include "shared.h"\n__global__ void add(float * x) { *x += 1; }\n'
            "const char * here() { return place(); }\n"
        )
        launcher = launcher_entries(target, toolchain, source=tree)["CMAKE_CUDA_COMPILER_LAUNCHER"].split(";")
        words = [*launcher, toolchain.tool("nvcc").path, "-arch=sm_86", "-MD", "-MF", "a.o.d", "-o", "a.o"]
        env = {**os.environ, **launcher_env(toolchain.options, source=tree, context=context)}
        subprocess.run([*words, f"-I{tree}", "-c", tree / "a.cu"], cwd=tree / "build", env=env, check=True)
        objects.append((tree / "build/a.o").read_bytes())
    stats = [toolchain.tool("ccache").path, "--print-stats"]
    counted = subprocess.check_output(stats, env={"CCACHE_DIR": str(context.home.ccache)}, text=True)
    assert "cache_miss\t1\n" in counted
    assert objects[0] == objects[1]
    assert str(tmp_path).encode() not in objects[0]


def test_an_arch_that_the_toolkit_has_left_behind_is_told_with_one_that_has_it(real: Any, toolkit: Any) -> None:
    with pytest.raises(ToolError, match="nvcc") as caught:
        real.prepare("cuda", arch="61", options=WHEELS, backends=("cuda",))
    assert any("Unsupported gpu architecture" in line for line in caught.value.details)
    assert "install CUDA 12" in (caught.value.hint or "")


def test_the_dual_target_configures_with_one_arch_and_no_collectives(real: Any, toolkit: Any, vulkan_sdk: Path) -> None:
    options = BuildOptions(cuda_toolkit="wheels:13.0", vulkan_sdk=vulkan_sdk)
    made = real.prepare("cuda-vulkan", arch="86", options=options, backends=("cuda", "vulkan"))
    assert {"ggml-cpu", "ggml-cuda", "ggml-vulkan", "llama-server"} <= set(real.configure(made))
    folder = build_folder(real.source, made[0])
    listing = subprocess.check_output([made[1].tool("cmake").path, "-L", "-N", folder], text=True)
    for line in ("GGML_CUDA:BOOL=ON", "GGML_VULKAN:BOOL=ON", "GGML_CUDA_NCCL:BOOL=OFF", "GGML_NATIVE:BOOL=OFF"):
        assert line in listing
    commands = (folder / "compile_commands.json").read_text()
    assert set(re.findall(r"arch=compute_(\w+)", commands)) == {"86"}
    assert "-march=native" not in commands
    assert "GGML_USE_NCCL" not in commands


@pytest.mark.slow
def test_a_whole_cuda_plugin_holds_sass_for_the_one_arch(real: Any, toolkit: Any) -> None:
    tree = real.build(toolkit)
    plugin = next(file.path for file in tree.files if file.target == "ggml-cuda")
    needed = subprocess.check_output(["readelf", "-d", plugin], text=True)
    assert "[libcuda.so.1]" in needed
    assert "libnccl" not in needed
    assert str(real.context.home.src).encode() not in plugin.read_bytes()
    code = read_device_code(read_elf(plugin))
    assert code is not None
    assert [arch for arch, _ in code.sass] == ["86"]
    assert code.ptx == ()
