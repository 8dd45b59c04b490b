"""CMakeCache text, as people's build folders hold it."""

from __future__ import annotations

import pytest

from llamabuild.build.cmake_cache import is_false, parse_cache
from llamabuild.verify.inspect.build import inspect_build


def inspect(tmp_path, text, commands=None):
    (tmp_path / "CMakeCache.txt").write_bytes(text.encode())
    if commands is not None:
        (tmp_path / "compile_commands.json").write_text(commands)
    return inspect_build(tmp_path)


@pytest.mark.parametrize("value", ["ON", "on", "TRUE", "True", "YES", "y", "Y", "1", "2", "-1", "86"])
def test_every_spelling_of_true_turns_a_backend_on(value, tmp_path):
    assert inspect(tmp_path, f"GGML_CUDA:BOOL={value}\n").backends["cuda"].state == "on"


@pytest.mark.parametrize("value", ["OFF", "off", "FALSE", "NO", "n", "N", "0", "IGNORE", "", "NOTFOUND", "X-NOTFOUND"])
def test_every_spelling_of_false_turns_a_backend_off(value, tmp_path):
    assert inspect(tmp_path, f"GGML_CUDA:BOOL={value}\n").backends["cuda"].state == "off"
    assert is_false(value)


@pytest.mark.parametrize(
    ("line", "name", "kind", "value"),
    [
        ("A:BOOL=ON", "A", "BOOL", "ON"),
        ("  A:STRING=x \t", "A", "STRING", "x"),
        ('"A:B":STRING=x', "A:B", "STRING", "x"),
        ("A:STRING='  x '", "A", "STRING", "  x "),
        ("A:PATH=/a=b:c", "A", "PATH", "/a=b:c"),
        ("A:FANCY=x", "A", "STRING", "x"),
        ("A=x", "A", "UNINITIALIZED", "x"),
        ("A:STRING=", "A", "STRING", ""),
    ],
)
def test_an_entry_is_read_as_cmake_reads_it(line, name, kind, value):
    (entry,) = parse_cache(line + "\r\n").entries.values()
    assert (entry.name, entry.kind, entry.value) == (name, kind, value)


def test_comments_help_and_crlf_are_no_entries():
    cache = parse_cache("# GGML_HIP:BOOL=ON\r\n//GGML_VULKAN:BOOL=ON\r\n// more\r\nGGML_CUDA:BOOL=ON\r\n\r\n")
    assert list(cache.entries) == ["GGML_CUDA"]
    assert cache.entries["GGML_CUDA"].help == "GGML_VULKAN:BOOL=ON more"
    assert cache.problems == ()


def test_the_second_line_of_a_value_is_told_as_no_entry():
    cache = parse_cache("A:STRING=one\ntwo\nB:BOOL=ON\n")
    assert cache.entries["A"].value == "one"
    assert cache.problems == ("line 2: 'two' is no entry",)
    assert "B" in cache.entries


@pytest.mark.parametrize(
    ("given", "declared", "backend"),
    [
        ("LLAMA_CUDA", "GGML_CUDA", "cuda"),
        ("LLAMA_CUBLAS", "GGML_CUDA", "cuda"),
        ("GGML_HIPBLAS", "GGML_HIP", "hip"),
        ("LLAMA_HIPBLAS", "GGML_HIP", "hip"),
        ("LLAMA_VULKAN", "GGML_VULKAN", "vulkan"),
        ("GGML_VULKN", "GGML_VULKAN", "vulkan"),
        ("GGML_HIP", "GGML_HIPBLAS", "hip"),
        ("GGML_CUDA", "LLAMA_CUBLAS", "cuda"),
    ],
    ids=str,
)
def test_a_name_that_the_tree_does_not_read_is_ignored_and_the_right_one_told(given, declared, backend, tmp_path):
    text = f"GGML_CPU:BOOL=ON\n{declared}:BOOL=OFF\n{given}:UNINITIALIZED=ON\n"
    inspection = inspect(tmp_path, text)
    assert inspection.backends[backend].state == "ignored"
    assert [(each.name, each.suggestion) for each in inspection.ignored_options] == [(given, declared)]


