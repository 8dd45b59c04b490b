"""ROCm runtimes into a bundle: closure, depth, trimming, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from llamabuild.bundle.options import BundleOptions
from llamabuild.bundle.pack import check_archive, pack_bundle
from llamabuild.bundle.run import bundle_folder, check_device_files
from llamabuild.bundle.unpack import open_archive
from llamabuild.core.errors import BundleError, UsageError
from llamabuild.elf.closure import Search, elf_roots, resolve_closure

from .conftest import compile_c
from .hip import code, offload_bundle
from .rocm_trees import ARCHS, PLACES, RocmLayout, kpack_section, make_tree, plugin

if TYPE_CHECKING:
    from pathlib import Path

ARCH = "gfx1100"


@pytest.fixture(scope="session")
def template(small_template, tmp_path_factory) -> Path:
    """``rocm`` and ``build``: a tree, and a build folder that nobody described with a HIP plugin for it."""
    folder = tmp_path_factory.mktemp("hip")
    tree = make_tree(folder / "rocm", "amd")
    fill(folder / "build", small_template, tree)
    return folder


def fill(folder: Path, small, tree: RocmLayout) -> None:
    shutil.copytree(small.tree.folder, folder, symlinks=True)
    plugin(folder / "bin/libggml-hip.so", tree)
    for extra in sorted((small.system / "usr/lib/x86_64-linux-gnu").iterdir()):
        shutil.copy2(extra, tree.lib / extra.name, follow_symlinks=False)


@pytest.fixture
def tree(template, tmp_path) -> RocmLayout:
    shutil.copytree(template / "rocm", tmp_path / "rocm", symlinks=True)
    return RocmLayout(tmp_path / "rocm", tmp_path / "rocm/lib", "rocblas/library")


@pytest.fixture
def build(template, tmp_path) -> Path:
    shutil.copytree(template / "build", tmp_path / "build", symlinks=True)
    return tmp_path / "build"


def bundle(build, tree, out, context, arch=ARCH, name=None, **options):
    chosen = BundleOptions(**options)
    return bundle_folder(build, out, arch=arch, rocm=tree.root, context=context, options=chosen, name=name)


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and not path.is_symlink()}


@pytest.mark.parametrize("layout", PLACES)
def test_four_layouts(small_template, tmp_path, context, layout):
    tree = make_tree(tmp_path / "rocm", layout)
    folder = tmp_path / "build"
    fill(folder, small_template, tree)
    staged, _ = bundle(folder, tree, tmp_path / "out", context)
    shutil.rmtree(tree.root)
    shutil.rmtree(folder)
    made = files(staged.root)
    assert f"lib/{tree.depth}/TensileLibrary_lazy_gfx1100.dat" in made
    assert f"lib/{tree.depth}/TensileLibrary_Type_SS_Contraction_l_Ailk_Bjlk_Cijk_Dijk_fallback.dat" in made
    index = "gfx1100/TensileLibrary_lazy_gfx1100.dat.zlib" if layout == "therock" else "TensileLibrary_lazy_gfx1100.dat"
    assert f"lib/hipblaslt/library/{index}" in made
    assert not [name for name in made if "gfx1030" in name or "gfx90a" in name]
    # Opened by name, or by way of others; whatever folder of the tree it lay in.
    assert {"lib/libamd_comgr.so.3.0.1", "lib/librocm_sysdeps_numa.so.1.0.1", "bin/libggml-hip.so"} <= made
    closure = resolve_closure(elf_roots(staged.root), search=Search(inside=staged.root))
    assert {edge.origin for edge in closure.edges} == {"bundled", "system"}
    done = subprocess.run([staged.root / "bin/llama-small"], env={}, capture_output=True, text=True, check=False)
    assert done.stdout == "tool 7 plugin 42\n"
    found = check_device_files(staged.root, ARCH)
    assert found["librocblas.so.4.0.1"] == f"lib/{tree.depth}/TensileLibrary_lazy_gfx1100.dat"


def test_an_arch_without_kernels_names_those_there_are(build, tree, tmp_path, context):
    with pytest.raises(BundleError, match="no kernels for gfx1201; it has them for gfx90a, gfx1030, gfx1100"):
        bundle(build, tree, tmp_path / "out", context, arch="gfx1201")
    assert not (tmp_path / "out").exists()


def test_hipblaslt_without_the_arch_is_a_note(build, tree, tmp_path, context):
    """unslothai/unsloth#8364: gfx1030 is served by rocBLAS alone."""
    for path in tree.hipblaslt("").glob("*gfx1030*"):
        path.unlink()
    staged, plan = bundle(build, tree, tmp_path / "out", context, arch="gfx1030")
    assert any("hipBLASLt has no kernels for gfx1030 (it has gfx90a, gfx1100)" in note for note in plan.notes)
    assert "lib/rocblas/library/TensileLibrary_lazy_gfx1030.dat" in files(staged.root)
    for path in list(tree.hipblaslt("").iterdir()):
        path.unlink()
    _, plan = bundle(build, tree, tmp_path / "out", context, arch="gfx1030")
    assert any("it has none" in note for note in plan.notes)


