"""Failures that people who bundle llama.cpp reported, each on a small bundle that shows it."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from llamabuild.bundle.archive import make_archives
from llamabuild.bundle.model import StagedBundle
from llamabuild.bundle.unpack import opened_tar
from llamabuild.verify.check import Options, verify_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llamabuild.verify.findings import Finding

STILL = Options(run=False)


def found(path: Path, made, **changes) -> dict[str, Finding]:
    """The findings by name (one of each) without starting programs."""
    report = verify_path(path, context=made.context, options=STILL, **changes)
    return {finding.name: finding for finding in reversed(report.findings)}


def test_arch_less_fallback_files_alone_serve_no_gpu(hip_bundle_gfx1100, copy_of):
    """ROCm/TheRock#5179."""
    made = copy_of(hip_bundle_gfx1100)
    library = made.root / "lib/rocblas/library"
    for path in library.iterdir():
        path.unlink()
    (library / "TensileLibrary_Type_SS_Contraction_l_Ailk_Bjlk_Cijk_Dijk_fallback.dat").write_bytes(b"x")
    (library / "TensileLibrary_lazy_gfx1201.dat").write_bytes(b"x")
    finding = found(made.root, made)["tensile.no-kernels-for-arch"]
    assert finding.severity == "error"
    assert "gfx1100" in finding.message
    assert "archs there: gfx1201" in finding.evidence


def test_hipblaslt_without_its_kernels_fails_for_an_arch_that_it_serves(hip_bundle_gfx1100, copy_of):
    """lemonade-sdk/llamacpp-rocm#22."""
    made = copy_of(hip_bundle_gfx1100)
    shutil.rmtree(made.root / "lib/hipblaslt")
    assert found(made.root, made)["tensile.hipblaslt-missing"].severity == "error"


def test_kernels_by_arch_and_compressed_are_accepted_with_a_note(hip_bundle_gfx1100, copy_of):
    """ROCm/TheRock#7976."""
    made = copy_of(hip_bundle_gfx1100)
    library = made.root / "lib/rocblas/library"
    (library / "gfx1100").mkdir()
    for path in [each for each in library.iterdir() if each.is_file()]:
        path.rename(library / "gfx1100" / (path.name + ".zlib" if path.suffix == ".dat" else path.name))
    findings = found(made.root, made)
    assert "tensile.no-kernels-for-arch" not in findings
    assert findings["tensile.compressed"].severity == "note"


def test_an_empty_hipblaslt_folder_passes_with_a_note_where_it_serves_no_such_gpu(hip_bundle_gfx1100, copy_of):
    """unslothai/unsloth#8364; rocBLAS stays mandatory."""
    made = copy_of(hip_bundle_gfx1100)
    for path in (made.root / "lib/hipblaslt/library").iterdir():
        path.unlink()
    findings = found(made.root, made, arch="gfx1030")
    assert findings["tensile.hipblaslt-not-for-arch"].severity == "note"
    assert "tensile.hipblaslt-missing" not in findings
    assert findings["tensile.no-kernels-for-arch"].severity == "error"


def test_a_flattened_library_folder_shadows_the_right_one(hip_bundle_gfx1100, copy_of):
    made = copy_of(hip_bundle_gfx1100)
    shutil.copytree(made.root / "lib/rocblas/library", made.root / "lib/library")
    assert found(made.root, made)["tensile.shadow"].severity == "error"


def test_files_one_level_too_deep_are_not_found(hip_bundle_gfx1100, copy_of):
    """``cp -r library DST`` where DST exists."""
    made = copy_of(hip_bundle_gfx1100)
    folder = made.root / "lib/rocblas"
    (folder / "library").rename(folder / "kept")
    (folder / "library").mkdir()
    (folder / "kept").rename(folder / "library/library")
    assert "tensile.no-kernels-for-arch" in found(made.root, made)


def test_an_index_without_code_objects_is_found(hip_bundle_gfx1100, copy_of):
    made = copy_of(hip_bundle_gfx1100)
    for path in (made.root / "lib/rocblas/library").glob("*.co"):
        path.unlink()
    assert "not one code object" in found(made.root, made)["tensile.no-kernels-for-arch"].message


