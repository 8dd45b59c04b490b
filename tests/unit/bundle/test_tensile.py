"""Where rocBLAS and hipBLASLt would look: the orders that ``strace`` shows of the real ones, over made-up trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamabuild.bundle.archs import arch_of, available_archs, base_arch
from llamabuild.bundle.kpack import simulate_kpack
from llamabuild.bundle.tensile import rocblas_depth, simulate_hipblaslt, simulate_rocblas

AMD = b"\0ROCBLAS_TENSILE_LIBPATH\0/opt/rocm/lib\0/../../Tensile/library\0/../rocblas/library\0rocblas.\0"
LOOKS_IN_TENSILE = AMD + b"\0/../Tensile/library\0"
DEBIAN = AMD + b"\0/rocblas/4.4.1/library\0/TensileLibrary_lazy_\0"


def tree(root: Path, *files: str, library: str = "lib/librocblas.so.4", strings: bytes = AMD) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            (root / name).write_bytes(b"x")
        else:
            (root / name).mkdir(exist_ok=True)
    path = root / library
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(strings)
    return path


def kinds(result) -> list[tuple[str, str]]:
    return [(problem.kind, problem.severity) for problem in result.problems]


def test_the_plain_place(tmp_path):
    library = tree(tmp_path, "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat")
    result = simulate_rocblas(tmp_path, library, "gfx1100")
    assert result.opened == "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat"
    assert result.tried == (
        str(tmp_path.parent / "Tensile/library"),
        "lib/library",
        "rocblas/library",
        "lib/rocblas/library",
    )
    assert result.problems == ()
    other = tree(tmp_path / "other", strings=LOOKS_IN_TENSILE)
    assert simulate_rocblas(tmp_path / "other", other, "gfx1100").tried[1:] == (
        "lib/library",
        "rocblas/library",
        "Tensile/library",
        "lib/rocblas/library",
    )


def test_a_folder_that_only_some_builds_look_in(tmp_path):
    """Debian's rocBLAS does not; ``/../Tensile/library`` as the end of a longer literal tells nothing."""
    files = ("lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat", "Tensile/library/")
    result = simulate_rocblas(tmp_path, tree(tmp_path, *files), "gfx1100")
    assert result.opened == "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat"
    assert "Tensile/library" not in result.tried
    assert kinds(result) == [("shadow", "warning")]


def test_hipblaslt_that_finds_no_folder_looks_where_the_process_is(tmp_path):
    library = tree(tmp_path, "lib/elsewhere/", library="lib/libhipblaslt.so.1")
    result = simulate_hipblaslt(tmp_path, library, "gfx1100")
    assert result.tried == ("lib/hipblaslt/library", "Tensile/library", "lib/library")
    assert (result.folder, result.opened) == ("", None)


def test_the_depth_is_read_from_the_library(tmp_path):
    """Debian's build looks at its own version's folder first."""
    library = tree(
        tmp_path,
        "lib/rocblas/4.4.1/library/TensileLibrary_lazy_gfx1100.dat",
        "lib/library/",
        strings=DEBIAN,
    )
    assert rocblas_depth(library) == "rocblas/4.4.1/library"
    result = simulate_rocblas(tmp_path, library, "gfx1100")
    assert result.tried == ("lib/rocblas/4.4.1/library",)
    assert result.opened == "lib/rocblas/4.4.1/library/TensileLibrary_lazy_gfx1100.dat"
    plain = tree(tmp_path / "plain", strings=AMD)
    assert rocblas_depth(plain) == "rocblas/library"


def test_files_at_the_unversioned_depth_are_found_by_debians_build_too(tmp_path):
    library = tree(tmp_path, "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat", strings=DEBIAN)
    assert simulate_rocblas(tmp_path, library, "gfx1100").opened