def test_hipblaslt_without_its_folder(build, tree, tmp_path, context):
    """lemonade-sdk/llamacpp-rocm#22."""
    shutil.rmtree(tree.lib / "hipblaslt")
    with pytest.raises(BundleError, match="no hipblaslt/library beside it"):
        bundle(build, tree, tmp_path / "out", context)


def test_kernels_of_hipblaslt_that_did_not_arrive(build, tree, tmp_path, context):
    """lemonade-sdk/llamacpp-rocm#22: no failure at run time, only an error line and slowness; so it fails here."""
    staged, plan = bundle(build, tree, tmp_path / "out", context)
    check_device_files(staged.root, ARCH, plan=plan)
    (staged.root / "lib/hipblaslt/library/TensileLibrary_lazy_gfx1100.dat").unlink()
    with pytest.raises(BundleError, match=r"libhipblaslt\.so\.1.* would find none of TensileLibrary_lazy_gfx1100\.dat"):
        check_device_files(staged.root, ARCH, plan=plan)
    shutil.rmtree(staged.root / "lib/rocblas")
    with pytest.raises(BundleError, match=r"librocblas\.so\.4.* would find none of"):
        check_device_files(staged.root, ARCH, plan=plan)


@pytest.mark.parametrize("name", ["library/TensileLibrary_lazy_gfx1100.dat", "gfx1100.newkind", "other/x.co"])
def test_files_that_no_rule_claims(build, tree, tmp_path, context, name):
    """A nested ``library/library`` is what ``cp -r`` makes when its target is there already."""
    path = tree.rocblas(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    with pytest.raises(BundleError, match="belongs to no rule of rocBLAS"):
        bundle(build, tree, tmp_path / "out", context)


def test_kernels_of_another_version(small_template, tmp_path, context):
    """The library looks in ``rocblas/4.4.1``: what else there is may not fit it."""
    tree = make_tree(tmp_path / "rocm", "debian")
    fill(tmp_path / "build", small_template, tree)
    _, plan = bundle(tmp_path / "build", tree, tmp_path / "out", context)
    assert not [note for note in plan.notes if "looks for" in note]
    (tree.lib / "rocblas/4.4.1").rename(tree.lib / "rocblas/4.10.0")
    (tree.lib / "rocblas/4.9.0/library").mkdir(parents=True)
    staged, plan = bundle(tmp_path / "build", tree, tmp_path / "out", context)
    (note,) = [note for note in plan.notes if "looks for" in note]
    assert "looks for its files in rocblas/4.4.1/library, which is not there" in note
    assert f"{tree.lib}/rocblas/4.10.0/library" in note
    assert "lib/rocblas/4.4.1/library/TensileLibrary_lazy_gfx1100.dat" in files(staged.root)


@pytest.mark.parametrize("damaged", ["data", "hipblaslt", "rocblas", "hip", "program"])
def test_inputs_that_cannot_be_read(build, tree, tmp_path, context, damaged):
    places = {
        "data": tree.rocblas("TensileLibrary_lazy_gfx1100.dat"),
        "hipblaslt": tree.lib / "libhipblaslt.so.1.0.1",
        "rocblas": tree.lib / "librocblas.so.4.0.1",
        "hip": tree.lib / "libamdhip64.so.6.0.1",
        "program": build / "bin/llama-small",
    }
    path = places[damaged]
    named = path.name
    if damaged in {"hip", "program"}:
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    if damaged == "data":
        path.symlink_to("gone")
    elif damaged == "hipblaslt":
        named = "libhipblaslt.so.1 is a link that leads nowhere"
    elif damaged == "rocblas":
        path.mkdir()
    with pytest.raises(BundleError) as caught:
        bundle(build, tree, tmp_path / "out", context)
    assert named.removesuffix(".0.1") in caught.value.message
    assert caught.value.hint
    assert "space" not in caught.value.hint


def test_a_library_opened_by_name_has_to_be_there(build, tree, tmp_path, context):
    for path in tree.lib.glob("libamd_comgr*"):
        path.unlink()
    with pytest.raises(BundleError, match=r"libamd_comgr\.so\.3, needed by libamdhip64\.so\.6"):
        bundle(build, tree, tmp_path / "out", context)


def test_more_archs_and_no_thinning(build, tree, tmp_path, context):
    staged, _ = bundle(build, tree, tmp_path / "out", context, keep_archs=("gfx90a",))
    made = files(staged.root)
    assert "lib/rocblas/library/Kernels.so-000-gfx90a-xnack-.hsaco" in made
    (change,) = [change for change in staged.changes if change.thinned]
    assert change.thinned.zeroed == ("gfx1030",)
    staged, _ = bundle(build, tree, tmp_path / "out", context, thin=False)
    assert not [change for change in staged.changes if change.thinned]


def test_the_tree_that_a_build_was_linked_with(build, tree, tmp_path, context):
    """Without ``--rocm`` the plugin's own RUNPATH leads there, and the choices count all the same."""
    plugin(build / "bin/libggml-hip.so", tree, runpath=tree.lib)
    staged, _ = bundle_folder(build, tmp_path / "one", arch=ARCH, context=context)
    assert "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat" in files(staged.root)
    assert [change.thinned.zeroed for change in staged.changes if change.thinned] == [("gfx90a", "gfx1030")]
    options = BundleOptions(keep_archs=("gfx1030",), thin=False)
    staged, _ = bundle_folder(build, tmp_path / "two", arch=ARCH, context=context, options=options)
    assert "lib/rocblas/library/TensileLibrary_lazy_gfx1030.dat" in files(staged.root)
    assert not [change for change in staged.changes if change.thinned]


def test_the_tree_that_is_named_wins_over_the_builds_own(build, tree, tmp_path, context):
    """A build keeps the RUNPATH to the tree that it was linked with, also after another one is chosen."""
    shutil.copytree(tree.root, tmp_path / "new", symlinks=True)
    new = tmp_path / "new/lib/librocblas.so.4.0.1"
    new.write_bytes(new.read_bytes() + b"newer")
    plugin(build / "bin/libggml-hip.so", tree, runpath=tree.lib)
    for chosen, newer in ((tmp_path / "new", True), (tree.root, False)):
        staged, plan = bundle_folder(build, tmp_path / chosen.name / "out", arch=ARCH, rocm=chosen, context=context)
        assert (b"newer" in (staged.root / "lib/librocblas.so.4.0.1").read_bytes()) == newer
        taken = [entry.source for entry in plan.entries if entry.source and entry.destination.startswith("lib/lib")]
        others = {path.name for path in taken if path.is_relative_to(tmp_path) and not path.is_relative_to(chosen)}
        assert others <= {"libggml-base.so.0.1", "libtool.so", "libextra.so.2.1"}


def test_a_named_tree_without_a_needed_library(build, tree, tmp_path, context):
    """Another release has another soname: what the build was linked with is taken, and that is said."""
    shutil.copytree(tree.root, tmp_path / "new", symlinks=True)
    (tmp_path / "new/lib/libhipblas.so.2").unlink()
    plugin(build / "bin/libggml-hip.so", tree, runpath=tree.lib)
    _, plan = bundle_folder(build, tmp_path / "out", arch=ARCH, rocm=tmp_path / "new", context=context)
    assert f"{tmp_path}/new has no libhipblas.so.2, so {tree.lib}/libhipblas.so.2 is taken" in plan.notes


def test_build_info_lists_what_was_thinned(build, tree, tmp_path, context):
    staged, _ = bundle(build, tree, tmp_path / "out", context)
    document = json.loads((staged.root / "BUILD_INFO.json").read_text())
    (entry,) = [entry for entry in document["files"] if entry["path"] == "bin/libggml-hip.so"]
    assert entry["changes"]["thinned"]["kept"] == ["gfx1100"]
    assert entry["changes"]["thinned"]["zeroed"] == ["gfx90a", "gfx1030"]
    assert entry["changes"]["thinned"]["sha256_after"] == entry["sha256"]
    assert document["runtime"]["device_files"]["librocblas.so.4.0.1"].startswith("lib/rocblas/library/")
    assert str(tmp_path) not in json.dumps(document)


def test_split_device_code_comes_along(build, tree, tmp_path, context):
    """A library of TheRock without its ``.kpack`` has no device code at all."""
    split = kpack_section(
        tree.lib / "libsplit.so.1", "../.kpack/blas_lib_@GFXARCH@.kpack", needs=tree.lib / "libamdhip64.so.6"
    )
    plugin(build / "bin/libggml-hip.so", tree, split)
    with pytest.raises(BundleError, match=r"none of its archives for gfx1100 is there: \.\./\.kpack/blas_lib_"):
        bundle(build, tree, tmp_path / "out", context)
    (tree.root / ".kpack").mkdir()
    for arch in ("gfx1030", "gfx1100"):
        (tree.root / f".kpack/blas_lib_{arch}.kpack").write_text(arch)
    staged, _ = bundle(build, tree, tmp_path / "out", context)
    assert {name for name in files(staged.root) if "kpack" in name} == {".kpack/blas_lib_gfx1100.kpack"}
    (staged.root / ".kpack/blas_lib_gfx1100.kpack").unlink()
    with pytest.raises(BundleError, match="was split from its device code"):
        check_device_files(staged.root, ARCH)


def test_drivers_never_enter(build, tree, tmp_path, context):
    driver = compile_c(tree.lib / "libcuda.so.1", "int cu(void) { return 1; }", "-shared", "-Wl,-soname,libcuda.so.1")
    plugin(build / "bin/libggml-hip.so", tree, driver)
    staged, _ = bundle(build, tree, tmp_path / "out", context)
    assert not [name for name in files(staged.root) if "libcuda" in name]


def test_left_to_the_host(build, tree, tmp_path, context):
    staged, _ = bundle(build, tree, tmp_path / "out", context, runtime="system")
    made = files(staged.root)
    assert "bin/libggml-hip.so" in made
    assert not [name for name in made if "rocblas" in name or "amdhip" in name or "comgr" in name]


def test_parts_are_the_whole(build, tree, tmp_path, context):
    staged, plan = bundle(build, tree, tmp_path / "out", context, name="llama-x-hip-gfx1100")
    artifacts = pack_bundle(staged, plan, tmp_path / "dist", context=context, formats=("tar.zst",), split=True)
    assert [artifact.path.name for artifact in artifacts] == [
        "llama-x-hip-gfx1100-bin.tar.zst",
        "llama-x-hip-gfx1100-rocm-runtime.tar.zst",
    ]
    roots = {open_archive(artifact.path, tmp_path / "u") for artifact in artifacts}
    (root,) = roots
    assert files(root) == files(staged.root)
    alone = open_archive(artifacts[0].path, tmp_path / "v")
    # What only the runtime needs travels with it.
    assert not [name for name in files(alone) if "rocm_sysdeps" in name or "rocblas" in name]
    assert "bin/llama-small" in files(alone)
    assert "BUILD_INFO.json" in files(alone)


@pytest.mark.parametrize("damage", ["bytes", "link", "missing", "extra", "mode"])
def test_an_archive_that_is_not_what_was_staged(build, tree, tmp_path, context, damage):
    staged, plan = bundle(build, tree, tmp_path / "out", context)
    (artifact,) = pack_bundle(staged, plan, tmp_path / "dist", context=context, formats=("tar.gz",))
    check_archive(artifact.path, staged)
    target = staged.root / "lib/libtool.so"
    if damage == "bytes":
        data = bytearray(target.read_bytes())
        data[-1] ^= 1
        target.write_bytes(data)
    elif damage == "link":
        (staged.root / "lib/librocblas.so.4").unlink()
        (staged.root / "lib/librocblas.so.4").symlink_to("elsewhere")
    elif damage == "missing":
        (staged.root / "lib/new.so").write_text("x")
    elif damage == "extra":
        target.unlink()
    else:
        target.chmod(0o644)
    with pytest.raises(BundleError, match="does not hold what was staged"):
        check_archive(artifact.path, staged)


def test_archives_of_a_build_folder_are_the_same_bit_for_bit(build, tree, tmp_path, context):
    sums = []
    for turn in ("one", "two"):
        staged, plan = bundle(build, tree, tmp_path / turn, context, name="x")
        sums.append([a.sha256 for a in pack_bundle(staged, plan, tmp_path / f"d{turn}", context=context)])
    assert sums[0] == sums[1]


@pytest.fixture
def families(small_template, tmp_path) -> Path:
    """A site-packages with ROCm for two families of archs, and ``build`` beside it."""
    tree = make_tree(tmp_path / "site", "wheels")
    fill(tmp_path / "build", small_template, tree)
    other = tmp_path / "site/_rocm_sdk_libraries_gfx120X"
    shutil.copytree(tree.lib.parent, other, symlinks=True)
    for path in other.rglob("*gfx1100*"):
        path.rename(path.with_name(path.name.replace("gfx1100", "gfx1201")))
    for library in ("librocblas.so.4.0.1", "libhipblaslt.so.1.0.1"):
        path = other / "lib" / library
        path.write_bytes(path.read_bytes() + b"gfx120X")
    return tmp_path / "site"


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_the_wheels_for_the_arch(families, tmp_path, context, arch):
    staged, _ = bundle_folder(tmp_path / "build", tmp_path / "out", arch=arch, rocm=families, context=context)
    assert f"lib/rocblas/library/TensileLibrary_lazy_{arch}.dat" in files(staged.root)
    for library in ("librocblas.so.4.0.1", "libhipblaslt.so.1.0.1"):
        assert (b"gfx120X" in (staged.root / "lib" / library).read_bytes()) == (arch == "gfx1201")


def test_the_wheel_that_is_named(families, tmp_path, context):
    named = families / "_rocm_sdk_libraries_gfx120X"
    staged, _ = bundle_folder(tmp_path / "build", tmp_path / "out", arch="gfx1030", rocm=named, context=context)
    assert b"gfx120X" in (staged.root / "lib/librocblas.so.4.0.1").read_bytes()
    with pytest.raises(BundleError, match="it has them for gfx90a, gfx1030, gfx1201") as caught:
        bundle_folder(tmp_path / "build", tmp_path / "out", arch=ARCH, rocm=named, context=context)
    other = families / "_rocm_sdk_libraries_gfx110X/lib"
    assert caught.value.details == (f"{other} has them for gfx90a, gfx1030, gfx1100",)


@pytest.mark.parametrize("named", ["the folder", "another tree", "nothing"])
def test_a_flat_release(build, tree, tmp_path, context, named):
    """ROCm's libraries and kernels in one folder with the programs, as releases ship them."""
    flat = build / "bin"
    shutil.copytree(tree.lib, flat, symlinks=True, dirs_exist_ok=True)
    plugin(flat / "libggml-hip.so", tree, runpath=tmp_path / "gone")
    (tree.lib / "librocblas.so.4.0.1").write_bytes((tree.lib / "librocblas.so.4.0.1").read_bytes() + b"newer")
    rocm = {"the folder": flat, "another tree": tree.root, "nothing": None}[named]
    staged, plan = bundle_folder(build, tmp_path / "out", arch=ARCH, rocm=rocm, context=context)
    made = files(staged.root)
    assert "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat" in made
    assert not [name for name in made if "gfx1030" in name]
    parts = {entry.destination: entry.part for entry in plan.entries}
    assert parts["lib/librocblas.so.4.0.1"] == parts["lib/libamdhip64.so.6.0.1"] == "rocm-runtime"
    newer = b"newer" in (staged.root / "lib/librocblas.so.4.0.1").read_bytes()
    assert newer == (named == "another tree")


def test_a_release_that_lost_its_links(build, tree, tmp_path, context):
    """Unpacked where there are no links, every name of a library is a copy."""
    shutil.copytree(tree.lib, build / "bin", dirs_exist_ok=True)
    staged, _ = bundle_folder(build, tmp_path / "out", arch=ARCH, context=context)
    closure = resolve_closure(elf_roots(staged.root), search=Search(inside=staged.root))
    assert not closure.by_origin("missing")
    assert {name for name in files(staged.root) if "hipblaslt.so" in name} == {"lib/libhipblaslt.so.1"}


def test_all_in_one_program(tree, tmp_path, context):
    """BUILD_SHARED_LIBS=OFF, and no CMake cache: the program's own needs say that it is for HIP."""
    data = tmp_path / "device code"
    data.write_bytes(offload_bundle({arch: code(at) for at, arch in enumerate(ARCHS)}))
    section = f'.section .hip_fatbin,\\"a\\",@progbits\\n.p2align 12\\n.incbin \\"{data}\\"\\n.previous'
    needs = [tree.lib / name for name in ("libhipblas.so.2", "librocblas.so.4", "libamdhip64.so.6")]
    compile_c(
        tmp_path / "build/bin/llama-server",
        f'__asm__("{section}"); int hipblas(void), hip(void); int main(void) {{ return hipblas() - hip(); }}',
        "-Wl,--no-as-needed",
        *needs,
        f"-Wl,-rpath,{tree.lib}",
    )
    staged, plan = bundle_folder(tmp_path / "build", tmp_path / "out", arch=ARCH, context=context)
    assert staged.name == "llama-build-hip-gfx1100"
    assert "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat" in files(staged.root)
    (program,) = [entry for entry in plan.entries if entry.destination == "bin/llama-server"]
    assert program.thin == (ARCH,)
    thinned = {change.destination: change.thinned.zeroed for change in staged.changes if change.thinned}
    assert thinned == {"bin/llama-server": ("gfx90a", "gfx1030")}
    shutil.rmtree(tree.root)
    assert subprocess.run([staged.root / "bin/llama-server"], env={}, check=False).returncode == 0


def test_names_of_bundles(build, tree, tmp_path, context):
    with pytest.raises(UsageError, match="--name"):
        bundle(build, tree, tmp_path / "out", context, name="../evil")
    assert not (tmp_path / "out").exists()
    (build / "bin/inner").mkdir()
    staged, _ = bundle(build / "bin/inner/../..", tree, tmp_path / "out", context)
    assert staged.name == "llama-build-hip-gfx1100"


def test_what_a_user_may_get_wrong(build, tree, tmp_path, context):
    with pytest.raises(UsageError, match="bundled for one arch"):
        bundle(build, tree, tmp_path / "out", context, arch="")
    with pytest.raises(BundleError, match="holds no ROCm"):
        bundle_folder(build, tmp_path / "out", arch=ARCH, rocm=tmp_path, context=context)
    with pytest.raises(UsageError, match=r"holds no program of llama\.cpp"):
        bundle_folder(tmp_path, tmp_path / "out", arch=ARCH, rocm=tree.root, context=context)
