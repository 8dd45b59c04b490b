"""The CMake driver on a small project: what it builds, shares, refuses and survives."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build import cmake as driver
from llamabuild.build.cmake import build_folder
from llamabuild.build.host import Host
from llamabuild.build.model import BuildOptions, BuildTree
from llamabuild.build.network import namespace_prefix
from llamabuild.core.errors import BuildError

if TYPE_CHECKING:
    from pytest_httpserver import HTTPServer


def cached(small: Any) -> dict[str, int]:
    """ccache's own count of hits and misses."""
    argv = [Path(sys.executable).with_name("ccache"), "--print-stats"]
    env = {"CCACHE_DIR": str(small.context.home.ccache)}
    lines = subprocess.check_output(argv, env=env, text=True).splitlines()
    return {name: int(value) for name, value in (line.split("\t") for line in lines)}


def path_of(tree: BuildTree, target: str) -> Path:
    return next(file.path for file in tree.files if file.target == target)


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def test_builds_the_programs_the_plugin_and_their_libraries(small: Any) -> None:
    source = small.source()
    target, toolchain = small.prepare()
    tree = small.build(source, (target, toolchain))
    assert {(file.target, file.kind, file.plugin) for file in tree.files} == {
        ("ggml-base", "shared", False),
        ("ggml-cpu", "module", True),
        ("llama", "shared", False),
        ("llama-bench", "executable", False),
        ("llama-cli", "executable", False),
        ("llama-server", "executable", False),
    }
    assert path_of(tree, "ggml-base").name == "libggml-base.so.0.25.1"
    assert path_of(tree, "ggml-cpu").name == "libggml-cpu.so"
    assert tree.folder == source / "build-cpu"
    printed = subprocess.check_output([path_of(tree, "llama-server")], text=True)
    assert printed.startswith("llama-server 11146 7fe450e19 42 ")
    listing = subprocess.check_output([toolchain.tool("cmake").path, "-L", "-N", tree.folder], text=True)
    for line in ("GGML_NATIVE:BOOL=OFF", "GGML_BACKEND_DL:BOOL=ON", "GGML_CUDA_NCCL:BOOL=OFF", "GGML_AVX2:BOOL=ON"):
        assert line in listing
    assert "LLAMA_BUILD_IS_DEV:BOOL=OFF" in listing


@pytest.mark.parametrize("launcher", ["ccache", "none"])
def test_leaves_no_build_path_in_any_binary(launcher: Any, small: Any) -> None:
    tree = small.build(small.source(), small.prepare(BuildOptions(launcher=launcher)))
    for file in tree.files:
        assert str(small.context.home.root).encode() not in file.path.read_bytes(), file.path
        dynamic = subprocess.check_output(["readelf", "-d", file.path], text=True)
        assert "Dynamic section" in dynamic
        assert str(small.context.home.root) not in dynamic


def test_a_sibling_tree_hits_all_it_shares_and_its_libraries_are_identical(small: Any) -> None:
    made = small.prepare()
    first = small.build(small.source("one"), made)
    before = cached(small)
    assert before["cache_miss"] == 7
    changed = {"llama.cpp": "#include <string>\nstd::string llama_place() { return {}; }\n"}
    second = small.build(small.source("another-longer-name", changed), made)
    after = cached(small)
    assert after["cache_miss"] - before["cache_miss"] == 1
    assert after["direct_cache_hit"] - before["direct_cache_hit"] == 6
    for name in ("ggml-base", "ggml-cpu"):
        assert path_of(first, name).read_bytes() == path_of(second, name).read_bytes()
    assert path_of(first, "llama").read_bytes() != path_of(second, "llama").read_bytes()


def test_a_failing_compile_says_command_error_and_log(small: Any) -> None:
    with pytest.raises(BuildError) as caught:
        small.build(small.source(changes={"llama.cpp": "int broken( { return 1; }\n"}))
    failure = caught.value
    assert failure.exit_code == 6
    assert "CMakeFiles/llama.dir/llama.cpp.o" in failure.message
    assert failure.details[0].startswith("command: ")
    assert "llama.cpp" in failure.details[0]
    assert any("error:" in line and "llama.cpp:1" in line for line in failure.details[1:])
    assert failure.log is not None
    assert "error:" in failure.log.read_text()