def test_an_option_of_an_unknown_tree_gets_todays_name(tmp_path):
    inspection = inspect(tmp_path, "CMAKE_BUILD_TYPE:STRING=Release\nLLAMA_CUBLAS:UNINITIALIZED=ON\n")
    assert inspection.backends["cuda"].state == "ignored"
    assert inspection.ignored_options[0].suggestion == "GGML_CUDA"


def test_old_trees_and_ik_llama_are_read_by_their_own_names(tmp_path):
    old = inspect(tmp_path, "LLAMA_CUBLAS:BOOL=ON\nLLAMA_NATIVE:BOOL=ON\nLLAMA_METAL:BOOL=OFF\n")
    assert old.backends["cuda"].state == "on"
    assert old.backends["metal"].state == "off"
    assert old.native is True
    ik = inspect(tmp_path, "GGML_HIPBLAS:BOOL=ON\nGGML_IQK_FA_ALL_QUANTS:BOOL=OFF\nGGML_NATIVE:BOOL=OFF\n")
    assert ik.backends["hip"].state == "on"
    assert ik.native is False


def test_names_that_the_tree_reads_undeclared_are_not_called_ignored(tmp_path):
    text = (
        "GGML_CPU:BOOL=ON\nLLAMA_BUILD_NUMBER:UNINITIALIZED=11146\nCMAKE_CXX_COMPILER_LAUNCHER:UNINITIALIZED=ccache\n"
    )
    inspection = inspect(tmp_path, text)
    assert inspection.ignored_options == ()
    assert inspection.details["build_number"] == 11146


def test_the_list_of_available_backends_is_a_leftover_once_one_is_off(tmp_path):
    text = "GGML_CPU:BOOL=ON\nGGML_VULKAN:BOOL=OFF\nGGML_AVAILABLE_BACKENDS:INTERNAL=ggml-cpu;ggml-vulkan\n"
    inspection = inspect(tmp_path, text)
    assert inspection.backends["vulkan"].state == "off"
    assert "ggml-vulkan" in inspection.leftovers[0]


def test_gpu_backend_variables_of_forks_are_accepted(tmp_path):
    inspection = inspect(tmp_path, "GPU_BACKEND_CUDA:BOOL=OFF\nGPU_BACKEND_HIP:STRING=ON\n")
    assert inspection.backends["cuda"].state == "off"
    assert inspection.backends["hip"].state == "on"


def test_missing_tools_are_the_searches_that_found_nothing(tmp_path):
    text = "Vulkan_GLSLC_EXECUTABLE:FILEPATH=Vulkan_GLSLC_EXECUTABLE-NOTFOUND\nVulkan_LIBRARY:FILEPATH=/l/v.so\n"
    assert inspect(tmp_path, text).missing_tools == ("Vulkan_GLSLC_EXECUTABLE",)


def commands(*flags: str) -> str:
    import json

    line = {"directory": "/b", "command": f"c++ {' '.join(flags)} -c /s/a.cpp", "file": "/s/a.cpp"}
    return json.dumps([{**line, "output": "ggml/src/CMakeFiles/ggml-cpu.dir/a.cpp.o"}])


def test_native_is_read_from_the_commands_and_not_from_the_cache(tmp_path):
    """ggml-org/llama.cpp#8734."""
    text = "GGML_CPU:BOOL=ON\nGGML_NATIVE:BOOL=OFF\n"
    inspection = inspect(tmp_path, text, commands("-O3", "-march=native"))
    assert inspection.native is True
    assert any("GGML_NATIVE is OFF" in each for each in inspection.disagreements)
    assert inspect(tmp_path, text, commands("-march=native", "-march=x86-64-v3")).native is False


def test_native_in_the_cached_flags_counts_where_no_commands_are_left(tmp_path):
    text = "GGML_NATIVE:BOOL=OFF\nCMAKE_CXX_FLAGS:STRING=-O2 -march=native\n"
    inspection = inspect(tmp_path, text)
    assert (inspection.native, inspection.native_from) == (True, "compiler flags in the cache")