def test_a_hashed_rocblas_is_found(hip_bundle_gfx1100, copy_of):
    made = copy_of(hip_bundle_gfx1100)
    path = made.root / "lib/librocblas.so.4"
    data = path.read_bytes().replace(b"librocblas.so.4\0", b"librocblasXso.4\0")
    path.unlink()
    path.with_name("librocblas-ab12cd34.so.4").write_bytes(data)
    assert "tensile.hashed-name" in found(made.root, made)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("my.rocblas.test/llama", "tensile.misdirected-here"),
        ("deep/rocblas.d/down/llama", "tensile.misdirected-here"),
        ("llama-rocblas.v2", "tensile.misdirected"),
        ("rocblas/llama", None),
    ],
)
def test_a_folder_named_like_rocblas_misdirects_it(place, told, hip_bundle_gfx1100, tmp_path):
    """rocBLAS searches from the last loaded object whose path has ``rocblas.`` anywhere in it."""
    made = hip_bundle_gfx1100
    root = tmp_path / place
    shutil.copytree(made.root, root, symlinks=True)
    names = {name for name in found(root, made) if name.startswith("tensile.misdirected")}
    assert names == ({told} if told else set())


def test_where_an_archive_is_unpacked_to_be_verified_says_nothing_about_it(hip_bundle_gfx1100, tmp_path, monkeypatch):
    made = hip_bundle_gfx1100
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(made.root, made.root.name)
    scratch = tmp_path / "rocblas.scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert not [name for name in found(archive, made) if name.startswith("tensile.misdirected")]


def compile_into(path: Path, source: str, *flags: str, compiler: str = "gcc") -> None:
    words = [compiler, "-x", "c++" if compiler == "g++" else "c", "-", "-shared", "-fPIC", "-s", "-o", str(path)]
    subprocess.run([*words, "-Wl,-z,relro,-z,now", *flags], input=source, text=True, check=True)


SPLIT_OFF = """
__asm__(".section .rocm_kpack_ref,\\"a\\"\\n"
    ".byte 0x81, 0xb2\\n.ascii \\"kpack_search_paths\\"\\n"
    ".byte 0x91, 0xd9, 0x2c\\n.ascii \\"../.kpack/blas_libraries_lib_@GFXARCH@.kpack\\"\\n.text\\n");
int rocblas_sgemm(void) { return 1; }
"""
"""A MessagePack map with one list of one path, as TheRock's splitter writes it."""


def test_kernels_that_were_split_off_have_to_be_where_the_library_names_them(hip_bundle_gfx1100, copy_of):
    made = copy_of(hip_bundle_gfx1100)
    compile_into(made.root / "lib/librocblas.so.4", SPLIT_OFF, "-Wl,-soname,librocblas.so.4")
    missing = found(made.root, made)["device.kpack-missing"]
    assert (missing.severity, missing.evidence) == ("error", ".kpack/blas_libraries_lib_gfx1100.kpack")
    (made.root / ".kpack").mkdir()
    (made.root / ".kpack/blas_libraries_lib_gfx1201.kpack").write_bytes(b"HIPK")
    assert "device.kpack-missing" in found(made.root, made)
    (made.root / ".kpack/blas_libraries_lib_gfx1100.kpack").write_bytes(b"HIPK")
    assert "device.kpack-missing" not in found(made.root, made)


def test_a_library_that_another_opens_by_name_has_to_be_there(hip_bundle_gfx1100, copy_of):
    made = copy_of(hip_bundle_gfx1100)
    compile_into(made.root / "lib/libamdhip64.so.6", "int hip(void) { return 1; }", "-Wl,-soname,libamdhip64.so.6")
    assert "libamd_comgr" in found(made.root, made)["closure.opened-missing"].message
    compile_into(made.root / "lib/libamd_comgr.so.3", "int c(void) { return 1; }", "-Wl,-soname,libamd_comgr.so.3")
    findings = found(made.root, made)
    assert "closure.opened-missing" not in findings
    assert findings["closure.unreferenced"].file == "lib/libamdhip64.so.6"


