"""Preflight on recorded machines: what is missing, what brings it, and what would work instead."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build.cuda import gencode_flags
from llamabuild.build.host import Host
from llamabuild.build.jobs import default_jobs
from llamabuild.build.launchers import launcher_entries
from llamabuild.build.model import BuildOptions
from llamabuild.build.packages import install_line
from llamabuild.build.targets import make_target, resolve_target
from llamabuild.build.toolchain import preflight
from llamabuild.core.errors import ToolError

if TYPE_CHECKING:
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe
    from llamabuild.source.lock import Lock

CXX = "c++ -std=c++17 -O1 -pthread {source} -o {out}"
NVCC = "/opt/cuda/bin/nvcc"
GLSLC = "/usr/bin/glslc --target-env=vulkan1.3 -fshader-stage=compute {source} -o {out}"
VULKAN_CXX = "/usr/bin/c++ -std=c++17 -shared -fPIC {source} -o {out} -lvulkan"


def check(recipe: Recipe, lock: Lock, name: str, host: Any, context: Context, **options: Any) -> Any:
    target = resolve_target(recipe, lock, name=name, arch=None, host=host)
    return preflight(target, host=host, context=context, options=BuildOptions(**options), recipe=recipe)


def test_a_cpu_toolchain(recipe: Recipe, lock: Lock, machines: Any, context: Context) -> None:
    toolchain = check(recipe, lock, "cpu", machines.plain(), context)
    versions = {tool.name: tool.version for tool in toolchain}
    assert versions["cmake"] == "4.4.5"
    assert versions["ccache"] == "4.14.2"
    assert versions["strip"] == "2.40"
    assert versions["cxx"] == "12.2.0"
    assert toolchain.cxx == Path("/usr/bin/c++")
    assert toolchain.tool("nvcc") is None


def test_no_compiler_gives_the_distributions_install_line(
    recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    with pytest.raises(ToolError) as caught:
        check(recipe, lock, "cpu", machines.plain(without=("cc", "c++")), context)
    assert caught.value.exit_code == 5
    assert "no C++ compiler: none of c++, g++, clang++ was found." in caught.value.details
    assert caught.value.hint == "To get what is missing: apt-get install gcc g++."


def test_a_compiler_that_does_not_compile_is_no_compiler(
    recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    broken = machines.plain(failures={CXX: "trial.cpp:1:10: fatal error: filesystem: No such file or directory"})
    broken = replace(broken, outputs={key: text for key, text in broken.outputs.items() if key != CXX})
    with pytest.raises(ToolError) as caught:
        check(recipe, lock, "cpu", broken, context)
    assert any("does not compile and link a c++17 program" in line for line in caught.value.details)
    assert any("filesystem: No such file" in line for line in caught.value.details)


def test_a_compiler_named_in_the_environment_is_the_one_that_is_tried(
    recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    host = machines.plain(env={"CXX": "clang++-17"})
    with pytest.raises(ToolError) as caught:
        check(recipe, lock, "cpu", host, context)
    assert "no C++ compiler: CXX=clang++-17 is not a program." in caught.value.details


def test_too_little_disk_space_is_told_before_anything_long(
    recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    with pytest.raises(ToolError, match=r"has 100 MiB free, and building target cpu needs about \d+ MiB") as caught:
        check(recipe, lock, "cpu", machines.plain(free=100 << 20), context)
    assert "LLAMABUILD_HOME" in (caught.value.hint or "")
    # What is built already can be looked at with little space.
    (context.home.src / "r/build-cpu").mkdir(parents=True)
    assert check(recipe, lock, "cpu", machines.plain(free=100 << 20), context).cc == Path("/usr/bin/cc")


def test_a_named_target_without_its_toolchain_says_which_would_work(
    recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    with pytest.raises(ToolError, match="Target cuda-vulkan cannot be built") as caught:
        check(recipe, lock, "cuda-vulkan", machines.plain(), context)
    assert "nvcc, glslc" in caught.value.message
    hint = caught.value.hint or ""
    assert "--cuda-toolkit wheels:13.0" in hint
    assert "apt-get install glslc" in hint
    assert "Target cpu would work here: --target cpu." in hint


@pytest.mark.parametrize(("name", "free", "words"), [("cuda-vulkan", 1 << 40, "glslc"), ("cuda", 1, "MiB free")])
def test_what_else_is_missing_is_told_before_a_toolkit_is_fetched(
    name: str,
    free: int,
    words: str,
    recipe: Recipe,
    lock: Lock,
    machines: Any,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetch(*_: object) -> None:
        pytest.fail("the toolkit was fetched")

    monkeypatch.setattr("llamabuild.build.cuda_wheels.assemble_toolkit", fetch)
    with pytest.raises(ToolError, match=words):
        check(recipe, lock, name, machines.plain(free=free), context, cuda_toolkit="wheels:13.0")


def test_a_compiler_newer_than_nvcc_takes_is_replaced_by_an_older_one_that_is_there(
    recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    words = [NVCC, *gencode_flags("86"), "-L/opt/cuda/lib64/stubs"]
    libraries = "{source} -o {out} -lcublas -lcuda"
    refused = "#error -- unsupported GNU version! gcc versions later than 13 are not supported!"
    host = machines.plain(
        programs={"nvcc": NVCC},
        outputs={"nvcc --version": "Cuda compilation tools, release 12.4, V12.4.131"},
        failures={f"{' '.join(words)} {libraries}": refused},
    )
    with pytest.raises(ToolError) as caught:
        check(recipe, lock, "cuda", host, context)
    assert "nvcc 12.4.131 does not take this host compiler: gcc 13 is its limit." in caught.value.details
    assert "apt-get install g++-13." in (caught.value.hint or "")
    older = machines.change(
        host,
        programs={"g++-13": "/usr/bin/g++-13"},
        outputs={f"{' '.join(words)} -ccbin /usr/bin/g++-13 {libraries}": ""},
    )
    toolchain = check(recipe, lock, "cuda", older, context)
    assert dict(toolchain.entries)["CMAKE_CUDA_HOST_COMPILER"] == "/usr/bin/g++-13"
    assert dict(toolchain.entries)["CUDAToolkit_ROOT"] == "/opt/cuda"
    assert toolchain.tool("nvcc").version == "12.4.131"
    assert toolchain.runtime_folders == (Path("/opt/cuda/lib64"),)
    target = make_target("cuda", recipe.targets["cuda"], lock, arch="86", machine="x86_64")
    launchers = launcher_entries(target, toolchain, source=Path("/s"))
    assert set(launchers) == {f"CMAKE_{language}_COMPILER_LAUNCHER" for language in ("C", "CXX", "CUDA")}
    assert all(words.endswith(";/s;/usr/bin/ccache") for words in launchers.values())


def test_nvcc_itself_says_where_its_toolkit_is(recipe: Recipe, lock: Lock, machines: Any, context: Context) -> None:
    # A wrapper script on PATH: two folders above it is no toolkit.
    words = ["/usr/local/bin/nvcc", *gencode_flags("86"), "-L/opt/cuda-13.0/lib64/stubs"]
    host = machines.plain(
        programs={"nvcc": "/usr/local/bin/nvcc"},
        outputs={
            "nvcc --version": "Cuda compilation tools, release 13.0, V13.0.88",
            "nvcc --dryrun none.cu": "#$ _HERE_=/opt/cuda-13.0/bin\n#$ TOP=/opt/cuda-13.0/bin/..\n#$ PATH=/bin",
            f"{' '.join(words)} {{source}} -o {{out}} -lcublas -lcuda": "",
        },
    )
    toolchain = check(recipe, lock, "cuda", host, context)
    assert dict(toolchain.entries) == {
        "CMAKE_CUDA_COMPILER": "/usr/local/bin/nvcc",
        "CUDAToolkit_ROOT": "/opt/cuda-13.0",
    }
    assert toolchain.runtime_folders == (Path("/opt/cuda-13.0/lib64"),)


@pytest.mark.parametrize(("driver", "noted"), [("570.86.10", True), ("580.65.06", False)])
def test_a_driver_of_this_host_that_is_too_old_is_noted_and_does_not_stop_the_build(
    driver: str, noted: bool, recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    words = [NVCC, *gencode_flags("86"), "-L/opt/cuda/lib64/stubs"]
    host = machines.plain(
        programs={"nvcc": NVCC},
        files={"/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Sun May 12"},
        outputs={"nvcc --version": "V13.0.88", f"{' '.join(words)} {{source}} -o {{out}} -lcublas -lcuda": ""},
    )
    assert check(recipe, lock, "cuda", host, context).tool("nvcc").version == "13.0.88"
    said = context.console.stream.getvalue()
    assert (f"NVIDIA driver {driver} is older than 580.65.06" in said) == noted


def test_a_cudacxx_that_is_no_program_is_named(recipe: Recipe, lock: Lock, machines: Any, context: Context) -> None:
    host = machines.plain(env={"CUDACXX": "/opt/cuda-9/bin/nvcc"}, programs={"nvcc": NVCC})
    with pytest.raises(ToolError, match="nvcc") as caught:
        check(recipe, lock, "cuda", host, context)
    assert "no CUDA compiler: CUDACXX=/opt/cuda-9/bin/nvcc is not a program." in caught.value.details


@pytest.mark.parametrize(
    ("version", "arch", "advice"),
    [
        ("13.0.88", "61", "install CUDA 12 from NVIDIA"),
        ("13.0.88", "68", "give an arch that the toolkit knows"),
        ("13.0.88", "999", "give an arch that the toolkit knows"),
        ("12.4.131", "120", "--cuda-toolkit wheels:13.0"),
    ],
)
def test_an_arch_that_nvcc_does_not_know_is_told_with_those_that_it_does(
    version: str, arch: str, advice: str, recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    words = [NVCC, *gencode_flags(arch), "-L/opt/cuda/lib64/stubs"]
    host = machines.plain(
        programs={"nvcc": NVCC},
        outputs={"nvcc --version": f"V{version}", "nvcc --list-gpu-arch": "compute_75\ncompute_86"},
        failures={f"{' '.join(words)} {{source}} -o {{out}} -lcublas -lcuda": "Unsupported gpu architecture"},
    )
    target = resolve_target(recipe, lock, name="cuda", arch=arch, host=host)
    with pytest.raises(ToolError) as caught:
        preflight(target, host=host, context=context)
    assert f"nvcc {version} cannot compile for arch {arch}; it can for 75, 86." in caught.value.details
    assert advice in (caught.value.hint or "")
    assert ("wheels:13.0" in (caught.value.hint or "")) == (arch == "120")


@pytest.mark.parametrize(
    ("failures", "tool", "words"),
    [
        (
            {GLSLC: "trial.comp:2: error: '#extension' : extension not supported: GL_KHR_cooperative_matrix"},
            "glslc",
            "GL_KHR_cooperative_matrix",
        ),
        (
            {VULKAN_CXX: "trial.cpp:11: error: 'LayerSettingEXT' is not a member of 'vk'"},
            "Vulkan headers",
            "too old for v0.5.0",
        ),
        ({VULKAN_CXX: "#error no SPIR-V headers"}, "SPIR-V headers", "were not found"),
        ({VULKAN_CXX: "/usr/bin/ld: cannot find -lvulkan: No such file"}, "libvulkan", "does not link"),
    ],
)
def test_vulkan_is_tried_with_a_shader_and_a_line_of_cxx(
    failures: dict[str, str], tool: str, words: str, recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    good = machines.plain(
        programs={"glslc": "/usr/bin/glslc"},
        outputs={"glslc --version": "shaderc v2023.2", GLSLC: "", VULKAN_CXX: ""},
    )
    assert check(recipe, lock, "vulkan", good, context).tool("glslc").version == "2023.2"
    bad = replace(good, outputs={key: text for key, text in good.outputs.items() if key not in failures})
    with pytest.raises(ToolError, match=tool) as caught:
        check(recipe, lock, "vulkan", machines.change(bad, failures=failures), context)
    assert any(words in line for line in caught.value.details)


def test_a_vulkan_that_is_too_old_is_not_told_to_be_installed_again(
    recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    host = machines.plain(
        programs={"glslc": "/usr/bin/glslc"},
        outputs={"glslc --version": "shaderc v2023.2"},
        failures={GLSLC: "trial.comp:2: error: extension not supported", VULKAN_CXX: "error: no LayerSettingEXT"},
    )
    with pytest.raises(ToolError, match="glslc, Vulkan headers missing or not good enough") as caught:
        check(recipe, lock, "vulkan", host, context)
    hint = caught.value.hint or ""
    assert "apt-get" not in hint
    assert hint.count("--vulkan-sdk at LunarG's Vulkan SDK") == 1


def test_a_host_without_rocm_is_told_all_packages_at_once(machines: Any) -> None:
    line = "apt-get install hipcc libamdhip64-dev librocblas-dev libhipblas-dev"
    assert install_line(["hip"], machines.plain()) == line
    assert install_line(["hip", "rocblas"], machines.plain()) == line


def test_an_sdk_folder_gives_its_places_to_cmake(recipe: Recipe, lock: Lock, machines: Any, context: Context) -> None:
    sdk = "/opt/vulkan/x86_64"
    shader = GLSLC.replace("/usr/bin/glslc", f"{sdk}/bin/glslc")
    program = VULKAN_CXX.replace("-fPIC", f"-fPIC -I{sdk}/include").replace("-lvulkan", f"{sdk}/lib/libvulkan.so")
    host = machines.plain(
        env={"VULKAN_SDK": sdk},
        programs={"glslc": f"{sdk}/bin/glslc"},
        files={f"{sdk}/lib/libvulkan.so": "", f"{sdk}/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake": ""},
        outputs={"glslc --version": "shaderc v2025.2", shader: "", program: ""},
    )
    assert dict(check(recipe, lock, "vulkan", host, context).entries) == {
        "CMAKE_PREFIX_PATH": sdk,
        "SPIRV-Headers_DIR": f"{sdk}/share/cmake/SPIRV-Headers",
        "Vulkan_GLSLC_EXECUTABLE": f"{sdk}/bin/glslc",
        "Vulkan_INCLUDE_DIR": f"{sdk}/include",
        "Vulkan_LIBRARY": f"{sdk}/lib/libvulkan.so",
    }


def test_an_sdk_folder_that_is_none_is_named_though_the_system_has_vulkan(
    recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    host = machines.plain(
        programs={"glslc": "/usr/bin/glslc"},
        outputs={"glslc --version": "shaderc v2025.2", GLSLC: "", VULKAN_CXX: ""},
    )
    with pytest.raises(ToolError, match="Vulkan SDK") as caught:
        check(recipe, lock, "vulkan", host, context, vulkan_sdk=Path("/nowhere"))
    assert caught.value.details[0].startswith("--vulkan-sdk /nowhere is no Vulkan SDK: neither bin/glslc nor")
    with pytest.raises(ToolError) as caught:
        check(recipe, lock, "vulkan", machines.change(host, env={"VULKAN_SDK": "/gone"}), context)
    assert caught.value.details[0].startswith("VULKAN_SDK=/gone is no Vulkan SDK")


def test_hip_is_tried_for_its_gfx_and_asks_for_what_is_missing(
    recipe: Recipe, lock: Lock, machines: Any, context: Context, tmp_path: Path
) -> None:
    for name in ("lib/librocblas.so.4", "lib/llvm/bin/clang++", "include/hip/hip_runtime.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    clang = f"{tmp_path}/lib/llvm/bin/clang++"
    trial = (
        f"{clang} -x hip --offload-arch=gfx1201 --rocm-path={tmp_path} {{source}} -o {{out}} -I{tmp_path}/include"
        f" -L{tmp_path}/lib -lamdhip64 -lhipblas -lrocblas"
    )
    host = machines.plain(programs={"clang": clang}, outputs={f"{clang} --version": "AMD clang version 19.0.0"})
    lacking = machines.change(host, failures={trial: "trial.hip:2:10: fatal error: 'hipblas/hipblas.h' file not found"})
    with pytest.raises(ToolError, match="hipblas missing") as caught:
        check(recipe, lock, "hip", lacking, context, rocm=tmp_path)
    assert "apt-get install libhipblas-dev" in (caught.value.hint or "")
    toolchain = check(recipe, lock, "hip", machines.change(host, outputs={trial: ""}), context, rocm=tmp_path)
    assert dict(toolchain.entries)["CMAKE_HIP_COMPILER"] == clang
    assert dict(toolchain.env) == {"ROCM_PATH": str(tmp_path)}
    with pytest.raises(ToolError, match="ROCm missing") as caught:
        check(recipe, lock, "hip", host, context, rocm=tmp_path / "nowhere")
    assert any("holds no ROCm" in line for line in caught.value.details)


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("ID=ubuntu\nID_LIKE=debian", "apt-get install g++; python3 -m pip install cmake"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install gcc-c++; python3 -m pip install cmake"),
        ("ID=arch", "pacman -S gcc; python3 -m pip install cmake"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', "zypper install gcc-c++; python3 -m pip install cmake"),
        ("ID=nixos", "python3 -m pip install cmake; install what brings cxx on this distribution"),
    ],
)
def test_install_lines(release: str, line: str, machines: Any) -> None:
    assert install_line(["cxx", "cmake", "cxx"], machines.plain(files={"/etc/os-release": release})) == line


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("86", ["-gencode=arch=compute_86,code=[compute_86,sm_86]"]),
        ("86-real", ["-gencode=arch=compute_86,code=[sm_86]"]),
        ("86-virtual", ["-gencode=arch=compute_86,code=[compute_86]"]),
        ("120", ["-gencode=arch=compute_120a,code=[compute_120a,sm_120a]"]),
        ("120a-real", ["-gencode=arch=compute_120a,code=[sm_120a]"]),
    ],
)
def test_nvccs_flags_are_those_that_cmake_passes(arch: str, flags: list[str]) -> None:
    assert gencode_flags(arch) == flags


@pytest.mark.parametrize(
    ("name", "files", "jobs"),
    [
        ("cpu", {"/proc/meminfo": "MemAvailable:   33554432 kB"}, 8),
        ("cuda", {"/proc/meminfo": "MemAvailable:    8388608 kB"}, 4),
        ("cpu", {"/proc/meminfo": "MemAvailable:     102400 kB"}, 1),
        ("cpu", {"/proc/meminfo": "MemAvailable: 33554432 kB", "/sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ("cpu", {"/sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        (
            "cuda",
            {
                "/proc/meminfo": "MemAvailable: 33554432 kB",
                "/sys/fs/cgroup/memory.max": str(6 << 30),
                "/sys/fs/cgroup/memory.current": str(1 << 30),
            },
            2,
        ),
    ],
)
def test_jobs_follow_cores_and_memory(
    name: str, files: dict[str, str], jobs: int, recipe: Recipe, lock: Lock, machines: Any
) -> None:
    host = machines.plain(files=files)
    assert default_jobs(resolve_target(recipe, lock, name=name, arch=None, host=host), host) == jobs


@pytest.mark.parametrize(
    ("name", "hosts", "slots", "jobs"),
    [
        ("cpu", "a/20 b/20", "40", 40),
        ("vulkan", "a/20 b/20", "40", 40),
        ("cpu", "a/4", "4", 8),
        ("cpu", "localhost/40", "40", 8),
        ("cuda", "a/20 b/20", "40", 8),
    ],
)
def test_jobs_follow_the_farm_where_it_compiles_more(
    name: str, hosts: str, slots: str, jobs: int, recipe: Recipe, lock: Lock, machines: Any
) -> None:
    asked = f"env DISTCC_HOSTS={hosts} distcc"
    outputs = {f"{asked} -j": slots, f"{asked} --show-hosts": hosts.replace(" ", "\n")}
    host = machines.plain(env={"DISTCC_HOSTS": hosts}, outputs=outputs)
    target = resolve_target(recipe, lock, name=name, arch=None, host=host)
    assert default_jobs(target, host, farm="distcc") == jobs
    assert default_jobs(target, host) == 8


@pytest.mark.parametrize(
    ("hosts", "warned"),
    [("localhost/2\n127.0.0.1", True), ("", True), ("localhost/2\n10.0.0.1/8,lzo", False), ("127.0.0.1:4000", False)],
)
def test_a_farm_of_this_machine_alone_is_told(
    hosts: str, warned: bool, recipe: Recipe, lock: Lock, machines: Any, context: Context
) -> None:
    outputs = {"distcc --version": "distcc 3.4", "env distcc --show-hosts": hosts}
    host = machines.plain(programs={"distcc": "/usr/bin/distcc"}, outputs=outputs)
    check(recipe, lock, "cpu", host, context, farm="distcc")
    assert ("distcc knows no other machine" in context.console.stream.getvalue()) == warned


def test_a_trial_that_succeeded_is_not_repeated_until_its_tool_changes(tmp_path: Path) -> None:
    tool, runs = tmp_path / "tool", tmp_path / "runs"
    tool.write_text(f'#!/bin/sh\necho run >> {runs}\necho "out: $1" > "$4"\n')
    tool.chmod(0o755)
    host = Host(env={"PATH": "/usr/bin:/bin"}, records=tmp_path / "records")
    for _ in range(2):
        assert host.attempt([str(tool), "{source}"], name="a.c", text="int a;").ok
    assert runs.read_text() == "run\n"
    tool.write_text(f"#!/bin/sh\necho run >> {runs}\nexit 1\n")
    for _ in range(2):
        assert not host.attempt([str(tool), "{source}"], name="a.c", text="int a;").ok
    assert runs.read_text() == "run\n" * 3


def test_a_tool_that_does_not_say_what_it_reads_is_asked_each_time(tmp_path: Path) -> None:
    tool, runs = tmp_path / "tool", tmp_path / "runs"
    tool.write_text(f'#!/bin/sh\n[ $# = 1 ] || {{ echo "unknown option $2"; exit 1; }}\necho run >> {runs}\n')
    tool.chmod(0o755)
    host = Host(env={"PATH": "/usr/bin:/bin"}, records=tmp_path / "records")
    for _ in range(2):
        assert host.attempt([str(tool), "{source}"], name="a.c", text="int a;").ok
    assert runs.read_text() == "run\n" * 2


@pytest.mark.parametrize("gone", ["a folder/used.h", "lib/libused.so"])
def test_a_trial_is_repeated_once_a_header_or_library_is_gone(gone: str, tmp_path: Path) -> None:
    for folder in ("a folder", "lib", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a folder/used.h").write_text("int used(void);\n")
    library = tmp_path / "lib/libused.so"
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", library], input=b"int used(void) { return 0; }", check=True)
    host = Host(env={"PATH": os.environ["PATH"]}, records=tmp_path / "records")
    argv = ["cc", f"-I{tmp_path}/a folder", "{source}", "-o", "{out}", f"-L{tmp_path}/lib", "-lused"]

    def tried() -> bool:
        return host.attempt(argv, name="a.c", text="#include <used.h>\nint main(void) { return used(); }\n").ok

    assert tried()
    (record,) = (tmp_path / "records").iterdir()
    read = {path for path, *_ in json.loads(record.read_text())["read"]}
    assert {str(tmp_path / "a folder/used.h"), str(library)} <= read
    written = record.stat().st_mtime_ns
    assert tried()
    assert record.stat().st_mtime_ns == written
    (tmp_path / gone).unlink()
    assert not tried()


def test_a_host_compiler_that_changed_is_tried_again(tmp_path: Path) -> None:
    tool, other, runs = tmp_path / "nvcc", tmp_path / "g++-13", tmp_path / "runs"
    tool.write_text(f'#!/bin/sh\necho run >> {runs}\necho "out: in" > "$6"\n')
    other.write_text("#!/bin/sh\n")
    for program in (tool, other):
        program.chmod(0o755)
    host = Host(env={"PATH": "/usr/bin:/bin"}, records=tmp_path / "records")
    for text in ("#!/bin/sh\n", "#!/bin/sh\n", "#!/bin/sh\n# newer\n"):
        if other.read_text() != text:
            other.write_text(text)
        assert host.attempt([str(tool), "-ccbin", str(other), "{source}"], name="a.cu", text="").ok
    assert runs.read_text() == "run\n" * 2