@pytest.mark.parametrize(
    ("stray", "where"),
    [
        ("lib/library/", "lib/library"),
        ("rocblas/library/", "rocblas/library"),
        ("Tensile/library/", "Tensile/library"),
    ],
)
def test_what_shadows_the_right_folder(tmp_path, stray, where):
    """A flattened ``library/``; a stray ``../rocblas/library``; ``../Tensile/library``: all come first."""
    library = tree(tmp_path, "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat", stray, strings=LOOKS_IN_TENSILE)
    result = simulate_rocblas(tmp_path, library, "gfx1100")
    assert result.opened is None
    assert result.folder == where
    assert kinds(result) == [("shadow", "error")]
    assert result.problems[0].path == where
    # The kernels are there, only out of reach.
    assert result.archs == ("gfx1100",)


def test_a_hashed_name_is_not_recognised(tmp_path):
    """Wheel repair tools rename libraries; rocBLAS then looks in /opt/rocm/lib."""
    library = tree(
        tmp_path, "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat", library="lib/librocblas-ab12cd34.so.4"
    )
    result = simulate_rocblas(tmp_path, library, "gfx1100")
    assert ("hashed-name", "error") in kinds(result)
    assert result.folder == "/opt/rocm/lib/rocblas/library"


def test_another_object_that_is_taken_for_rocblas(tmp_path):
    library = tree(tmp_path, "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat", "bin/my.rocblas.d/x")
    assert kinds(simulate_rocblas(tmp_path, library, "gfx1100")) == [("misdirected", "error")]


def test_only_archless_fallbacks_serve_no_gpu(tmp_path):
    """ROCm/TheRock#5179."""
    library = tree(
        tmp_path,
        "lib/rocblas/library/TensileLibrary_Type_SS_Contraction_l_Ailk_Bjlk_Cijk_Dijk_fallback.dat",
        "lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat",
        "lib/rocblas/library/TensileLibrary_lazy_gfx90a.dat",
    )
    result = simulate_rocblas(tmp_path, library, "gfx942")
    assert result.opened is None
    assert result.archs == ("gfx90a", "gfx1100")
    assert result.candidates == ("TensileLibrary_lazy_gfx942.dat", "TensileLibrary_gfx942.dat", "TensileLibrary.dat")


def test_compressed_index_in_the_archs_folder(tmp_path):
    """ROCm/TheRock#7976: accepted, its depth kept, the releases that cannot read it named."""
    library = tree(tmp_path, "lib/rocblas/library/gfx1201/TensileLibrary_lazy_gfx1201.dat.zlib", strings=b"")
    result = simulate_rocblas(tmp_path, library, "gfx1201")
    assert result.opened == "lib/rocblas/library/gfx1201/TensileLibrary_lazy_gfx1201.dat.zlib"
    assert kinds(result) == [("compressed", "note")]
    assert result.archs == ("gfx1201",)


@pytest.mark.parametrize(("strings", "opened"), [(b"\0.zlib\0", True), (b"", False)])
def test_whether_this_library_reads_compressed_indexes_is_read_from_it(tmp_path, strings, opened):
    library = tree(
        tmp_path, "lib/rocblas/library/gfx1201/TensileLibrary_lazy_gfx1201.dat.zlib", strings=DEBIAN + strings
    )
    result = simulate_rocblas(tmp_path, library, "gfx1201")
    assert bool(result.opened) is opened
    assert kinds(result) == [("compressed", "note" if opened else "error")]


def test_xnack_folders_come_first(tmp_path):
    library = tree(
        tmp_path,
        "lib/rocblas/library/gfx90a/TensileLibrary_lazy_gfx90a.dat",
        "lib/rocblas/library/gfx90a-xnack-/TensileLibrary_lazy_gfx90a.dat",
    )
    result = simulate_rocblas(tmp_path, library, "gfx90a:sramecc+:xnack-")
    assert result.opened == "lib/rocblas/library/gfx90a-xnack-/TensileLibrary_lazy_gfx90a.dat"
    assert (
        simulate_rocblas(tmp_path, library, "gfx90a").opened
        == "lib/rocblas/library/gfx90a/TensileLibrary_lazy_gfx90a.dat"
    )


