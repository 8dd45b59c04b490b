"""A repository like llama.cpp's in small, a recipe that pins it, and the program run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.15)
project(small C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
foreach(name BUILD_SHARED_LIBS GGML_BACKEND_DL GGML_NATIVE GGML_CCACHE GGML_CPU GGML_CUDA_NCCL LLAMA_BUILD_TESTS
             GGML_AVX GGML_AVX2 GGML_BMI2 GGML_F16C GGML_FMA GGML_SSE42
             LLAMA_BUILD_UI LLAMA_USE_PREBUILT_UI LLAMA_OPENSSL LLAMA_BUILD_IS_DEV)
    option(${name} "" OFF)
endforeach()
find_program(GIT_EXE NAMES git)
add_library(ggml-base base.c)
set_target_properties(ggml-base PROPERTIES VERSION 0.25.1 SOVERSION 0)
find_package(OpenMP REQUIRED)
target_link_libraries(ggml-base PRIVATE OpenMP::OpenMP_C)
add_library(ggml-cpu MODULE cpu.c)
target_link_libraries(ggml-cpu PRIVATE ggml-base)
foreach(program llama-server llama-cli llama-bench)
    add_executable(${program} main.c)
    target_compile_definitions(${program} PRIVATE NUMBER="${LLAMA_BUILD_NUMBER}" COMMIT="${LLAMA_BUILD_COMMIT}")
    target_link_libraries(${program} PRIVATE ggml-base ${CMAKE_DL_LIBS})
endforeach()
"""
BASE = """\
#include <omp.h>
int ggml_base_threads(void) { return omp_get_max_threads(); }
const char * ggml_base_greeting(void) { return "hello"; }
"""
CPU = "int ggml_base_threads(void);\nint ggml_backend_score(void) { return ggml_base_threads(); }\n"
MAIN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int ggml_base_threads(void);
const char * ggml_base_greeting(void);
int main(int argc, char ** argv) {
    const char * what = argc > 1 ? argv[1] : "";
    char self[PATH_MAX + 64] = {0};
    if (ggml_base_threads() < 1 || readlink("/proc/self/exe", self, PATH_MAX) < 0) return 3;
    strcat(dirname(self), "/libggml-cpu.so");
    if (dlopen(self, RTLD_NOW)) fprintf(stderr, "load_backend: loaded CPU backend from %s\n", self);
    if (!strcmp(what, "--version")) { printf("version: 0.5.0 (build %s, commit %s)\n", NUMBER, COMMIT); return 0; }
    if (!strcmp(what, "--help")) { puts("--version --list-devices"); return 0; }
    if (!strcmp(what, "--list-devices")) { puts("Available devices:\n  (none)"); return 0; }
    puts(ggml_base_greeting());
    return 0;
}
"""
PATCH = """\
From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001
From: A Maintainer <maintainer@example.org>
Date: Mon, 28 Sep 2026 10:00:00 +0000
Subject: [PATCH] base: greet the fork

---
 base.c | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/base.c b/base.c
--- a/base.c
+++ b/base.c
@@ -1,3 +1,3 @@
 #include <omp.h>
 int ggml_base_threads(void) { return omp_get_max_threads(); }
-const char * ggml_base_greeting(void) { return "hello"; }
+const char * ggml_base_greeting(void) { return "hello, fork"; }
--
2.39.5
"""
SERIES = """\
schema = 1
name = "greeting"
summary = "Greet the fork"

[[part]]
kind = "files"
files = ["0001-greet.patch"]
"""


def git(folder: Path, *words: str) -> str:
    env = {
        **os.environ,
        **{f"GIT_{who}_{what}": value
           for who in ("AUTHOR", "COMMITTER")
           for what, value in (("NAME", "U"), ("EMAIL", "u@example.org"), ("DATE", "2026-09-23T12:00:00Z"))},
    }  # fmt: skip
    return subprocess.run(
        ["git", "-C", folder, *words], check=True, capture_output=True, text=True, env=env
    ).stdout.strip()


@dataclass(frozen=True)
class Workshop:
    """A folder with ``upstream``, ``recipes``, ``patches``, and a home of its own."""

    folder: Path
    texts: Mapping[str, str]
    """The files of the first commit upstream."""

    @property
    def pin(self) -> tuple[str, str]:
        """The newest commit upstream and its tree."""
        upstream = self.folder / "upstream"
        return git(upstream, "rev-parse", "HEAD"), git(upstream, "rev-parse", "HEAD^{tree}")

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMABUILD_")}
        return {**kept, "LLAMABUILD_HOME": str(self.folder / "home"), "CI": "true"}

    def commit(self, files: Mapping[str, str]) -> None:
        """Commit files upstream."""
        upstream = self.folder / "upstream"
        for name, text in files.items():
            (upstream / name).write_text(text)
        git(upstream, "add", "-A")
        git(upstream, "commit", "-qm", "Change")

    def recipe(self, *, name: str = "small", extra: str = "", target: str = "") -> Path:
        commit, tree = self.pin
        path = self.folder / "recipes" / f"{name}.toml"
        path.write_text(
            f'schema = 1\nname = "{name}"\nsummary = "A small one"\n\n[source]\n'
            f'repository = "{(self.folder / "upstream").as_uri()}"\nref = "main"\ncommit = "{commit}"\n'
            f'tree = "{tree}"\nbuild-number = 11146\ndate = 2026-09-23T12:00:00Z\n{extra}\n'
            f'[targets.cpu]\nbackends = ["cpu"]\n{target}\n'
        )
        return path

    def argv(self, *words: str | Path) -> list[str | Path]:
        return [sys.executable, "-m", "llamabuild", *words]

    def run(self, *words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words), cwd=self.folder, env=env or self.env, capture_output=True, text=True, check=False
        )

    def make(self, recipe: str = "small", out: str = "dist", **options: str) -> subprocess.CompletedProcess[str]:
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        return self.run("make", "--recipe", recipe, "--target", "cpu", "--out", out, *flags)

    def sums(self, out: str = "dist") -> str:
        return (self.folder / out / "SHA256SUMS").read_text()


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    for name in ("upstream", "recipes", "patches/greeting"):
        (tmp_path / name).mkdir(parents=True)
    git(tmp_path, "init", "-q", "-b", "main", "upstream")
    (tmp_path / "patches" / "greeting.toml").write_text(SERIES)
    (tmp_path / "patches" / "greeting" / "0001-greet.patch").write_text(PATCH)
    here = Workshop(
        tmp_path,
        {"CMakeLists.txt": CMAKE_LISTS, "base.c": BASE, "cpu.c": CPU, "main.c": MAIN, "LICENSE": "MIT License\n"},
    )
    here.commit(here.texts)
    here.recipe(extra='[[series]]\nname = "greeting"')
    return here
