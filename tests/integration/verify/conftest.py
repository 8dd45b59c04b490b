"""A bundle as this project makes it, of a program of a few lines: built by gcc, planned, staged and described."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llamabuild.build.model import BuildTree, BuiltFile, Target, Tool
from llamabuild.bundle.manifest import render_text, write_build_info
from llamabuild.bundle.plan import plan_bundle
from llamabuild.bundle.stage import stage
from llamabuild.core.console import Console
from llamabuild.core.context import Context, Home
from llamabuild.core.files import sha256_file, write_json, write_text
from llamabuild.recipe.model import Recipe, SourceSpec, TargetSpec
from llamabuild.source.lock import Lock, PatchedSource

if TYPE_CHECKING:
    from collections.abc import Callable

COMMIT = "7fe450e19305b828c199d602c23a8337aaa1f03b"
TREE = "fd570ef54b10ec5fecb739e7e04c8ce44a6f415a"
DATE = 1790121600

BASE = """
#include <omp.h>
int ggml_base_threads(void) { return omp_get_max_threads(); }
"""
REGISTRY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int ggml_base_threads(void);
static void load(const char * dir, const char * name, const char * shown) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (access(path, R_OK) == 0 && dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
        fprintf(stderr, "load_backend: loaded %s backend from %s\\n", shown, path);
    }
}
void ggml_backend_load_all(void) {
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0 || ggml_base_threads() < 1) exit(3);
    self[length] = 0;
    char * dir = dirname(self);
    load(dir, "libggml-cpu.so", "CPU");
    load(dir, "libggml-cuda.so", "CUDA");
    load(dir, "libggml-hip.so", "ROCm");
}
"""
LLAMA = """
void ggml_backend_load_all(void);
int llama_model_dflash_selector_top_k(const void * model) { return model ? 1 : 0; }
int llama_build_number(void) { return 11146; }
const char * llama_commit(void) { return "7fe450e19"; }
void llama_backend_init(void) { ggml_backend_load_all(); }
"""
PROGRAM = """
#include <stdio.h>
#include <string.h>
int llama_build_number(void);
const char * llama_commit(void);
void llama_backend_init(void);
int main(int argc, char ** argv) {
    const char * what = argc > 1 ? argv[1] : "";
    llama_backend_init();
    if (!strcmp(what, "--version")) {
        printf("version: 0.5.0 (build %d, commit %s)\\nbuilt with a compiler\\n", llama_build_number(), llama_commit());
        return 0;
    }
    if (!strcmp(what, "--help")) {
        puts("--version --list-devices  --spec-type none,draft-dflash,draft-mtp");
        return 0;
    }
    if (!strcmp(what, "--list-devices")) {
        puts("Available devices:\\n  (none)");
        return 0;
    }
    return 1;
}
"""
PLUGIN = """
int ggml_base_threads(void);
int ggml_backend_score(void) { return ggml_base_threads(); }
"""
HIP_PLUGIN = (
    PLUGIN
    + "int rocblas_sgemm(void);\nint hipblasLtMatmul(void);\n"
    + ("int ggml_hip(void) { return rocblas_sgemm() + hipblasLtMatmul(); }\n")
)
CUDA_PLUGIN = PLUGIN + "int cuInit(unsigned);\nint ggml_cuda(void) { return cuInit(0); }\n"


def compile_c(folder: Path, source: str, output: str, *flags: str, shared: bool = True, rpath: str = "$ORIGIN") -> Path:
    """Compile C text as CMake's build of llama.cpp would: one library or program, with the build folder's own rpath."""
    target = folder / output
    text = folder / f"{output}.c"
    text.write_text(source)
    words = ["gcc", "-O1", "-g", "-fPIC", *(["-shared"] if shared else ["-pie"])]
    words += [f"-ffile-prefix-map={folder}=.", "-o", output, f"{output}.c", f"-L{folder}", *flags]
    words += ["-Wl,-z,relro,-z,now,-z,noexecstack", *([f"-Wl,-rpath,{rpath}"] if rpath else [])]
    subprocess.run(words, check=True, cwd=folder)
    text.unlink()
    return target


