"""Real rocBLAS, hipBLASLt and a ten-arch HIP backend into one bundle, and what the real libraries then do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llamabuild.bundle.pack import pack_bundle
from llamabuild.bundle.run import bundle_folder
from llamabuild.bundle.tensile import simulate_hipblaslt, simulate_rocblas
from llamabuild.bundle.unpack import open_archive
from llamabuild.core.context import Context, Home
from llamabuild.core.errors import BundleError
from llamabuild.elf.closure import Search, elf_roots, resolve_closure

from .stub import make_driver, make_stub

if TYPE_CHECKING:
    from llamabuild.bundle.model import StagedBundle

pytestmark = pytest.mark.network

ARCH = "gfx1100"
TEN = "gfx803, gfx900, gfx906, gfx908, gfx90a, gfx1010, gfx1030, gfx1100, gfx1101, gfx1102"


@pytest.fixture(scope="module")
def context(tmp_path_factory) -> Context:
    return Context(home=Home(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def staged(sid, hip_build, context, tmp_path_factory) -> StagedBundle:
    made, plan = bundle_folder(
        hip_build,
        tmp_path_factory.mktemp("stage"),
        arch=ARCH,
        rocm=sid.root / "usr",
        context=context,
        name="llama-real",
    )
    pack_bundle(made, plan, made.root.parent / "dist", context=context, formats=("tar.zst",))
    return made


@pytest.fixture(scope="module")
def moved(staged, tmp_path_factory) -> Path:
    """The archive, unpacked elsewhere by this program; the staged folder is gone."""
    archive = staged.root.parent / "dist/llama-real.tar.zst"
    root = open_archive(archive, tmp_path_factory.mktemp("elsewhere"))
    shutil.rmtree(staged.root)
    return root


def test_what_is_in_it(staged):
    document = json.loads((staged.root / "BUILD_INFO.json").read_text())
    thinned = {
        entry["path"]: entry["changes"]["thinned"]
        for entry in document["files"]
        if "thinned" in entry.get("changes", {})
    }
    assert set(thinned) == {"bin/libggml-hip.so", "lib/librocblas.so.4.4"}
    for record in thinned.values():
        assert record["kept"] == [ARCH]
        assert record["zeroed"] == [arch for arch in TEN.split(", ") if arch != ARCH]
    assert sum(record["zeroed_bytes"] for record in thinned.values()) > 1.5e9
    names = {entry["path"] for entry in document["files"]}
    assert "lib/rocblas/4.4.1/library/TensileLibrary_lazy_gfx1100.dat" in names
    assert "lib/hipblaslt/library/TensileLibrary_lazy_gfx1100.dat" in names
    assert not [name for name in names if re.search(r"gfx(?!1100)", Path(name).name)]
    # Opened by name at run time, and what that needs in turn.
    assert {"lib/libamd_comgr.so.3", "lib/libLLVM.so.21.1"} <= names
    assert all(f"licenses/{part}/copyright" in names or any(n.startswith(f"licenses/{part}/") for n in names)
               for part in ("rocblas", "hipblaslt", "hip", "comgr"))  # fmt: skip


def test_the_archive_is_small(staged):
    archive = staged.root.parent / "dist/llama-real.tar.zst"
    assert archive.stat().st_size < 200e6
    on_disk = sum(path.stat().st_blocks * 512 for path in staged.root.rglob("*") if path.is_file())
    apparent = sum(path.stat().st_size for path in staged.root.rglob("*") if path.is_file() and not path.is_symlink())
    assert apparent > 2.5e9
    assert on_disk < 1.6e9


def test_an_arch_that_debian_has_no_kernels_for(sid, hip_build, context, tmp_path):
    with pytest.raises(BundleError, match=f"no kernels for gfx1201; it has them for {TEN}"):
        bundle_folder(hip_build, tmp_path, arch="gfx1201", rocm=sid.root / "usr", context=context)
    assert list(tmp_path.iterdir()) == []


def test_every_need_is_met_inside(moved):
    closure = resolve_closure(elf_roots(moved), search=Search(inside=moved))
    assert {edge.origin for edge in closure.edges} == {"bundled", "system"}


@pytest.fixture(scope="module")
def observed(sid, tmp_path_factory):
    """Run a library's own search below strace; returns the device files and folders it touched, in order."""
    if shutil.which("strace") is None or shutil.which("gcc") is None:
        pytest.skip("strace and gcc are needed to watch the real libraries")
    folder = tmp_path_factory.mktemp("stub")
    stub = make_stub(folder, sid.lib / "librocblas.so.4", sid.lib / "libhipblaslt.so.1")
    drive = make_driver(folder)

    def watch(library: Path, arch: str) -> tuple[list[str], str]:
        log = folder / "trace"
        argv = ["strace", "-f", "-o", log, "-e", "trace=file", sid.loader, "--preload", stub]
        argv += ["--library-path", f"{library.parent}:{sid.lib}", drive, library]
        done = subprocess.run(argv, env={"STUB_ARCH": arch}, capture_output=True, text=True, check=False)
        if "trace: " in done.stderr or not log.exists():
            pytest.skip(f"strace cannot run here: {done.stderr[-200:]}")
        touched = re.findall(
            r'^\d+ +(?:access|openat|newfstatat|stat)\((?:AT_FDCWD, )?"([^"]+)"', log.read_text(), re.MULTILINE
        )
        files = [os.path.normpath(path) for path in touched if "/library" in path or "TensileLibrary" in path]
        return files, done.stdout + done.stderr

    return watch


