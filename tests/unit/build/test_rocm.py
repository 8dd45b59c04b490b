"""The four layouts of a ROCm tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from llamabuild.build.rocm import find_rocm
from llamabuild.core.errors import ToolError

if TYPE_CHECKING:
    from pathlib import Path


def lay(root: Path, *files: str) -> Path:
    for name in files:
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return root


def test_amd_packages(tmp_path: Path) -> None:
    root = lay(
        tmp_path / "opt/rocm",
        "lib/librocblas.so.4",
        "lib/libamdhip64.so.6",
        "lib/rocblas/library/TensileLibrary_lazy_gfx1201.dat",
        "lib/hipblaslt/library/TensileLibrary_lazy_gfx1201.dat",
        "lib/llvm/bin/clang++",
    )
    (root / "lib64").symlink_to("lib")
    lay(root, ".info/version").joinpath(".info/version").write_text("6.4.1-83\n")
    for given in (root, root / "lib"):
        tree = find_rocm(given)
        assert (tree.root, tree.layout, tree.version) == (root, "amd", "6.4.1")
        assert tree.library_folders == (root / "lib",)
        assert tree.rocblas_library == root / "lib/rocblas/library"
        assert tree.hipblaslt_library == root / "lib/hipblaslt/library"
        assert tree.clang == root / "lib/llvm/bin/clang++"
        assert tree.library("librocblas.so.4") == root / "lib/librocblas.so.4"
        assert tree.library("librocblas.so.5") is None


def test_therock_archive(tmp_path: Path) -> None:
    root = lay(
        tmp_path / "therock",
        "lib/librocblas.so.5",
        "lib/rocm_sysdeps/lib/librocm_sysdeps_z.so.1",
        "lib/llvm/lib/libLLVM.so",
        "lib/rocblas/library/gfx1201/TensileLibrary_lazy_gfx1201.dat",
        "lib/hipblaslt/library/gfx1201/TensileLibrary_lazy_gfx1201.dat",
        ".kpack/blas_lib_gfx1201.kpack",
    )
    tree = find_rocm(root)
    assert tree.layout == "therock"
    assert tree.library_folders == (root / "lib", root / "lib/rocm_sysdeps/lib", root / "lib/llvm/lib")
    assert tree.kpack == root / ".kpack"
    assert tree.prefix is None
    assert tree.library("librocm_sysdeps_z.so.1") == root / "lib/rocm_sysdeps/lib/librocm_sysdeps_z.so.1"


def test_debian_with_its_versioned_depth(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        "usr/lib/x86_64-linux-gnu/librocblas.so.4.4",
        "usr/lib/x86_64-linux-gnu/rocblas/4.4.1/library/TensileLibrary_lazy_gfx1100.dat",
        "usr/lib/x86_64-linux-gnu/hipblaslt/library/TensileLibrary_lazy_gfx1100.dat",
        "usr/include/hip/hip_runtime.h",
        "usr/bin/clang++-9",
        "usr/bin/clang++-21",
    )
    multiarch = root / "usr/lib/x86_64-linux-gnu"
    tree = find_rocm(root)
    assert tree.layout == "debian"
    assert tree.rocblas_library == multiarch / "rocblas/4.4.1/library"
    assert tree.hipblaslt_library == multiarch / "hipblaslt/library"
    assert tree.clang == root / "usr/bin/clang++-21"
    assert tree.prefix == root / "usr"
    for given in (root / "usr", multiarch):
        assert find_rocm(given).library("librocblas.so.4.4") == multiarch / "librocblas.so.4.4"
        assert find_rocm(given).layout == "debian"


def test_python_wheels(tmp_path: Path) -> None:
    root = lay(
        tmp_path / "site-packages",
        "_rocm_sdk_core/lib/libamdhip64.so.7",
        "_rocm_sdk_core/lib/rocm_sysdeps/lib/librocm_sysdeps_elf.so.1",
        "_rocm_sdk_core/lib/llvm/bin/clang++",
        "_rocm_sdk_devel/include/hip/hip_runtime.h",
        "_rocm_sdk_libraries_gfx120X_all/lib/librocblas.so.5",
        "_rocm_sdk_libraries_gfx120X_all/lib/rocblas/library/TensileLibrary_lazy_gfx1201.dat",
    )
    for given in (root, root / "_rocm_sdk_core", root / "_rocm_sdk_libraries_gfx120X_all/lib"):
        tree = find_rocm(given)
        assert tree.root == root
        assert tree.layout == "wheels"
        assert tree.rocblas_library == root / "_rocm_sdk_libraries_gfx120X_all/lib/rocblas/library"
        assert tree.library("libamdhip64.so.7") == root / "_rocm_sdk_core/lib/libamdhip64.so.7"
        assert tree.library("librocm_sysdeps_elf.so.1") is not None
        assert tree.clang == root / "_rocm_sdk_core/lib/llvm/bin/clang++"
        assert tree.prefix == root / "_rocm_sdk_devel"


def test_two_families_of_wheels(tmp_path: Path) -> None:
    families = ("_rocm_sdk_libraries_gfx110X", "_rocm_sdk_libraries_gfx120X")
    lay(tmp_path, "_rocm_sdk_core/lib/libamdhip64.so.7", *(f"{family}/lib/librocblas.so.5" for family in families))
    for family in families:
        for given in (tmp_path / family, tmp_path / family / "lib"):
            tree = find_rocm(given)
            assert tree.root == tmp_path
            assert tree.library("librocblas.so.5") == tmp_path / family / "lib/librocblas.so.5"
            assert tree.library("libamdhip64.so.7") is not None


def test_a_flat_folder(tmp_path: Path) -> None:
    root = lay(
        tmp_path / "release/bin", "llama-server", "librocblas.so.5", "rocblas/library/TensileLibrary_lazy_gfx1201.dat"
    )
    tree = find_rocm(root)
    assert (tree.root, tree.library_folders) == (root, (root,))
    assert tree.rocblas_library == root / "rocblas/library"


def test_a_folder_without_rocm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="holds no ROCm") as caught:
        find_rocm(lay(tmp_path, "lib/libc.so.6"))
    assert caught.value.exit_code == 5