def make_nv_fatbin(*images: tuple[str, str]) -> bytes:
    """A ``.nv_fatbin`` section with one container of (kind, arch) entries, laid out as nvcc 13 does."""
    body = b""
    for kind, arch in images:
        flags = 0x11 | (0x100000 if arch.endswith("a") else 0)
        payload = b"\x7fELF".ljust(64, b"\x01") if kind == "sass" else b".version 9.0".ljust(64, b"\0")
        number = int(arch.rstrip("a"))
        code = {"ptx": 1, "sass": 2}[kind]
        body += (
            struct.pack("<HHIQIIHHIQQQQ", code, 0x101, 64, len(payload), 0, 0, 8, 1, number, 0, flags, 0, 0) + payload
        )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def make_hip_bundle(*archs: str, emptied: tuple[str, ...] = ()) -> bytes:
    """A clang offload bundle with one code object an arch."""
    targets = ["host-x86_64-unknown-linux--", *(f"hipv4-amdgcn-amd-amdhsa--{arch}" for arch in archs)]
    table = b""
    blobs = b""
    for target in targets:
        size = 0 if target.startswith("host") else 256
        table += struct.pack("<QQQ", 4096 + len(blobs), size, len(target)) + target.encode()
        if size:
            empty = target.rpartition("--")[2] in emptied
            blobs += bytes(size) if empty else b"\x7fELF".ljust(size, b"\x02")
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(targets)) + table
    return head.ljust(4096, b"\0") + blobs


@dataclass(frozen=True)
class Made:
    """A staged bundle and the recipe it claims to be of."""

    root: Path
    recipe: Recipe
    target: str
    context: Context


def outside_world(folder: Path) -> Context:
    """A context that shares nothing with this machine's user."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMABUILD_")}
    return Context(home=Home(folder / "home"), console=Console(stream=io.StringIO()), env=env, cwd=folder)


def make_bundle(folder: Path, *, target: str, arch: str, device: bytes = b"", section: str = "") -> Made:
    """Build, plan, stage and describe a bundle below ``folder``."""
    context = outside_world(folder)
    build = folder / "build" / "bin"
    build.mkdir(parents=True)
    source = folder / "build" / "src"
    source.mkdir()
    (source / "LICENSE").write_text("MIT License\n")
    files = [
        BuiltFile("ggml-base", "shared", _library(build, BASE, "libggml-base", "0.25.1", "-fopenmp"), plugin=False)
    ]
    files.append(
        BuiltFile("ggml", "shared", _library(build, REGISTRY, "libggml", "0.25.1", "-lggml-base"), plugin=False)
    )
    files.append(BuiltFile("llama", "shared", _library(build, LLAMA, "libllama", "0.5.0", "-lggml"), plugin=False))
    files.append(
        BuiltFile("ggml-cpu", "module", compile_c(build, PLUGIN, "libggml-cpu.so", "-lggml-base"), plugin=True)
    )
    backends = ["cpu"]
    if section:
        backends = [target]
    programs = ("llama-server", "llama-cli", "llama-bench")
    for program in programs:
        path = compile_c(build, PROGRAM, program, "-lllama", "-Wl,-rpath-link," + str(build), shared=False)
        files.append(BuiltFile(program, "executable", path, plugin=False))
    entries = tuple((f"GGML_{each.upper()}", "ON") for each in backends)
    if arch:
        entries += (("CMAKE_CUDA_ARCHITECTURES" if target == "cuda" else "CMAKE_HIP_ARCHITECTURES", arch),)
    tree = BuildTree(
        folder=build.parent,
        source=source,
        target=Target("cpu", ("cpu",), "", (), programs, "rpath", None, rccl=False, nccl=False),
        files=tuple(files),
        tools=(Tool("c++", Path("/usr/bin/c++"), "12.2.0"), Tool("cmake", Path("/usr/bin/cmake"), "4.0")),
        cache_entries=entries,
        build_number=11146,
        build_commit=COMMIT[:9],
        network="namespace",
        log=folder / "log",
    )
    name = f"llama-tiny-{target}{f'-{arch}' if arch else ''}"
    plan = plan_bundle(tree, name=name, context=context)
    staged = stage(
        plan, folder / "stage", date=DATE, context=context, strip_tool=Path(shutil.which("strip") or "strip")
    )
    if section:
        _add_plugin(staged.root, folder, target=target, device=device, section=section)
    if target == "hip":
        for name in ("rocblas", "hipblaslt"):
            add_kernels(staged.root / "lib" / name / "library", arch)
    features = ("dflash2", "qwen35-mtp")
    lock = Lock(
        "tiny", "a test", True, "https://example.org/llama.cpp", "v0.5.0", COMMIT, TREE, 11146, DATE, features, ()
    )
    patched = PatchedSource(lock, folder, "cache", COMMIT, COMMIT, TREE, ())
    tree = replace(tree, target=replace(tree.target, name=target, backends=tuple(backends), arch=arch, entries=entries))
    document = write_build_info(staged, build=tree, plan=plan, patched=patched)
    listed = {record["path"] for record in document["files"]}
    document["files"] += [
        {"path": name, "size": path.stat().st_size, "sha256": sha256_file(path), "origin": "added here"}
        for path in sorted(staged.root.rglob("*"))
        if path.is_file() and not path.is_symlink()
        if (name := path.relative_to(staged.root).as_posix()) not in listed and not name.startswith("BUILD_INFO.")
    ]
    write_json(staged.root / "BUILD_INFO.json", document)
    write_text(staged.root / "BUILD_INFO.txt", render_text(document))
    recipe = Recipe(
        schema_=1,
        name="tiny",
        summary="a test",
        source=SourceSpec(
            repository="https://example.org/llama.cpp",
            ref="v0.5.0",
            commit=COMMIT,
            tree=TREE,
            build_number=11146,
            features=features,
        ),
        targets={target: TargetSpec(backends=tuple(backends), arch=arch or None, glibc_floor="2.39")},
    )
    return Made(staged.root, recipe, target, context)


def add_kernels(folder: Path, *archs: str) -> None:
    """An index and a code object an arch, named as rocBLAS 6.4 and hipBLASLt 7.1 name them."""
    folder.mkdir(parents=True, exist_ok=True)
    for arch in archs:
        (folder / f"TensileLibrary_lazy_{arch}.dat").write_bytes(b"index " + arch.encode())
        (folder / f"TensileLibrary_Type_SS_Contraction_l_Ailk_Bjlk_Cijk_Dijk_{arch}.co").write_bytes(b"code")


def _add_plugin(root: Path, folder: Path, *, target: str, device: bytes, section: str) -> None:
    """Put a GPU plugin with this device code into the bundle, and for HIP stand-ins for rocBLAS and hipBLASLt."""
    work = folder / "plugin"
    work.mkdir()
    (work / "device.bin").write_bytes(device)
    align = 4096 if target == "hip" else 8
    holder = f'__asm__(".section {section},\\"a\\"\\n.balign {align}\\n.incbin \\"device.bin\\"\\n.text\\n");'
    flags = [str(root / "lib/libggml-base.so.0"), f"-Wl,-rpath-link,{root}/lib", "-s", "-Wl,--disable-new-dtags"]
    if target == "cuda":
        needed = compile_c(work, "int cuInit(unsigned f) { return f; }", "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
        flags.append(str(needed))
    else:
        for soname, function in (("librocblas.so.4", "rocblas_sgemm"), ("libhipblaslt.so.1", "hipblasLtMatmul")):
            made = compile_c(
                work, f"int {function}(void) {{ return 1; }}", soname, f"-Wl,-soname,{soname}", "-s", rpath=""
            )
            shutil.copy2(made, root / "lib" / soname)
            flags.append(str(made))
    code = (CUDA_PLUGIN if target == "cuda" else HIP_PLUGIN) + holder
    name = f"libggml-{target}.so"
    shutil.copy2(compile_c(work, code, name, *flags, rpath="$ORIGIN:$ORIGIN/../lib"), root / "bin" / name)


def _library(folder: Path, source: str, name: str, version: str, *flags: str) -> Path:
    soname = f"{name}.so.0"
    path = compile_c(folder, source, f"{name}.so.{version}", f"-Wl,-soname,{soname}", *flags)
    (folder / soname).symlink_to(path.name)
    (folder / f"{name}.so").symlink_to(soname)
    return path


@pytest.fixture(scope="session")
def cpu_bundle(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A good bundle for the CPU; never changed in place."""
    return make_bundle(tmp_path_factory.mktemp("cpu"), target="cpu", arch="")


