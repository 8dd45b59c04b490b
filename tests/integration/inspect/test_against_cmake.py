"""The cache reader against CMake itself: the same text, the same entries, the same truth."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llamabuild.build.cmake_cache import is_false, parse_cache
from llamabuild.verify.inspect.build import inspect_build

CMAKE = Path(sysconfig.get_path("scripts")) / "cmake"
NINJA = Path(sysconfig.get_path("scripts")) / "ninja"

NAMES = st.sampled_from(["A", "GGML_CUDA", "A B", '"A:B"', "A-STRINGS", '"q', "", "A-ADVANCED", "#A", " A", "A'"])
KINDS = st.sampled_from(
    [":BOOL", ":STRING", ":PATH", ":FILEPATH", ":INTERNAL", ":STATIC", ":UNINITIALIZED", ":foo", ":", "", ":BOOL:X"]
)
VALUES = st.one_of(
    st.sampled_from(["ON", "", "'  x '", "'", "''", "a=b", "a;b", " x", "x \t", '"q"', "/a/b", "X-NOTFOUND"]),
    st.text(alphabet="ab'\" \t=:;#/", max_size=6),
)
ENTRIES = st.tuples(NAMES, KINDS, VALUES).map(lambda parts: f"{parts[0]}{parts[1]}={parts[2]}")
LINES = st.one_of(
    ENTRIES,
    ENTRIES,
    st.sampled_from(["", "# c", "// help", "//", "  // x", "   ", "\t# x", "junk"]),
    st.text(alphabet="AB:=/# '\"\t", max_size=8),
)
INDENTED = st.lists(st.tuples(st.sampled_from(["", " ", "\t"]), LINES).map("".join), min_size=1, max_size=8)
TEXTS = st.tuples(INDENTED, st.sampled_from(["\n", "\r\n"])).map(lambda parts: parts[1].join(parts[0]) + parts[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cache")
    (root / "source").mkdir()
    return root


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS)
def test_the_entries_are_those_that_cmake_lists(folder, text):
    head = f"CMAKE_CACHE_MAJOR_VERSION:INTERNAL=4\nCMAKE_HOME_DIRECTORY:INTERNAL={folder}/source\n"
    (folder / "CMakeCache.txt").write_bytes((head + text).encode())
    words = [CMAKE, "-LA", "-N", folder]
    out = subprocess.run(words, capture_output=True, check=False).stdout.decode()
    listed = out.split("-- Cache values\n", 1)[1].split("\n")[:-1]
    # CMake lists neither what it keeps for itself nor what nobody declared.
    mine = [
        f"{entry.name}:{entry.kind}={entry.value}"
        for entry in parse_cache(head + text).entries.values()
        if entry.kind not in {"INTERNAL", "STATIC", "UNINITIALIZED"}
    ]
    assert sorted(mine) == sorted(listed)


def test_truth_is_what_if_makes_of_it(folder):
    values = [
        "ON",
        "oN",
        "Off",
        "1",
        "0",
        "00",
        "0.0",
        "2",
        "-1",
        "y",
        "Yes",
        "no",
        "N",
        "t",
        "TRUE",
        "false",
        "Ignore",
    ]
    values += ["", " ", "x", "notfound", "NOTFOUND", "a-NOTFOUND", "a-notfound", "NOTFOUNDa", "-NOTFOUND", "86"]
    script = folder / "truth.cmake"
    lines = [f'set(V "{value}")\nif(V)\nmessage("1")\nelse()\nmessage("0")\nendif()' for value in values]
    script.write_text("\n".join(lines))
    out = subprocess.run([CMAKE, "-P", script], capture_output=True, text=True, check=True).stderr.split()
    assert [not is_false(value) for value in values] == [word == "1" for word in out]


PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(tiny C)
if(LLAMA_RPC) # as llama_option_depr does in upstream's CMakeLists.txt
    message(WARNING "LLAMA_RPC is deprecated, use GGML_RPC instead")
    set(GGML_RPC ON)
endif()
option(GGML_CPU "cpu" ON)
option(GGML_CUDA "cuda" OFF)
option(GGML_HIP "hip" OFF)
option(GGML_VULKAN "vulkan" OFF)
option(GGML_RPC "rpc" OFF)
option(GGML_NATIVE "native" ON)
option(GGML_BACKEND_DL "plugins" OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_program(Vulkan_GLSLC_EXECUTABLE NAMES no-such-glslc)
list(APPEND BACKENDS ${GGML_AVAILABLE_BACKENDS})
foreach(backend CPU VULKAN RPC)
    if(GGML_${backend})
        string(TOLOWER ggml-${backend} name)
        file(WRITE ${CMAKE_BINARY_DIR}/${name}.c "int f(void) { return 1; }\\n")
        add_library(${name} MODULE ${CMAKE_BINARY_DIR}/${name}.c)
        set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
        if(GGML_NATIVE OR HIDDEN_NATIVE)
            target_compile_options(${name} PRIVATE -march=native)
        endif()
        list(APPEND BACKENDS ${name})
    endif()
endforeach()
set(GGML_AVAILABLE_BACKENDS "${BACKENDS}" CACHE INTERNAL "")
"""