def test_the_cplusplus_floors_are_apart_from_glibcs(cpu_bundle, copy_of):
    made = copy_of(cpu_bundle)
    code = "#include <string>\n#include <new>\nstd::string f(int n) { return std::string(n, 'x') + std::to_string(n); }"
    compile_into(made.root / "bin/libggml-cpu.so", code, compiler="g++")
    target = made.recipe.targets["cpu"].model_copy(update={"glibc_floor": "2.17"})
    recipe = made.recipe.model_copy(update={"targets": {"cpu": target}})
    finding = found(made.root, made, recipe=recipe)["glibcxx.above-floor"]
    assert finding.file == "bin/libggml-cpu.so"
    assert "GLIBCXX_3.4.19" in finding.message


def test_a_part_that_is_an_archive_of_its_own_is_noted_and_half_of_one_is_not(hip_bundle_gfx1100, copy_of):
    made = copy_of(hip_bundle_gfx1100)
    document = json.loads((made.root / "BUILD_INFO.json").read_text())
    for record in document["files"]:
        if "blas" in record["path"]:
            record["origin"] = "rocblas" if "rocblas" in record["path"] else "hipblaslt"
    (made.root / "BUILD_INFO.json").write_text(json.dumps(document))
    for path in [*made.root.glob("lib/*blas*/library/*"), *made.root.glob("lib/lib*blas*")]:
        path.unlink()
    findings = found(made.root, made)
    assert {name for name, each in findings.items() if each.severity == "error"} == {"metadata.text"}
    assert findings["metadata.part-absent"].severity == "note"
    shutil.copy2(hip_bundle_gfx1100.root / "lib/librocblas.so.4", made.root / "lib")
    findings = found(made.root, made)
    assert {"metadata.file-missing", "tensile.no-kernels-for-arch"} <= set(findings)


@pytest.fixture
def archive(cpu_bundle, tmp_path: Path) -> Callable[..., Path]:
    """Archives the good bundle, with its members changed on the way."""

    def make(form: str = "tar.gz", change: Callable[[tarfile.TarInfo], object] = lambda info: info) -> Path:
        staged = StagedBundle(cpu_bundle.root.name, cpu_bundle.root, 1_700_000_000)
        (good,) = make_archives(staged, tmp_path, context=cpu_bundle.context, formats=[form])
        changed = tmp_path / "changed.tar.gz"
        with opened_tar(good.path) as source, tarfile.open(changed, "w:gz") as target:
            for info in source:
                content = source.extractfile(info) if info.isfile() else None
                if change(info) is not None:
                    target.addfile(info, content)
        return changed

    return make


@pytest.mark.parametrize("form", ["tar.gz", "tar.zst"])
def test_a_good_archive_has_no_findings(form, cpu_bundle, tmp_path):
    staged = StagedBundle(cpu_bundle.root.name, cpu_bundle.root, 1_700_000_000)
    (good,) = make_archives(staged, tmp_path, context=cpu_bundle.context, formats=[form])
    report = verify_path(good.path, context=cpu_bundle.context, recipe=cpu_bundle.recipe)
    assert [finding for finding in report.findings if finding.name != "program.same-user"] == []
    assert list(tmp_path.iterdir()) == [good.path]


def test_link_targets_rewritten_by_a_prefix_rule_are_found_in_the_archive(archive, cpu_bundle):
    """ggml-org/llama.cpp#23115: tar --transform rewrote the targets of links too."""

    def prefix(info: tarfile.TarInfo) -> tarfile.TarInfo:
        if info.issym():
            info.linkname = f"{cpu_bundle.root.name}/{info.linkname}"
        return info

    findings = found(archive(change=prefix), cpu_bundle)
    assert findings["link.dangling"].severity == "error"
    assert "closure.not-bundled" in findings


def test_a_link_whose_target_was_not_copied_is_found(archive, cpu_bundle):
    """ollama/ollama#7817."""
    drop = archive(change=lambda info: None if info.name.endswith("libllama.so.0.5.0") else info)
    assert "libllama.so" in found(drop, cpu_bundle)["link.dangling"].file


