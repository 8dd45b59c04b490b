"""Ninja's and CMake's output, as they were seen."""

from __future__ import annotations

from llamabuild.build.ninja import NinjaReader, cmake_errors


class Steps:
    def __init__(self) -> None:
        self.seen: list[tuple[float, float, str]] = []

    def update(self, done: float, total: float, text: str = "") -> None:
        self.seen.append((done, total, text))


def read(*lines: str) -> tuple[NinjaReader, Steps]:
    steps = Steps()
    reader = NinjaReader(progress=steps)
    for line in lines:
        reader.feed(line)
    return reader, steps


def test_the_counter_moves_the_bar_and_a_nested_ninja_does_not() -> None:
    _, steps = read(
        "[1/220] Building C object ggml/src/ggml.c.o",
        "[2/220] Performing build step for 'vulkan-shaders-gen'",
        "[1/2] Building CXX object vulkan-shaders-gen.cpp.o",
        "[3/220] Linking CXX shared library bin/libggml.so",
    )
    assert [(done, total) for done, total, _ in steps.seen] == [(1, 220), (2, 220), (3, 220)]
    assert steps.seen[-1][2] == "Linking CXX shared library bin/libggml.so"


def test_the_first_failure_is_kept_with_its_command_and_errors() -> None:
    reader, _ = read(
        "[7/16] Building CXX object a.cpp.o",
        "FAILED: [code=1] CMakeFiles/llama.dir/llama.cpp.o ",
        "/usr/bin/ccache /usr/bin/c++ -c /s/llama.cpp",
        "/s/llama.cpp: In function 'int f()':",
        "/s/llama.cpp:1:12: error: expected primary-expression",
        "    1 | int broken( { return 1; }",
        "[8/16] Building CXX object b.cpp.o",
        "FAILED: [code=1] other.o ",
        "other command",
        "ninja: build stopped: subcommand failed.",
    )
    assert reader.failed_output == "CMakeFiles/llama.dir/llama.cpp.o"
    assert reader.failed_command == "/usr/bin/ccache /usr/bin/c++ -c /s/llama.cpp"
    assert reader.first_errors == ("/s/llama.cpp:1:12: error: expected primary-expression",)


def test_the_usual_catastrophes_are_known() -> None:
    full, _ = read("FAILED: a.o ", "c++", "fatal error: error writing to /tmp/x.s: No space left on device")
    assert full.disk_full
    killed, _ = read("FAILED: a.o ", "c++", "c++: fatal error: Killed signal terminated program cc1plus")
    assert killed.out_of_memory
    assert not killed.disk_full


def test_the_first_cmake_error_block() -> None:
    lines = (
        "-- Found Threads: TRUE",
        "CMake Error at ggml/src/ggml-vulkan/CMakeLists.txt:8 (find_package):",
        "  Could NOT find Vulkan (missing: glslc)",
        "",
        "  Call Stack (most recent call first):",
        "",
        "-- Configuring incomplete, errors occurred!",
    )
    assert cmake_errors(lines) == (lines[1], lines[2], lines[4])
