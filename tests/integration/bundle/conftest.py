"""A small build like llama.cpp's: a program, its libraries, and a plugin that it opens by name."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from llamabuild.build.model import BuildTree, BuiltFile, Target, Tool

PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int tool(void);
int main(void) {
    char path[4096] = {0};
    if (readlink("/proc/self/exe", path, sizeof path - 64) < 0) return 2;
    strcpy(strrchr(path, '/'), "/libggml-cpu.so");
    void *plugin = dlopen(path, RTLD_NOW);
    if (!plugin) { puts(dlerror()); return 3; }
    int (*score)(void) = (int (*)(void))dlsym(plugin, "score");
    printf("tool %d plugin %d\n", tool(), score());
    return 0;
}
"""


@dataclass(frozen=True)
class SmallBuild:
    """``build/bin`` as CMake leaves it: absolute RUNPATHs, versioned libraries with their links."""

    tree: BuildTree
    system: Path
    """A root with the system's libraries in it: libextra, which the plugin needs."""

    def with_files(self, *files: BuiltFile) -> SmallBuild:
        return replace(self, tree=replace(self.tree, files=(*self.tree.files, *files)))


def compile_c(target: Path, source: str, *flags: str | Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["gcc", "-x", "c", "-g", "-", "-o", target, "-x", "none", *flags], input=source, text=True, check=True
    )
    return target


@pytest.fixture(scope="session")
def small_template(tmp_path_factory: pytest.TempPathFactory) -> SmallBuild:
    """Compiled once; every test gets its own copy."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to make a build")
    return _make_small_build(tmp_path_factory.mktemp("small"))


@pytest.fixture
def small_build(small_template: SmallBuild, tmp_path: Path) -> SmallBuild:
    old = small_template.tree.source.parent
    for name in ("source", "system"):
        shutil.copytree(old / name, tmp_path / name, symlinks=True)

    def moved(path: Path) -> Path:
        return tmp_path / path.relative_to(old)

    tree = small_template.tree
    entries = tuple((name, value.replace(str(old), str(tmp_path))) for name, value in tree.cache_entries)
    tools = tuple(replace(tool, path=Path(str(tool.path).replace(str(old), str(tmp_path)))) for tool in tree.tools)
    files = tuple(replace(file, path=moved(file.path)) for file in tree.files)
    tree = replace(
        tree,
        folder=moved(tree.folder),
        source=moved(tree.source),
        log=moved(tree.log),
        files=files,
        tools=tools,
        cache_entries=entries,
    )
    return SmallBuild(tree, tmp_path / "system")


def _make_small_build(tmp_path: Path) -> SmallBuild:
    source = tmp_path / "source"
    out = source / "build" / "bin"
    system = tmp_path / "system"
    (source / "licenses").mkdir(parents=True)
    (source / "LICENSE").write_text("MIT of llama.cpp\n")
    (source / "licenses/LICENSE-jsonhpp").write_text("MIT of json\n")
    libraries = system / "usr/lib/x86_64-linux-gnu"
    extra = compile_c(
        libraries / "libextra.so.2.1", "int extra(void) { return 40; }", "-shared", "-Wl,-soname,libextra.so.2"
    )
    (libraries / "libextra.so.2").symlink_to("libextra.so.2.1")
    (system / "usr/share/doc/libextra2").mkdir(parents=True)
    (system / "usr/share/doc/libextra2/copyright").write_text("see /usr/share/common-licenses/GPL-3\n")
    (system / "usr/share/common-licenses").mkdir()
    (system / "usr/share/common-licenses/GPL-3").write_text("GPL text\n")
    base = compile_c(
        out / "libggml-base.so.0.1", "int base(void) { return 1; }", "-shared", "-fPIC", "-Wl,-soname,libggml-base.so.0"
    )
    (out / "libggml-base.so.0").symlink_to("libggml-base.so.0.1")
    (out / "libggml-base.so").symlink_to("libggml-base.so.0")
    runpath = f"-Wl,--enable-new-dtags,-rpath,{out}:"
    tool = compile_c(
        out / "libtool.so",
        "int base(void); int tool(void) { return base() + 6; }",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libtool.so",
        base,
        runpath,
    )
    plugin = compile_c(
        out / "libggml-cpu.so",
        "int base(void), extra(void); int score(void) { return base() + extra() + 1; }",
        "-shared",
        "-fPIC",
        base,
        extra,
        runpath,
    )
    program = compile_c(out / "llama-small", PROGRAM, tool, "-ldl", f"-Wl,-rpath-link,{out}", runpath)
    target = Target("cpu", ("cpu",), "", (), ("llama-small",), "rpath", None, rccl=False, nccl=False)
    files = (
        BuiltFile("ggml-base", "shared", base, plugin=False),
        BuiltFile("ggml-cpu", "module", plugin, plugin=True),
        BuiltFile("llama-small", "executable", program, plugin=False),
        BuiltFile("tool", "shared", tool, plugin=False),
    )
    tree = BuildTree(
        folder=source / "build",
        source=source,
        target=target,
        files=files,
        tools=(
            Tool("cmake", tmp_path / "venv/bin/cmake", "4.4.5"),
            Tool("c++", Path("/usr/bin/c++"), "12.2.0"),
            Tool("rocm", Path("/usr"), "7.1.1"),
        ),
        cache_entries=(
            ("CMAKE_MAKE_PROGRAM", str(tmp_path / "venv/bin/ninja")),
            ("GGML_NATIVE", "OFF"),
            ("Vulkan_LIBRARY", "/usr/lib/libvulkan.so"),
            ("CMAKE_C_FLAGS", f"-ffile-prefix-map={source}=."),
        ),
        build_number=11146,
        build_commit="7fe450e19",
        network="options checked",
        log=source / "build/log",
    )
    return SmallBuild(tree, system)