def test_members_that_would_land_outside_are_told_and_not_written(archive, cpu_bundle, tmp_path):
    def escape(info: tarfile.TarInfo) -> tarfile.TarInfo:
        if info.name.endswith("LICENSE"):
            info.name = "../../escaped"
        return info

    assert found(archive(change=escape), cpu_bundle)["archive.unsafe-member"].severity == "error"
    assert not list(tmp_path.parent.glob("**/escaped"))


def test_an_archive_cut_short_is_damaged(archive, cpu_bundle):
    path = archive()
    path.write_bytes(path.read_bytes()[:-5000])
    assert found(path, cpu_bundle)["archive.damaged"].severity == "error"


def test_an_archive_is_held_against_the_sums_beside_it(archive, cpu_bundle):
    path = archive()
    path.with_name("SHA256SUMS").write_text(f"{'0' * 64}  other.tar.gz\n")
    assert "archive.sum" not in found(path, cpu_bundle)
    path.with_name("SHA256SUMS").write_text(f"{'0' * 64}  {path.name}\n")
    assert found(path, cpu_bundle)["archive.sum"].severity == "error"
    subprocess.run(f"sha256sum {path.name} > SHA256SUMS", shell=True, check=True, cwd=path.parent)
    assert "archive.sum" not in found(path, cpu_bundle)


def test_a_mode_that_locks_other_users_out_is_seen_in_the_archive(archive, cpu_bundle):
    def lock(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mode = 0o600 if info.name.endswith("LICENSE") else info.mode
        return info

    assert "file.mode" in found(archive(change=lock), cpu_bundle)


def test_a_zip_that_followed_links_is_flattened(cpu_bundle, tmp_path):
    path = tmp_path / "flat.zip"
    with zipfile.ZipFile(path, "w") as target:
        for each in sorted(cpu_bundle.root.rglob("*")):
            if each.is_file():
                target.write(each, f"{cpu_bundle.root.name}/{each.relative_to(cpu_bundle.root)}")
    assert {"link.flattened", "metadata.link"} <= set(found(path, cpu_bundle))


def test_a_zip_with_links_is_read_with_links(cpu_bundle, tmp_path):
    path = tmp_path / "kept.zip"
    with zipfile.ZipFile(path, "w") as target:
        for each in sorted(cpu_bundle.root.rglob("*")):
            name = f"{cpu_bundle.root.name}/{each.relative_to(cpu_bundle.root)}"
            if each.is_symlink():
                info = zipfile.ZipInfo(name)
                info.external_attr = 0o120777 << 16
                target.writestr(info, str(each.readlink()))
            elif each.is_file():
                target.write(each, name)
    report = verify_path(path, context=cpu_bundle.context, recipe=cpu_bundle.recipe)
    assert [finding for finding in report.findings if finding.name != "program.same-user"] == []


def test_a_wheel_is_held_against_its_own_record(tmp_path, cpu_bundle):
    import base64
    import hashlib

    content = {"pkg/__init__.py": b"x = 1\n", "pkg/data.txt": b"data\n"}
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for name, data in content.items()
    ]
    record = "\n".join([*rows, "pkg-1.dist-info/RECORD,,"])

    def wheel(name: str, files: dict[str, bytes]) -> Path:
        path = tmp_path / f"{name}-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for member, data in {**files, "pkg-1.dist-info/RECORD": record.encode()}.items():
                archive.writestr(member, data)
        return path

    assert not {each for each in found(wheel("good", content), cpu_bundle) if each.startswith(("wheel.", "archive."))}
    assert "wheel.digest" in found(wheel("changed", {**content, "pkg/data.txt": b"date\n"}), cpu_bundle)
    assert "wheel.file-missing" in found(wheel("less", {"pkg/data.txt": b"data\n"}), cpu_bundle)
    assert "wheel.file-unlisted" in found(wheel("more", {**content, "pkg/more.txt": b"x"}), cpu_bundle)