def test_a_failing_configure_says_its_first_error(small: Any) -> None:
    lists = 'cmake_minimum_required(VERSION 3.15)\nproject(x C CXX)\nmessage(FATAL_ERROR "no toolkit here")\n'
    with pytest.raises(BuildError, match="could not configure") as caught:
        small.build(small.source(changes={"CMakeLists.txt": lists}))
    assert "no toolkit here" in "\n".join(caught.value.details)


def test_an_option_that_the_tree_does_not_know_is_refused_with_the_nearest(small: Any) -> None:
    made = small.prepare(cmake={"GGML_CUDA_NCLL": "OFF"})
    with pytest.raises(BuildError, match="GGML_CUDA_NCLL") as caught:
        small.build(small.source(), made)
    assert caught.value.hint == "The nearest that it knows is GGML_CUDA_NCCL."


def test_a_program_that_the_tree_lacks_is_refused_with_the_nearest(small: Any) -> None:
    made = small.prepare(programs=("llama-serve",))
    with pytest.raises(BuildError, match="llama-serve") as caught:
        small.build(small.source(), made)
    assert "llama-server" in (caught.value.hint or "")


def test_another_compiler_gives_a_fresh_folder_and_one_line(small: Any, tmp_path: Path) -> None:
    source = small.source()
    marker = small.configure(source) / "left-from-before"
    marker.touch()
    small.configure(source)
    assert marker.exists()
    other = tmp_path / "other-c++"
    other.symlink_to(shutil.which("c++") or "c++")
    small.configure(source, small.prepare(env={"CXX": str(other)}))
    assert not marker.exists()
    assert small.said.count("fresh build folder") == 1
    assert "another C++ compiler" in small.said


def test_a_folder_configured_by_hand_for_another_generator_is_not_reused(small: Any) -> None:
    source = small.source()
    target, toolchain = small.prepare()
    program = shutil.which("make") or shutil.which("true")
    argv = [toolchain.tool("cmake").path, "-G", "Unix Makefiles", f"-DCMAKE_MAKE_PROGRAM={program}"]
    subprocess.run([*argv, "-S", source, "-B", build_folder(source, target)], check=True, capture_output=True)
    small.configure(source, (target, toolchain))
    assert "another generator (Unix Makefiles, now Ninja)" in small.said


def test_flags_of_the_environment_do_not_reach_the_compiler(small: Any) -> None:
    flags = {"CXXFLAGS": "-march=native", "CFLAGS": "-march=native"}
    here = replace(small, context=replace(small.context, env={**small.context.env, **flags}))
    folder = here.configure(here.source())
    assert "-march=native" not in (folder / "compile_commands.json").read_text()
    assert "CFLAGS, CXXFLAGS of the environment not used" in here.said


_KILLED_RUN = """
import pickle, sys
from llamabuild.build.cmake import configure_and_build
from llamabuild.core.console import Console
from llamabuild.core.context import Context
patched, source, (target, toolchain), home, env = pickle.load(sys.stdin.buffer)
configure_and_build(patched, source, target, toolchain, Context(home=home, console=Console(), env=env))
"""