@pytest.fixture
def configure(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(PROJECT)

    def run(*options: str, build: bool = False) -> Path:
        out = tmp_path / "build"
        words = [CMAKE, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}", "-S", source, "-B", out, *options]
        subprocess.run(words, check=True, capture_output=True)
        if build:
            subprocess.run([NINJA, "-C", out], check=True, capture_output=True)
        return out

    return run


def test_a_real_configure_is_told_right(configure):
    out = configure("-DGGML_VULKAN=yes", "-DGGML_NATIVE=OFF", "-DGGML_BACKEND_DL=1", "-DCMAKE_BUILD_TYPE=Release")
    inspection = inspect_build(out)
    assert {name: backend.state for name, backend in inspection.backends.items()} == {
        "cpu": "on",
        "cuda": "off",
        "hip": "off",
        "rpc": "off",
        "vulkan": "on",
    }
    assert inspection.backends["vulkan"].kind == "plugin"
    assert (inspection.native, inspection.native_from) == (False, "compile commands")
    assert "Vulkan_GLSLC_EXECUTABLE" in inspection.missing_tools
    assert inspection.ignored_options == ()
    assert (inspection.details["generator"], inspection.details["build_type"]) == ("Ninja", "Release")


@pytest.mark.parametrize("given", ["-DGGML_HIPBLAS=ON", "-DGGML_HIPBLAS:BOOL=ON"])
def test_an_option_that_no_option_declares_is_ignored_typed_or_not(configure, given):
    inspection = inspect_build(configure(given))
    assert inspection.backends["hip"].state == "ignored"
    assert [(each.name, each.suggestion) for each in inspection.ignored_options] == [("GGML_HIPBLAS", "GGML_HIP")]


def test_a_typed_option_that_is_declared_is_not_ignored(configure):
    inspection = inspect_build(configure("-DGGML_VULKAN:BOOL=ON"))
    assert inspection.backends["vulkan"].state == "on"
    assert inspection.ignored_options == ()


def test_native_that_the_cache_hides_is_seen_in_the_commands(configure):
    inspection = inspect_build(configure("-DGGML_NATIVE=OFF", "-DHIDDEN_NATIVE=1"))
    assert inspection.native is True


def test_what_a_reconfigure_left_behind_is_told(configure):
    from llamabuild.verify.inspect.run import inspect_path

    configure("-DGGML_VULKAN=ON", build=True)
    out = configure("-DGGML_VULKAN=OFF", build=True)
    listed = next(line for line in (out / "CMakeCache.txt").read_text().splitlines() if "AVAILABLE_BACKENDS" in line)
    assert "ggml-vulkan" in listed, "CMake's own list keeps the backend"
    inspection = inspect_path(out)
    assert inspection.backends["vulkan"].state == "off"
    assert any("GGML_AVAILABLE_BACKENDS still names ggml-vulkan" in each for each in inspection.leftovers)
    assert any("libggml-vulkan.so was built before" in each for each in inspection.leftovers)


def test_a_deprecated_name_that_the_tree_still_takes_is_on(configure):
    inspection = inspect_build(configure("-DLLAMA_RPC=ON"))
    assert "GGML_RPC:" not in (Path(inspection.subject) / "CMakeCache.txt").read_text(), "CMake left no such entry"
    assert (inspection.backends["rpc"].state, inspection.backends["rpc"].option) == ("on", "LLAMA_RPC")
    assert inspection.ignored_options == ()


def test_where_the_cache_says_off_and_the_backend_is_compiled_the_commands_are_right(configure, tmp_path):
    configure()
    out = configure("-DLLAMA_RPC=ON")
    assert "GGML_RPC:BOOL=OFF" in (out / "CMakeCache.txt").read_text(), "the entry of the first configure stays"
    assert inspect_build(out).backends["rpc"].state == "on"
    alone = tmp_path / "CMakeCache.txt"
    alone.write_bytes((out / "CMakeCache.txt").read_bytes())
    assert inspect_build(alone).backends["rpc"].state == "ignored"


def test_the_document_has_the_keys_of_the_contract(configure, tmp_path):
    document = inspect_build(configure()).to_json()
    assert json.loads(json.dumps(document)) == document
    assert {"schema", "kind", "backends", "archs", "native", "rccl", "nccl", "missing_tools", "ignored_options"} <= set(
        document
    )
    assert document["schema"] == 1
    assert document["kind"] == "build"