def test_runpath_on_the_executable_alone_does_not_reach_its_libraries(cpu_bundle, copy_of):
    """ggml-org/llama.cpp#25807: the check must not inherit RUNPATH."""
    made = copy_of(cpu_bundle)
    for path in made.root.glob("lib/lib*.so.0.*"):
        path.write_bytes(path.read_bytes().replace(b"$ORIGIN\0", b"\0ORIGIN\0"))
    words = ["gcc", "-x", "c", "-", "-s", "-o", made.root / "bin/llama-server", "-x", "none"]
    words += [made.root / "lib/libllama.so.0", f"-Wl,-rpath-link,{made.root}/lib"]
    words += ["-Wl,--enable-new-dtags,-rpath,$ORIGIN/../lib"]
    code = b"void llama_backend_init(void); int main(void){llama_backend_init();return 0;}"
    subprocess.run(words, input=code, check=True)
    report = verify_path(made.root, context=made.context, options=STILL)
    broken = [finding for finding in report.findings if finding.name == "closure.not-bundled"]
    assert any("does not reach" in finding.message for finding in broken)


def test_a_missing_libgomp_is_found(cpu_bundle, copy_of):
    """lemonade-sdk/lemonade#2793."""
    made = copy_of(cpu_bundle)
    for path in made.root.glob("lib/libgomp.so*"):
        path.unlink()
    finding = found(made.root, made)["closure.not-bundled"]
    assert "libgomp.so.1" in finding.message


def test_the_floor_is_the_highest_need_of_all_files_and_names_the_file(cpu_bundle, copy_of):
    """unslothai/llama.cpp#33: one ELF of many needs a newer glibc."""
    made = copy_of(cpu_bundle)
    target = made.recipe.targets["cpu"].model_copy(update={"glibc_floor": "2.17"})
    recipe = made.recipe.model_copy(update={"targets": {"cpu": target}})
    report = verify_path(made.root, context=made.context, recipe=recipe, options=STILL)
    files = {finding.file for finding in report.findings if finding.name == "glibc.above-floor"}
    needs = {
        str(path.relative_to(made.root))
        for path in made.root.rglob("*")
        if path.is_file() and not path.is_symlink() and _glibc(path) > (2, 17)
    }
    assert files == needs
    assert needs


def _glibc(path: Path) -> tuple[int, ...]:
    out = subprocess.run(["readelf", "-V", path], capture_output=True, text=True, check=False).stdout
    versions = [word.removeprefix("GLIBC_") for word in out.split() if word.startswith("GLIBC_2")]
    return max((tuple(int(part) for part in each.split(".")) for each in versions), default=(0,))


def _with_arch(made, arch: str, nv: bytes):
    path = made.root / "bin/libggml-cuda.so"
    data = path.read_bytes()
    at = data.index(b"\x50\xed\x55\xba")
    path.write_bytes(data[:at] + nv + data[at + len(nv) :])
    target = made.recipe.targets["cuda"].model_copy(update={"arch": arch})
    return made.recipe.model_copy(update={"targets": {"cuda": target}})


def test_120a_asked_and_120_embedded_is_a_mismatch(cuda_bundle, copy_of, nv_fatbin):
    """Thireus/GGUF-Tool-Suite#75."""
    made = copy_of(cuda_bundle)
    findings = found(made.root, made, recipe=_with_arch(made, "120a-real", nv_fatbin(("sass", "120"))))
    assert "SASS 120;" in findings["device.sass-missing"].evidence


def test_120_asked_and_120a_embedded_is_what_upstream_does(cuda_bundle, copy_of, nv_fatbin):
    made = copy_of(cuda_bundle)
    findings = found(made.root, made, recipe=_with_arch(made, "120-real", nv_fatbin(("sass", "120a"))))
    assert not {name for name in findings if name.startswith("device.")}


def test_ptx_alone_needs_a_driver_of_the_toolkit_and_is_not_called_supported(cuda_bundle, copy_of, nv_fatbin):
    """ggml-org/llama.cpp#1648."""
    made = copy_of(cuda_bundle)
    findings = found(made.root, made, recipe=_with_arch(made, "86-virtual", nv_fatbin(("ptx", "86"))))
    assert findings["device.ptx-only"].severity == "warning"
    assert "driver at least as new as the toolkit" in _meaning("device.ptx-only")


def _meaning(name: str) -> str:
    from llamabuild.verify.registry import all_kinds

    return all_kinds()[name].meaning