def test_an_unreadable_commands_file_is_told(tmp_path):
    inspection = inspect(tmp_path, "GGML_NATIVE:BOOL=OFF\n", "[{")
    assert inspection.native is False
    assert any("compile_commands.json could not be read" in each for each in inspection.details["cmake_problems"])


def test_archs_of_the_commands_are_held_against_the_cache(tmp_path):
    text = "GGML_CUDA:BOOL=ON\nGGML_CPU:BOOL=ON\nCMAKE_CUDA_ARCHITECTURES:STRING=120\n"
    flags = '"--generate-code=arch=compute_120a,code=[compute_120a,sm_120a]"'
    inspection = inspect(tmp_path, text, commands(flags))
    assert inspection.archs == ("120",)
    assert inspection.details["compiled"]["sass"] == ["120a"]
    assert inspection.details["compiled"]["ptx"] == ["120a"]
    assert any("120a" in each for each in inspection.disagreements)


@pytest.mark.parametrize(
    ("flag", "sass", "ptx"),
    [
        ("--generate-code=arch=compute_86,code=[sm_86]", ["86"], []),
        ("--generate-code=arch=compute_86,code=[compute_86]", [], ["86"]),
        ("--generate-code=arch=compute_86,code=[compute_86,sm_86]", ["86"], ["86"]),
        ("-gencode=arch=compute_90a,code=sm_90a", ["90a"], []),
        ("-arch=sm_75", ["75"], []),
    ],
)
def test_real_and_virtual_archs_are_told_apart_in_the_commands(flag, sass, ptx, tmp_path):
    compiled = inspect(tmp_path, "GGML_CUDA:BOOL=ON\n", commands(f'"{flag}"')).details["compiled"]
    assert (compiled["sass"], compiled["ptx"]) == (sass, ptx)


@pytest.mark.parametrize(
    ("text", "flags", "nccl"),
    [
        ("GGML_CUDA:BOOL=ON\nGGML_CUDA_NCCL:BOOL=ON\nNCCL_LIBRARY:FILEPATH=/l/libnccl.so\n", None, True),
        ("GGML_CUDA:BOOL=ON\nGGML_CUDA_NCCL:BOOL=ON\nNCCL_LIBRARY:FILEPATH=NCCL_LIBRARY-NOTFOUND\n", None, False),
        ("GGML_CUDA:BOOL=ON\nGGML_CUDA_NCCL:BOOL=OFF\n", None, False),
        ("GGML_CUDA:BOOL=ON\nGGML_CUDA_NCCL:BOOL=ON\n", "-DGGML_USE_NCCL", True),
        ("GGML_CUDA:BOOL=ON\nGGML_CUDA_NCCL:BOOL=ON\n", "-O2", False),
        ("GGML_CUDA:BOOL=OFF\nGGML_CUDA_NCCL:BOOL=ON\n", None, False),
        ("GGML_CPU:BOOL=ON\n", None, None),
    ],
)
def test_nccl_is_on_where_it_is_linked_and_not_where_it_is_permitted(text, flags, nccl, tmp_path):
    assert inspect(tmp_path, text, None if flags is None else commands(flags)).nccl is nccl


def test_a_lone_cache_does_not_borrow_the_commands_of_another_build(tmp_path):
    (tmp_path / "compile_commands.json").write_text(commands("-march=native"))
    path = tmp_path / "CMakeCache.txt"
    path.write_text("GGML_NATIVE:BOOL=OFF\nCMAKE_CACHEFILE_DIR:INTERNAL=/elsewhere/build\n")
    inspection = inspect_build(path)
    assert (inspection.kind, inspection.native) == ("cmake-cache", False)
    path.write_text(f"GGML_NATIVE:BOOL=OFF\nCMAKE_CACHEFILE_DIR:INTERNAL={tmp_path}\n")
    assert inspect_build(path).native is True
