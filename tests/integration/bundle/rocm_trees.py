"""Small ROCm trees in the four layouts that are in the field, with libraries that really need each other."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from .conftest import compile_c
from .hip import code, hip_library, offload_bundle

ARCHS = ("gfx1030", "gfx1100", "gfx90a")
PLACES = {"amd": "lib", "therock": "lib", "debian": "lib/x86_64-linux-gnu", "wheels": "_rocm_sdk_libraries_gfx110X/lib"}


@dataclass(frozen=True)
class RocmLayout:
    """A tree: ``root`` is what ``--rocm`` names, ``lib`` its library folder, ``depth`` where rocBLAS's files lie."""

    root: Path
    lib: Path
    depth: str

    def rocblas(self, name: str) -> Path:
        return self.lib / self.depth / name

    def hipblaslt(self, name: str) -> Path:
        return self.lib / "hipblaslt/library" / name


def make_tree(root: Path, layout: str) -> RocmLayout:
    lib = root / PLACES[layout]
    depth = "rocblas/4.4.1/library" if layout == "debian" else "rocblas/library"
    helpers = lib / "rocm_sysdeps/lib" if layout == "therock" else lib
    sysdep = _library(helpers / "librocm_sysdeps_numa.so.1", "int numa(void) { return 1; }")
    _library(lib / "libamd_comgr.so.3", "int comgr(void) { return 1; }")
    hip = _library(
        lib / "libamdhip64.so.6",
        'int numa(void); const char *opened = "libamd_comgr.so.3"; int hip(void) { return numa(); }',
        sysdep,
    )
    search = ["/opt/rocm/lib", f"/{depth}", "/../../Tensile/library", "/../rocblas/library", "rocblas."]
    strings = f"const char *search[] = {{{', '.join(f'{chr(34)}{one}{chr(34)}' for one in search)}}};"
    rocblas = _library(lib / "librocblas.so.4", f"{strings} int hip(void); int rocblas(void) {{ return hip(); }}", hip)
    _library(lib / "libhipblaslt.so.1", "int hip(void); int lt(void) { return hip(); }", hip)
    _library(lib / "libhipblas.so.2", "int rocblas(void); int hipblas(void) { return rocblas(); }", rocblas)
    tree = RocmLayout(root, lib, depth)
    for arch in ARCHS:
        _put(tree.rocblas(f"TensileLibrary_lazy_{arch}.dat"), f"index {arch}")
        _put(tree.rocblas(f"TensileLibrary_Type_SS_Contraction_l_Ailk_Bjlk_Cijk_Dijk_{arch}.co"), arch)
        if layout != "therock":
            _put(tree.hipblaslt(f"TensileLibrary_lazy_{arch}.dat"), f"index {arch}")
            _put(tree.hipblaslt(f"Kernels.so-000-{arch}.hsaco"), arch)
    _put(tree.rocblas("Kernels.so-000-gfx90a-xnack-.hsaco"), "xnack")
    _put(tree.rocblas("TensileLibrary_Type_SS_Contraction_l_Ailk_Bjlk_Cijk_Dijk_fallback.dat"), "fallback")
    if layout == "therock":
        _put(tree.hipblaslt("gfx1100/TensileLibrary_lazy_gfx1100.dat.zlib"), "index")
        _put(tree.hipblaslt("gfx1100/hipblasltTransform_gfx1100.hsaco"), "transform")
    else:
        _put(tree.hipblaslt("hipblasltTransform.hsaco"), "transform")
    return tree


def willing_compiler(tree: RocmLayout) -> None:
    """A stand-in for the HIP compiler that takes everything, for what is asked before anything is compiled."""
    compiler = tree.root / "lib/llvm/bin/clang++"
    compiler.parent.mkdir(parents=True)
    header = tree.root / "include/hip/hip_runtime.h"
    header.parent.mkdir(parents=True)
    header.touch()
    compiler.write_text("#!/bin/sh\necho clang version 21.1.0\n")
    compiler.chmod(0o755)


def plugin(target: Path, tree: RocmLayout, *more: Path, runpath: Path | None = None) -> Path:
    """``libggml-hip.so`` for three archs, which needs hipBLAS, rocBLAS and what ``more`` names."""
    needs = [tree.lib / name for name in ("libhipblas.so.2", "librocblas.so.4", "libamdhip64.so.6")]
    data = offload_bundle({arch: code(at) for at, arch in enumerate(ARCHS)})
    flags = (
        "-Wl,--no-as-needed",
        *map(str, needs),
        *map(str, more),
        f"-Wl,-rpath-link,{tree.lib}:{tree.lib}/rocm_sysdeps/lib",
    )
    if runpath:
        flags += (f"-Wl,--enable-new-dtags,-rpath,{runpath}",)
    return hip_library(target, data, flags=flags)


def kpack_section(path: Path, *wanted: str, needs: Path) -> Path:
    """A library whose device code was split off: ``.rocm_kpack_ref`` names where it went."""
    packed = b"\x82" + _text("kernel_name") + _text("lib/librocblas.so.4") + _text("kpack_search_paths")
    packed += bytes([0x90 | len(wanted)]) + b"".join(_text(one) for one in wanted)
    return hip_library(path, packed, section=".rocm_kpack_ref", flags=("-Wl,--no-as-needed", str(needs)))


def _text(value: str) -> bytes:
    data = value.encode()
    return (bytes([0xA0 | len(data)]) if len(data) < 32 else struct.pack("BB", 0xD9, len(data))) + data


def _library(path: Path, source: str, *needs: Path) -> Path:
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-Wl,--allow-shlib-undefined")
    real = path.with_name(f"{path.name}.0.1")
    compile_c(real, source, *flags, *needs)
    path.symlink_to(real.name)
    return path


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