@pytest.fixture(scope="session")
def cuda_bundle(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A good CUDA bundle with SASS for sm_86, whose driver this machine does not have."""
    return make_bundle(
        tmp_path_factory.mktemp("cuda"),
        target="cuda",
        arch="86-real",
        device=make_nv_fatbin(("sass", "86")),
        section=".nv_fatbin",
    )


@pytest.fixture(scope="session")
def hip_bundle_gfx1100(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A good HIP bundle for gfx1100."""
    return make_bundle(
        tmp_path_factory.mktemp("hip"),
        target="hip",
        arch="gfx1100",
        device=make_hip_bundle("gfx1100"),
        section=".hip_fatbin",
    )


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Made], Made]:
    """A copy of a bundle that a test may break, under the bundle's own name."""

    def copy(made: Made) -> Made:
        root = tmp_path / made.root.name
        shutil.copytree(made.root, root, symlinks=True)
        return Made(root, made.recipe, made.target, made.context)

    return copy


@pytest.fixture
def nv_fatbin() -> Callable[..., bytes]:
    """Makes the content of a ``.nv_fatbin`` section."""
    return make_nv_fatbin


@pytest.fixture
def hip_bundle() -> Callable[..., bytes]:
    """Makes an offload bundle."""
    return make_hip_bundle