@pytest.mark.parametrize(
    ("name", "simulate"), [("librocblas.so.4", simulate_rocblas), ("libhipblaslt.so.1", simulate_hipblaslt)]
)
@pytest.mark.parametrize("arch", [ARCH, "gfx1030"])
def test_the_search_is_what_is_observed(moved, observed, name, simulate, arch):
    """In the moved bundle: the folders in the same order, the same file first, or the same names in vain."""
    library = moved / "lib" / name
    result = simulate(moved, library, arch)
    touched, said = observed(library, arch)
    folders = [str(moved / folder) if not folder.startswith("/") else folder for folder in result.tried]
    assert [path for path in touched if path in folders][: len(folders)] == folders
    if arch == ARCH:
        assert result.opened
        assert str(moved / result.opened) in touched
        assert "error" not in said
    else:
        assert result.opened is None
        assert str(moved / result.folder / result.candidates[0]) in touched
        assert "Cannot read" in said


@pytest.mark.parametrize(
    ("name", "simulate"), [("librocblas.so.4", simulate_rocblas), ("libhipblaslt.so.1", simulate_hipblaslt)]
)
def test_a_search_in_vain_is_what_is_observed(sid, observed, tmp_path, name, simulate):
    """Without any folder of theirs: every one that is looked for, no other, and the file that is opened at last."""
    library = tmp_path / "lib" / name
    library.parent.mkdir()
    library.symlink_to((sid.lib / name).resolve())
    result = simulate(tmp_path, library, ARCH)
    touched, said = observed(library, ARCH)
    folders = [str(tmp_path / folder) if not folder.startswith("/") else folder for folder in result.tried]
    assert list(dict.fromkeys(path for path in touched if path.endswith("/library"))) == folders
    assert result.opened is None
    wanted = [str(tmp_path / result.folder / each) if result.folder else each for each in result.candidates]
    assert [path for path in dict.fromkeys(touched) if path.endswith(".dat")] == wanted
    assert "Cannot read" in said


def test_a_shadow_is_what_is_observed(moved, observed):
    library = moved / "lib/librocblas.so.4"
    right = moved / "lib/rocblas"
    hidden = moved / "lib/hidden"
    right.rename(hidden)
    (moved / "lib/library").mkdir()
    try:
        result = simulate_rocblas(moved, library, ARCH)
        touched, said = observed(library, ARCH)
    finally:
        (moved / "lib/library").rmdir()
        hidden.rename(right)
    assert result.folder == "lib/library"
    assert f"Cannot read {moved}/lib/library/TensileLibrary.dat" in said
    assert str(moved / "lib/library/TensileLibrary_lazy_gfx1100.dat") in touched


def test_starts_where_no_rocm_is(moved, sid, tmp_path):
    """In a root with nothing but glibc: the plugin loads, every other library comes from the bundle."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("a root of its own needs to be root")
    root = tmp_path / "root"
    for name in ("proc", "bundle", "usr/lib"):
        (root / name).mkdir(parents=True)
    shutil.copytree(sid.lib, root / "usr/lib/x86_64-linux-gnu", symlinks=True, ignore=_all_but_glibc)
    (root / "usr/lib64").mkdir()
    (root / "usr/lib64/ld-linux-x86-64.so.2").symlink_to("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    script = (
        f"mount -t proc proc {root}/proc && mount --bind {moved} {root}/bundle && "
        f"LD_DEBUG=libs exec chroot {root} /bundle/bin/llama-server --list-devices"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = set(re.findall(r"calling init: (\S+)", done.stderr))
    assert "/bundle/bin/libggml-hip.so" in loaded
    assert {path for path in loaded if not path.startswith("/bundle/")} <= {
        "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libm.so.6",
    }  # fmt: skip
    # The HIP runtime was asked, and there is no GPU here.
    assert "no ROCm-capable device" in done.stdout + done.stderr or "ROCm" in done.stdout


def _all_but_glibc(_: str, names: list[str]) -> set[str]:
    kept = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libmvec)\.so(\.\d+)?$")
    return {name for name in names if not kept.match(name)}


def test_the_rpath_of_a_gigabyte_costs_a_page(sid, tmp_path):
    """1.27 GB, edited in place; memory is measured in a process of its own."""
    copy = tmp_path / "libggml-hip.so"
    subprocess.run(["cp", "--reflink=auto", sid.lib / "ggml/backends0/libggml-hip.so", copy], check=True)
    # Not ru_maxrss: a child starts with its parent's.
    code = (
        "import re, sys; from pathlib import Path; from llamabuild.elf.edit import ElfEdit, apply_edit\n"
        "made = apply_edit(ElfEdit(Path(sys.argv[1]), '$ORIGIN/../lib'), strip_tool=None, env={})\n"
        "print(made.method, int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, copy], capture_output=True, text=True, check=True)
    method, megabytes = done.stdout.split()
    assert method == "in-place"
    assert int(megabytes) < 100
    printed = subprocess.run(["readelf", "-dW", copy], capture_output=True, text=True, check=True).stdout
    assert "Library rpath: [$ORIGIN/../lib]" in printed