def test_every_case_of_nccl_is_told_by_what_was_asked(cpu_bundle, copy_of):
    """utilityai/llama-cpp-rs#1055."""
    made = copy_of(cpu_bundle)
    plugin = made.root / "bin/libggml-cpu.so"
    nccl = made.root / "lib/libnccl.so.2"
    for path, code, flags in (
        (nccl, b"int ncclInit(void){return 0;}", ["-Wl,-soname,libnccl.so.2"]),
        (plugin, b"int ncclInit(void); int f(void){return ncclInit();}", [str(nccl), "-Wl,-rpath,$ORIGIN/../lib"]),
    ):
        words = ["gcc", "-x", "c", "-", "-shared", "-fPIC", "-s", "-o", path, "-x", "none", *flags]
        subprocess.run(words, input=code, check=True)
    assert found(made.root, made, recipe=made.recipe)["closure.collectives-unwanted"].severity == "error"
    wanted = made.recipe.targets["cpu"].model_copy(update={"nccl": True})
    recipe = made.recipe.model_copy(update={"targets": {"cpu": wanted}})
    assert not {name for name in found(made.root, made, recipe=recipe) if name.startswith("closure.collectives")}
    plugin.write_bytes((cpu_bundle.root / "bin/libggml-cpu.so").read_bytes())
    assert "closure.collectives-missing" in found(made.root, made, recipe=recipe)


def test_the_same_archive_is_judged_alike_as_folder_and_as_stream(cpu_bundle, tmp_path):
    """What is read from a folder and what is unpacked give the same facts."""
    staged = StagedBundle(cpu_bundle.root.name, cpu_bundle.root, 1_700_000_000)
    (archive,) = make_archives(staged, tmp_path, context=cpu_bundle.context, formats=["tar.zst"])
    folder = verify_path(cpu_bundle.root, context=cpu_bundle.context, options=STILL)
    opened = verify_path(archive.path, context=cpu_bundle.context, options=STILL)
    assert folder.facts == opened.facts
    assert json.dumps(opened.to_json())


def test_what_is_no_archive_is_a_usage_error(cpu_bundle, tmp_path):
    from llamabuild.core.errors import UsageError

    path = tmp_path / "x.tar.gz"
    path.write_bytes(io.BytesIO(b"hello").getvalue())
    with pytest.raises(UsageError, match="neither a folder nor"):
        verify_path(path, context=cpu_bundle.context)


STATIC = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int check(int argc) {{
    if (argc > 99) {{ fprintf(stderr, "%s:12: GGML_ASSERT failed", "{mark}"); abort(); }}
    return 0;
}}
int main(int argc, char ** argv) {{
    if (argc > 1 && !strcmp(argv[1], "--version")) puts("version: 0.5.0 (build 11146, commit 7fe450e19)");
    else puts("--version --help");
    return check(argc);
}}
"""


@pytest.mark.parametrize(
    ("mark", "flags", "missing"),
    [
        ("/ggml/src/ggml-cpu/ops.cpp", ("-s",), False),
        ("./ggml/src/ggml.c", ("-s",), True),
        ("./ggml/src/ggml.c", ("-Dcheck=ggml_backend_cpu_reg",), False),
    ],
    ids=["stripped", "without", "with symbols"],
)
def test_a_backend_that_is_linked_into_the_programs_needs_no_library(cpu_bundle, copy_of, mark, flags, missing):
    """BUILD_SHARED_LIBS=OFF: there is nothing but the programs."""
    made = copy_of(cpu_bundle)
    shutil.rmtree(made.root / "lib")
    (made.root / "bin/libggml-cpu.so").unlink()
    for name in ("llama-server", "llama-cli", "llama-bench"):
        path = made.root / "bin" / name
        path.unlink()
        words = ["gcc", "-x", "c", "-", "-fPIE", "-pie", "-o", str(path), "-Wl,-z,relro,-z,now", *flags]
        subprocess.run(words, input=STATIC.format(mark=mark), text=True, check=True)
    assert ("plugin.missing" in found(made.root, made, recipe=made.recipe)) is missing