def test_stale_and_misplaced_files(tmp_path):
    library = tree(
        tmp_path,
        "lib/hipblaslt/library/gfx1100/TensileLibrary_lazy_gfx1100.dat",
        "lib/hipblaslt/library/gfx1100/TensileLibrary_lazy_gfx1100.dat.zlib",
        "lib/hipblaslt/library/gfx1100/Kernels.so-000-gfx1101.hsaco",
        library="lib/libhipblaslt.so.1",
    )
    assert kinds(simulate_hipblaslt(tmp_path, library, "gfx1100")) == [("wrong-arch", "warning"), ("stale", "warning")]


@pytest.mark.parametrize(
    "layout",
    [
        ("lib/hipblaslt/library/TensileLibrary_lazy_gfx1100.dat",),
        ("lib/hipblaslt/library/gfx1100/TensileLibrary_lazy_gfx1100.dat", "lib/hipblaslt/library/extop_gfx1100.co"),
        ("lib/hipblaslt/library/gfx1100/TensileLibrary_lazy_gfx1100.dat.zlib",),
    ],
    ids=["flat 7.1", "mixed 7.13", "per arch 7.14"],
)
def test_layouts_of_hipblaslt(tmp_path, layout):
    library = tree(tmp_path, *layout, library="lib/libhipblaslt-0f.so.1", strings=b"")
    assert simulate_hipblaslt(tmp_path, library, "gfx1100").opened == layout[0]


def test_hipblaslt_searches_in_another_order(tmp_path):
    library = tree(tmp_path, "lib/library/TensileLibrary_lazy_gfx1100.dat", library="lib/libhipblaslt.so.1")
    result = simulate_hipblaslt(tmp_path, library, "gfx1100")
    assert result.tried == ("lib/hipblaslt/library", "Tensile/library", "lib/library")
    assert result.opened == "lib/library/TensileLibrary_lazy_gfx1100.dat"


def test_an_empty_folder_of_hipblaslt(tmp_path):
    """unslothai/unsloth#8364, lemonade-sdk/llamacpp-rocm#22: what the judge needs to tell a note from a failure."""
    library = tree(tmp_path, "lib/hipblaslt/library/", library="lib/libhipblaslt.so.1")
    result = simulate_hipblaslt(tmp_path, library, "gfx1030")
    assert (result.opened, result.archs) == (None, ())


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("TensileLibrary_Type_HH_Contraction_l_Alik_Bjlk_Cijk_Dijk_CU104_gfx90a-xnack-.hsaco", "gfx90a-xnack-"),
        ("Kernels.so-000-gfx1100.hsaco", "gfx1100"),
        ("extop_gfx942.co", "gfx942"),
        ("gfx11-generic", "gfx11-generic"),
        ("blas_lib_gfx9-4-generic.kpack", "gfx9-4-generic"),
        ("TensileLibrary_Type_SS_fallback.dat", None),
        ("hipblasltTransform.hsaco", None),
    ],
)
def test_archs_in_names(name, arch):
    assert arch_of(name) == arch


def test_base_archs():
    assert {base_arch(name) for name in ("gfx90a", "gfx90a:sramecc+:xnack-", "gfx90a-xnack+")} == {"gfx90a"}


def test_archs_of_a_folder(tmp_path):
    tree(
        tmp_path,
        "l/TensileLibrary_lazy_gfx1100.dat",
        "l/gfx942/TensileLibrary_lazy_gfx942.dat.zlib",
        "l/TensileLibrary_Type_X_gfx803.dat",
    )
    assert available_archs(tmp_path / "l") == ("gfx942", "gfx1100")


def test_no_kpack_without_the_section(tmp_path):
    library = tree(tmp_path)
    assert simulate_kpack(tmp_path, library, "gfx1100").ok
