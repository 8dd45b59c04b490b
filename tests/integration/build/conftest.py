"""A small CMake project with the option names, the plugin and the programs of llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from llamabuild.build.cmake import build_folder, configure, configure_and_build
from llamabuild.build.host import Host
from llamabuild.build.targets import machine_of, make_target
from llamabuild.build.toolchain import preflight
from llamabuild.recipe.model import TargetSpec
from llamabuild.source.lock import PatchedSource

from ...pinned import V050

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.build.model import BuildOptions, BuildTree, Target, Toolchain
    from llamabuild.core.context import Context

CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.15)
project(small C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
option(BUILD_SHARED_LIBS "" ON)
option(GGML_BACKEND_DL "" OFF)
option(GGML_NATIVE "" ON)
option(GGML_CCACHE "" ON)
option(GGML_CPU "" ON)
option(GGML_CPU_ALL_VARIANTS "" OFF)
option(GGML_CUDA "" OFF)
option(GGML_CUDA_NCCL "" ON)
option(GGML_OPENMP "" ON)
foreach(feature AVX AVX2 BMI2 F16C FMA SSE42)
    option(GGML_${feature} "" OFF)
endforeach()
option(LLAMA_BUILD_IS_DEV "" ON)
option(LLAMA_BUILD_TESTS "" ON)
option(LLAMA_BUILD_UI "" OFF)
option(LLAMA_USE_PREBUILT_UI "" ON)
option(LLAMA_OPENSSL "" ON)
find_program(GIT_EXE NAMES git)
add_library(ggml-base base.c)
set_target_properties(ggml-base PROPERTIES VERSION 0.25.1 SOVERSION 0)
add_library(ggml-cpu MODULE cpu.cpp)
target_link_libraries(ggml-cpu PRIVATE ggml-base)
add_library(llama llama.cpp)
target_link_libraries(llama PRIVATE ggml-base)
add_executable(generator generator.c)
add_custom_command(OUTPUT generated.h COMMAND generator > generated.h DEPENDS generator)
add_library(unused unused.cpp)
foreach(program llama-server llama-cli llama-bench)
    add_executable(${program} main.cpp ${CMAKE_CURRENT_BINARY_DIR}/generated.h)
    target_include_directories(${program} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
    target_compile_definitions(${program} PRIVATE NAME="${program}" NUMBER=${LLAMA_BUILD_NUMBER}
                                                  COMMIT="${LLAMA_BUILD_COMMIT}")
    target_link_libraries(${program} PRIVATE llama)
endforeach()
"""
SOURCES = {
    "CMakeLists.txt": CMAKE_LISTS,
    "base.c": "const char * base_place(void) { return __FILE__; }\n",
    "cpu.cpp": 'extern "C" const char * base_place();\nextern "C" const char * cpu() { return base_place(); }\n',
    "llama.cpp": '#include <string>\nextern "C" const char * base_place();\n'
    "std::string llama_place() { return std::string(base_place()) + __FILE__; }\n",
    "generator.c": '#include <stdio.h>\nint main(void) { puts("#define GENERATED 42"); return 0; }\n',
    "unused.cpp": '#error "nothing needs this library"\n',
    "main.cpp": "#include <cstdio>\n#include <string>\n#include <generated.h>\nstd::string llama_place();\n"
    'int main() { std::printf("%s %d %s %d %s\\n", NAME, NUMBER, COMMIT, GENERATED, llama_place().c_str()); }\n',
}
LOCK = replace(V050, recipe="small")


@dataclass(frozen=True)
class Small:
    """The small project, and the driver to build it with."""

    context: Context

    @property
    def said(self) -> str:
        """All that was written to the console."""
        return self.context.console.stream.getvalue()  # type: ignore[attr-defined]

    @property
    def patched(self) -> PatchedSource:
        """A patched source; the driver reads its lock alone."""
        git = self.context.home.git
        return PatchedSource(LOCK, git, provider="cache", base="0" * 40, commit="1" * 40, tree=LOCK.tree, outcomes=())

    def source(self, name: str = "small-1", changes: dict[str, str] | None = None) -> Path:
        """Write the project as a source tree of the home, with the texts of some files changed."""
        folder = self.context.home.src / name
        folder.mkdir(parents=True)
        for file, text in {**SOURCES, **(changes or {})}.items():
            (folder / file).write_text(text)
        return folder

    def prepare(
        self, options: BuildOptions | None = None, *, env: dict[str, str] | None = None, **spec: object
    ) -> tuple[Target, Toolchain]:
        """A target and the toolchain that preflight finds for it on this machine."""
        here = replace(self.context, env={**self.context.env, **(env or {})})
        host = Host.of(here)
        written = TargetSpec.model_validate({"backends": ("cpu",), **spec})
        target = make_target("cpu", written, LOCK, arch="", machine=machine_of(host))
        return target, preflight(target, host=host, context=here, options=options)

    def configure(self, source: Path, made: tuple[Target, Toolchain] | None = None) -> Path:
        """Configure alone; returns the build folder."""
        target, toolchain = made or self.prepare()
        configure(self.patched, source, target, toolchain, self.context)
        return build_folder(source, target)

    def build(self, source: Path, made: tuple[Target, Toolchain] | None = None) -> BuildTree:
        """Configure and build."""
        target, toolchain = made or self.prepare()
        return configure_and_build(self.patched, source, target, toolchain, self.context)


@pytest.fixture
def small(context: Context) -> Small:
    """The small project in a home of its own."""
    return Small(context)
