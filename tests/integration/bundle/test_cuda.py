"""CUDA's runtime: an archive of its own, every byte as NVIDIA made it, and never the driver."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from llamabuild.bundle.options import BundleOptions
from llamabuild.bundle.pack import pack_bundle
from llamabuild.bundle.run import bundle_folder
from llamabuild.bundle.trees import cuda_vendor
from llamabuild.bundle.unpack import open_archive
from llamabuild.core.errors import BundleError
from llamabuild.elf.closure import Search, elf_roots, resolve_closure

from .conftest import compile_c


def make_toolkit(root: Path, *places: str) -> Path:
    """libcudart, and libcublas that needs libcublasLt beside itself, as NVIDIA's do (RUNPATH ``$ORIGIN``)."""
    runtime, blas = places[0], places[-1]
    own = ("-shared", "-fPIC", "-Wl,--enable-new-dtags,-rpath,$ORIGIN")
    compile_c(root / runtime / "libcudart.so.13", "int rt(void) { return 1; }", *own, "-Wl,-soname,libcudart.so.13")
    light = compile_c(
        root / blas / "libcublasLt.so.13", "int lt(void) { return 1; }", *own, "-Wl,-soname,libcublasLt.so.13"
    )
    source = "int lt(void); int blas(void) { return lt(); }"
    compile_c(root / blas / "libcublas.so.13", source, *own, "-Wl,-soname,libcublas.so.13", light)
    compile_c(root / blas / "libcuda.so.1", "int cu(void) { return 1; }", "-shared", "-Wl,-soname,libcuda.so.1")
    (root / "EULA.txt").write_text("NVIDIA's terms\n")
    return root


@pytest.fixture
def toolkit(tmp_path) -> Path:
    return make_toolkit(tmp_path / "cuda-13.0", "lib64")


@pytest.fixture
def build(small_build, toolkit) -> Path:
    folder = small_build.tree.folder
    needs = [toolkit / "lib64" / name for name in ("libcudart.so.13", "libcublas.so.13", "libcuda.so.1")]
    source = "int rt(void), blas(void), cu(void); int g(void) { return rt() + blas() + cu(); }"
    compile_c(folder / "bin/libggml-cuda.so", source, "-shared", "-fPIC", *needs, f"-Wl,-rpath-link,{toolkit}/lib64")
    for extra in sorted((small_build.system / "usr/lib/x86_64-linux-gnu").iterdir()):
        (toolkit / "lib64" / extra.name).write_bytes(extra.read_bytes())
    return folder


def names(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_its_own_archive(build, toolkit, tmp_path, context):
    staged, plan = bundle_folder(
        build, tmp_path / "out", arch="86", cuda=toolkit, context=context, name="llama-x-cuda-86"
    )
    assert json.loads((staged.root / "BUILD_INFO.json").read_text())["runtime"]["kind"] == "split"
    artifacts = pack_bundle(staged, plan, tmp_path / "dist", context=context, formats=("tar.zst",), split=True)
    assert [artifact.path.name for artifact in artifacts] == [
        "llama-x-cuda-86-bin.tar.zst",
        "llama-x-cuda-86-cudart.tar.zst",
    ]
    runtime = open_archive(artifacts[1].path, tmp_path / "runtime")
    assert names(runtime) == {
        "lib/libcudart.so.13",
        "lib/libcublas.so.13",
        "lib/libcublasLt.so.13",
        "licenses/cuda-runtime/EULA.txt",
    }
    both = {open_archive(artifact.path, tmp_path / "both") for artifact in artifacts}
    (root,) = both
    closure = resolve_closure(elf_roots(root), search=Search(inside=root))
    origins = {edge.needed: edge.origin for edge in closure.edges}
    assert origins["libcublasLt.so.13"] == "bundled"
    assert origins["libcuda.so.1"] == "driver"
    assert set(origins.values()) == {"bundled", "system", "driver"}
    assert not [name for name in names(root) if "libcuda." in name]


def test_nvidias_files_keep_every_byte(build, toolkit, tmp_path, context):
    staged, _ = bundle_folder(
        build, tmp_path / "out", arch="86", cuda=toolkit, context=context, options=BundleOptions(runtime="bundled")
    )
    for name in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"):
        assert (staged.root / "lib" / name).read_bytes() == (toolkit / "lib64" / name).read_bytes()
    assert not [change for change in staged.changes if "libcu" in change.destination]


@pytest.mark.parametrize("runtime", ["split", "system"])
def test_the_runtime_beside_the_programs(build, toolkit, tmp_path, context, runtime):
    """Such as llama.cpp's own releases: the driver among them is left out, the rest stays NVIDIA's."""
    (toolkit / "lib64").rename(tmp_path / "away")
    for path in (tmp_path / "away").iterdir():
        path.rename(build / "bin" / path.name)
    (build / "bin/LICENSE").write_text("MIT of llama.cpp\n")
    build /= "bin"
    options = BundleOptions(runtime=runtime)
    staged, plan = bundle_folder(build, tmp_path / "out", arch="86", context=context, options=options)
    parts = {entry.destination: entry.part for entry in plan.entries if "libcu" in entry.destination}
    wanted = ["lib/libcublas.so.13", "lib/libcublasLt.so.13", "lib/libcudart.so.13"] if runtime == "split" else []
    assert parts == dict.fromkeys(wanted, "cudart")
    assert not [change for change in staged.changes if "libcu" in change.destination]
    licenses = {name for name in names(staged.root) if name.startswith("licenses/")}
    assert licenses == {"licenses/llama.cpp/LICENSE"}
    assert "libcuda.so.1 is left out: it is the host's own driver" in context.console.stream.getvalue()


def test_left_to_the_host(build, toolkit, tmp_path, context):
    staged, _ = bundle_folder(
        build, tmp_path / "out", arch="86", cuda=toolkit, context=context, options=BundleOptions(runtime="system")
    )
    assert not [name for name in names(staged.root) if "libcu" in name]
    printed = subprocess.run(
        ["readelf", "-dW", staged.root / "bin/libggml-cuda.so"], capture_output=True, text=True, check=True
    ).stdout
    assert "[$ORIGIN/../lib]" in printed


@pytest.mark.parametrize(
    "places",
    [
        ("lib",),
        ("targets/x86_64-linux/lib",),
        ("nvidia/cu13/lib",),
        ("nvidia/cuda_runtime/lib", "nvidia/cublas/lib"),
    ],
    ids=["toolkit", "cross toolkit", "wheels of CUDA 13", "wheels of CUDA 12"],
)
def test_where_a_runtime_is_found(tmp_path, places):
    vendor = cuda_vendor(make_toolkit(tmp_path / "tree", *places))
    for name in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"):
        assert vendor.find(name)


def test_no_runtime_there(tmp_path):
    with pytest.raises(BundleError, match="holds no CUDA runtime"):
        cuda_vendor(tmp_path)