def test_a_killed_build_goes_on_and_its_compilers_are_waited_for(small: Any, tmp_path: Path) -> None:
    # The compiler is made slow by a wrapper, so that the kill surely lands inside a compile.
    started, slow = tmp_path / "started", tmp_path / "slow-c++"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *llama.cpp.o*) touch {started}; sleep 1;; esac\nexec c++ "$@"\n')
    slow.chmod(0o755)
    source = small.source()
    made = small.prepare(BuildOptions(launcher="none"), env={"CXX": str(slow)})
    argument = pickle.dumps((small.patched, source, made, small.context.home, dict(small.context.env)))
    with subprocess.Popen([sys.executable, "-c", _KILLED_RUN], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(argument)
        child.stdin.close()
        deadline = time.monotonic() + 30
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
    assert started.exists()
    assert not (source / "build-cpu/bin/llama-server").exists()
    tree = small.build(source, made)
    assert "waiting for another run" in small.said
    printed = subprocess.check_output([path_of(tree, "llama-server")], text=True)
    assert printed.startswith("llama-server 11146")


def test_two_runs_at_once_build_one_after_the_other(small: Any) -> None:
    source, made = small.source(), small.prepare()
    trees: list[BuildTree] = []
    threads = [threading.Thread(target=lambda: trees.append(small.build(source, made))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trees) == 2
    assert trees[0].files == trees[1].files


def test_the_build_has_no_network(small: Any, httpserver: HTTPServer) -> None:
    if not namespace_prefix(Host.of(small.context)):
        pytest.skip("this kernel lets no network namespace be made")
    httpserver.expect_request("/file").respond_with_data("content")
    source = small.source()
    place = "${CMAKE_BINARY_DIR}/got"
    append(source / "CMakeLists.txt", f"file(DOWNLOAD {httpserver.url_for('/file')} {place} TIMEOUT 5 STATUS how)\n")
    append(source / "CMakeLists.txt", 'message("how: ${how}")\n')
    tree = small.build(source)
    assert tree.network == "namespace"
    assert "how: " in tree.log.read_text()
    assert httpserver.log == []


def test_without_a_namespace_a_tree_that_downloads_is_refused(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "namespace_prefix", lambda host: ())
    source = small.source()
    far = "include(ExternalProject)\nExternalProject_Add(far URL http://127.0.0.1:9/far.tar.gz)\n"
    append(source / "CMakeLists.txt", far)
    with pytest.raises(BuildError, match=r"would download.*download-far\.cmake"):
        small.build(source)


def test_configuring_has_no_network_where_the_compile_step_needs_one(
    small: Any, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not namespace_prefix(Host.of(small.context)):
        pytest.skip("this kernel lets no network namespace be made")
    monkeypatch.setattr(driver, "needs_network", lambda options: True)
    source = small.source()
    append(source / "CMakeLists.txt", f"file(DOWNLOAD {httpserver.url_for('/file')} ${{CMAKE_BINARY_DIR}}/got)\n")
    assert small.build(source).network == "options checked"
    assert httpserver.log == []


def test_without_a_namespace_an_option_that_downloads_is_refused_before_it_does(
    small: Any, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "namespace_prefix", lambda host: ())
    source = small.source()
    fetch = f"file(DOWNLOAD {httpserver.url_for('/ui')} ${{CMAKE_BINARY_DIR}}/ui)\n"
    append(source / "CMakeLists.txt", f"option(LLAMA_BUILD_UI on ON)\nif(LLAMA_BUILD_UI)\n{fetch}endif()\n")
    with pytest.raises(BuildError, match=r"would download from the network: LLAMA_BUILD_UI\."):
        small.build(source, small.prepare(cmake={"LLAMA_BUILD_UI": "ON"}))
    assert httpserver.log == []


def test_without_a_namespace_cmakes_own_fetching_is_off(
    small: Any, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "namespace_prefix", lambda host: ())
    source = small.source()
    lists = f"include(FetchContent)\nFetchContent_Declare(far URL {httpserver.url_for('/far.tar.gz')})\n"
    append(source / "CMakeLists.txt", f"{lists}FetchContent_MakeAvailable(far)\n")
    with contextlib.suppress(BuildError):  # raised by CMake with its policy CMP0170
        small.configure(source)
    assert httpserver.log == []


def test_a_full_disk_is_called_by_its_name(small: Any, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(full)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system can only be mounted by root")
    try:
        source = full / "small"
        shutil.move(small.source(), source)
        with pytest.raises(BuildError, match="the disk is full") as caught:
            small.build(source, small.prepare(BuildOptions(launcher="none")))
        assert caught.value.exit_code == 6
    finally:
        subprocess.run(["umount", str(full)], check=True)
