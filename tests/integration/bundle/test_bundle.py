"""From a build to a moved archive that runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llamabuild.build.model import BuiltFile
from llamabuild.bundle.archive import make_archives, write_sums
from llamabuild.bundle.manifest import write_build_info
from llamabuild.bundle.plan import plan_bundle
from llamabuild.bundle.run import bundle_folder
from llamabuild.bundle.stage import stage
from llamabuild.bundle.unpack import open_archive
from llamabuild.core.errors import BundleError
from llamabuild.elf.closure import Search, elf_roots, resolve_closure

from .conftest import compile_c

if TYPE_CHECKING:
    from llamabuild.bundle.model import StagedBundle

DATE = 1_758_600_000
NAME = "llama-small-cpu"


def make(build, folder: Path, context, **options) -> StagedBundle:
    plan = plan_bundle(build.tree, name=NAME, context=context, root=build.system)
    strip = Path(shutil.which("strip"))
    staged = stage(plan, folder, date=DATE, context=context, strip_tool=strip, **options)
    write_build_info(staged, build=build.tree, plan=plan)
    return staged


def names(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_symlink() or path.is_file()}


def test_layout(small_build, tmp_path, context):
    staged = make(small_build, tmp_path / "stage", context)
    assert names(staged.root) == {
        "bin/llama-small",
        "bin/libggml-cpu.so",
        "lib/libggml-base.so",
        "lib/libggml-base.so.0",
        "lib/libggml-base.so.0.1",
        "lib/libtool.so",
        "lib/libextra.so.2",
        "lib/libextra.so.2.1",
        "licenses/llama.cpp/LICENSE",
        "licenses/llama.cpp/LICENSE-jsonhpp",
        "licenses/libextra2/copyright",
        "licenses/common/GPL-3",
        "BUILD_INFO.json",
        "BUILD_INFO.txt",
    }
    assert (staged.root / "lib/libggml-base.so").readlink() == Path("libggml-base.so.0")
    assert not list(staged.root.parent.glob(".*"))


def test_every_file_finds_its_own(small_build, tmp_path, context):
    """ggml-org/llama.cpp#25807: an rpath on the program alone is not enough; every ELF resolves as a root."""
    staged = make(small_build, tmp_path / "stage", context)
    closure = resolve_closure(elf_roots(staged.root), search=Search(inside=staged.root, system_folders=()))
    assert {edge.origin for edge in closure.edges} == {"bundled", "system"}
    for path in elf_roots(staged.root):
        printed = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
        lines = [line for line in printed.splitlines() if "(RPATH)" in line or "(RUNPATH)" in line]
        if path.name == "libextra.so.2.1":
            assert lines == []  # It needs nothing of the bundle, so not a byte of it is touched.
            continue
        (line,) = lines
        assert "(RPATH)" in line
        assert line.endswith("[$ORIGIN/../lib]" if path.parent.name == "bin" else "[$ORIGIN]")
        assert str(tmp_path) not in printed


def test_runpath_when_the_recipe_says_so(small_build, tmp_path, context):
    tree = replace(small_build.tree, target=replace(small_build.tree.target, rpath="runpath"))
    staged = make(replace(small_build, tree=tree), tmp_path / "stage", context)
    printed = subprocess.run(
        ["readelf", "-dW", staged.root / "bin/llama-small"], capture_output=True, text=True, check=True
    ).stdout
    assert "(RUNPATH)" in printed
    assert "(RPATH)" not in printed


@pytest.mark.parametrize("form", ["tar.gz", "tar.zst"])
def test_a_moved_archive_runs(small_build, tmp_path, context, form):
    staged = make(small_build, tmp_path / "stage", context)
    (artifact,) = make_archives(staged, tmp_path / "dist", context=context, formats=(form,))
    shutil.rmtree(staged.root)
    shutil.rmtree(small_build.tree.source)
    root = open_archive(artifact.path, tmp_path / "elsewhere")
    done = subprocess.run([root / "bin/llama-small"], env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "tool 7 plugin 42\n")
    # GNU tar is what users have.
    (tmp_path / "gnu").mkdir()
    subprocess.run(["tar", "-xf", artifact.path, "-C", tmp_path / "gnu"], check=True)
    assert names(tmp_path / "gnu" / NAME) == names(root)
    assert subprocess.run([tmp_path / "gnu" / NAME / "bin/llama-small"], env={}, check=False).returncode == 0


def test_archives_are_the_same_bit_for_bit(small_build, tmp_path, context, monkeypatch):
    """Staged anew at another path, under another umask, with other times, on another number of cores."""
    first = make(small_build, tmp_path / "one", context)
    made = make_archives(first, tmp_path / "dist1", context=context)
    old = os.umask(0o077)
    try:
        second = make(small_build, tmp_path / "quite/another/place", context)
    finally:
        os.umask(old)
    for path in second.root.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    monkeypatch.setattr("llamabuild.bundle.compress.threads", lambda: 5)
    again = make_archives(second, tmp_path / "dist2", context=context)
    assert [artifact.sha256 for artifact in made] == [artifact.sha256 for artifact in again]


def test_what_an_archive_says_of_its_members(small_build, tmp_path, context):
    staged = make(small_build, tmp_path / "stage", context)
    (artifact,) = make_archives(staged, tmp_path / "dist", context=context, formats=("tar.gz",))
    with tarfile.open(artifact.path) as tar:
        members = tar.getmembers()
    listed = [member.name for member in members]
    assert listed == sorted(listed, key=lambda name: name.split("/"))
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}
    assert {member.mtime for member in members} == {DATE}
    assert {member.mode for member in members if member.isfile()} == {0o644, 0o755}
    assert all(not member.pax_headers for member in members)
    with artifact.path.open("rb") as handle:
        assert handle.read(10) == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # no name, no time


def test_sums(small_build, tmp_path, context):
    staged = make(small_build, tmp_path / "stage", context)
    make_archives(staged, tmp_path / "dist", context=context)
    write_sums(tmp_path / "dist")
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "dist", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.count(": OK") == 2


def test_sums_list_what_was_published_and_nothing_else(tmp_path):
    """A model that lies in the same folder is no part of a release; what another run published there is."""
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "one.tar.zst").write_bytes(b"1")
    write_sums(tmp_path, published=["one.tar.zst"], beside=tmp_path)
    (tmp_path / "two.tar.zst").write_bytes(b"2")
    (tmp_path / "BUILD_INFO.json").write_bytes(b"{}")
    write_sums(tmp_path, published=["two.tar.zst", "BUILD_INFO.json"], beside=tmp_path)
    names = [line.split()[1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()]
    assert names == ["BUILD_INFO.json", "one.tar.zst", "two.tar.zst"]
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)
    (tmp_path / "one.tar.zst").unlink()
    (tmp_path / "two.tar.zst").write_bytes(b"2 made anew")
    write_sums(tmp_path, published=["two.tar.zst"], beside=tmp_path)
    names = [line.split()[1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()]
    assert names == ["BUILD_INFO.json", "two.tar.zst"]
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)


def test_build_info(small_build, tmp_path, context):
    staged = make(small_build, tmp_path / "stage", context)
    text = (staged.root / "BUILD_INFO.json").read_text()
    document = json.loads(text)
    assert str(tmp_path) not in text
    assert str(tmp_path) not in (staged.root / "BUILD_INFO.txt").read_text()
    assert document["schema"] == 1
    assert document["build_number"] == 11146
    assert document["build_date"] == "2025-09-23T04:00:00Z"
    assert {entry["name"]: entry["value"] for entry in document["cmake_config"]} == {
        "CMAKE_MAKE_PROGRAM": "ninja",
        "GGML_NATIVE": "OFF",
        "Vulkan_LIBRARY": "/usr/lib/libvulkan.so",
        "CMAKE_C_FLAGS": "-ffile-prefix-map=<source>=.",
    }
    files = {entry["path"]: entry for entry in document["files"]}
    assert files.keys() == names(staged.root) - {"BUILD_INFO.json", "BUILD_INFO.txt"}
    for name, entry in files.items():
        if "sha256" in entry:
            printed = subprocess.run(["sha256sum", staged.root / name], capture_output=True, text=True, check=True)
            assert printed.stdout.split()[0] == entry["sha256"]
    assert files["lib/libextra.so.2.1"]["origin"] == "libextra2"
    assert "changes" not in files["lib/libextra.so.2.1"]
    assert files["bin/llama-small"]["changes"] == {"rpath": "in-place", "stripped": True}


def test_a_needed_library_that_no_list_knows(small_build, tmp_path, context):
    """lemonade-sdk/llamacpp-rocm#146: the closure brings it, and what it needs itself."""
    libraries = small_build.system / "usr/lib/x86_64-linux-gnu"
    deep = compile_c(libraries / "libdeep.so.1", "int deep(void) { return 1; }", "-shared", "-Wl,-soname,libdeep.so.1")
    compile_c(
        libraries / "libextra.so.2.1",
        "int deep(void); int extra(void) { return 39 + deep(); }",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libextra.so.2",
        deep,
    )
    staged = make(small_build, tmp_path / "stage", context)
    assert (staged.root / "lib/libdeep.so.1").is_file()
    done = subprocess.run([staged.root / "bin/llama-small"], env={}, capture_output=True, text=True, check=False)
    assert done.stdout == "tool 7 plugin 42\n"


def test_missing_libraries_are_named(small_build, context):
    (small_build.system / "usr/lib/x86_64-linux-gnu/libextra.so.2").unlink()
    with pytest.raises(BundleError, match=r"libextra\.so\.2, needed by libggml-cpu\.so"):
        plan_bundle(small_build.tree, name=NAME, context=context, root=small_build.system)


def test_a_missing_library_is_told_in_one_sentence(small_build, context):
    library = small_build.system / "usr/lib/x86_64-linux-gnu/libextra.so.2.1"
    library.write_text("no library")
    with pytest.raises(BundleError) as caught:
        plan_bundle(small_build.tree, name=NAME, context=context, root=small_build.system)
    where = library.with_name("libextra.so.2")
    expected = f"A library was not found: libextra.so.2, needed by libggml-cpu.so ({where} is not an ELF file)."
    assert caught.value.message == expected


def test_a_source_that_went_away_before_staging(small_build, tmp_path, context):
    plan = plan_bundle(small_build.tree, name=NAME, context=context, root=small_build.system)
    (small_build.tree.source / "LICENSE").unlink()
    with pytest.raises(BundleError, match=r"LICENSE: No such file"):
        stage(plan, tmp_path / "stage", date=DATE, context=context, strip_tool=None)


def test_a_link_that_leads_nowhere(small_build, context):
    """ollama/ollama#7817: ``libhipblas.so -> libhipblas.so.2`` whose target was not copied."""
    (small_build.system / "usr/lib/x86_64-linux-gnu/libextra.so.2.1").unlink()
    with pytest.raises(BundleError, match=r"libextra\.so\.2"):
        plan_bundle(small_build.tree, name=NAME, context=context, root=small_build.system)


def test_a_chain_of_links_is_copied_whole(small_build, tmp_path, context):
    libraries = small_build.system / "usr/lib/x86_64-linux-gnu"
    (libraries / "libextra.so.2").unlink()
    (libraries / "private").mkdir()
    (libraries / "libextra.so.2").symlink_to("libextra.so.2.0")
    (libraries / "libextra.so.2.0").symlink_to("private/libextra.so.2.1")
    (libraries / "libextra.so.2.1").rename(libraries / "private/libextra.so.2.1")
    staged = make(small_build, tmp_path / "stage", context)
    links = {
        path.name: path.readlink().as_posix() for path in (staged.root / "lib").glob("libextra*") if path.is_symlink()
    }
    assert links == {"libextra.so.2": "libextra.so.2.0", "libextra.so.2.0": "libextra.so.2.1"}
    assert (staged.root / "lib/libextra.so.2").is_file()


def test_links_through_other_folders(small_build, tmp_path, context):
    """Debian's alternatives: out to another folder, through links there, and to a file of the first name."""
    libraries = small_build.system / "usr/lib/x86_64-linux-gnu"
    for folder in ("alternatives", "real/private"):
        (libraries / folder).mkdir(parents=True)
    (libraries / "libextra.so.2").unlink()
    (libraries / "libextra.so.2.1").rename(libraries / "real/private/libextra.so.2")
    (libraries / "linked").symlink_to("real/private")
    (libraries / "libextra.so.2").symlink_to("alternatives/one")
    (libraries / "alternatives/one").symlink_to("two")
    # The loader takes the ".." of the folder that "linked" leads to.
    (libraries / "alternatives/two").symlink_to("../linked/../private/libextra.so.2")
    staged = make(small_build, tmp_path / "stage", context)
    assert {name for name in names(staged.root) if "two" in name or "one" in name or "extra" in name} == {
        "lib/libextra.so.2",
        "licenses/libextra2/copyright",
    }
    assert not (staged.root / "lib/libextra.so.2").is_symlink()
    libraries = small_build.tree.folder / "bin"
    (libraries / "away").symlink_to("away")
    (libraries / "libggml-base.so").unlink()
    (libraries / "libggml-base.so").symlink_to("other/libggml-base.so.0.1x")
    (libraries / "other").mkdir()
    (libraries / "other/libggml-base.so.0.1x").symlink_to("../libggml-base.so.0.1")
    staged = make(small_build, tmp_path / "stage", context)
    assert (staged.root / "lib/libggml-base.so").readlink() == Path("libggml-base.so.0.1")


def test_programs_of_a_foreign_build(small_build, tmp_path, context):
    """One program for all tools, links to it from beside it and from elsewhere, and the RPC server's two names."""
    folder = small_build.tree.folder
    bins = folder / "bin"
    (bins / "llama-small").rename(bins / "llama")
    (bins / "llama-server").symlink_to("llama")
    (folder / "app").mkdir()
    for name in ("rpc-server", "ggml-rpc-server", "test-nothing"):
        shutil.copy2(bins / "llama", bins / name)
    shutil.copy2(bins / "llama", folder / "app/multi")
    (bins / "llama-cli").symlink_to("../app/multi")
    (bins / "llama-gone").symlink_to("../app/gone")
    (bins / "llama-round").symlink_to("llama-round")
    (folder / "llama-bench").symlink_to("bin/llama")
    for extra in (small_build.system / "usr/lib/x86_64-linux-gnu").iterdir():
        shutil.copy2(extra, bins / extra.name, follow_symlinks=False)
    staged, _ = bundle_folder(folder, tmp_path / "out", arch="", context=context)
    made = staged.root / "bin"
    programs = {"llama", "llama-server", "rpc-server", "ggml-rpc-server", "llama-cli", "llama-bench"}
    assert {path.name for path in made.iterdir()} == programs | {"libggml-cpu.so"}
    assert (made / "llama-server").readlink() == Path("llama")
    assert not (made / "llama-cli").is_symlink()
    shutil.rmtree(folder)
    for name in sorted(programs):
        done = subprocess.run([made / name], env={}, capture_output=True, text=True, check=False)
        assert done.stdout == "tool 7 plugin 42\n", name


def test_the_systems_folders_are_the_builds_machines(small_build, context):
    """A build for aarch64 finds its libraries in that machine's folders, beside those of this one."""
    libraries = small_build.system / "usr/lib"
    shutil.copytree(libraries / "x86_64-linux-gnu", libraries / "aarch64-linux-gnu", symlinks=True)
    for folder in (small_build.tree.folder / "bin", libraries / "aarch64-linux-gnu"):
        for path in folder.iterdir():
            if not path.is_symlink():
                data = bytearray(path.read_bytes())
                data[18:20] = (183).to_bytes(2, "little")  # e_machine: EM_AARCH64
                path.write_bytes(data)
    plan = plan_bundle(small_build.tree, name=NAME, context=context, root=small_build.system)
    (extra,) = [entry for entry in plan.entries if entry.destination == "lib/libextra.so.2.1"]
    assert extra.source == libraries / "aarch64-linux-gnu/libextra.so.2.1"


def test_two_files_for_one_place(small_build, tmp_path, context):
    other = compile_c(
        tmp_path / "other/libtool.so", "int tool(void) { return 0; }", "-shared", "-Wl,-soname,libtool.so"
    )
    build = small_build.with_files(BuiltFile("tool2", "shared", other, plugin=False))
    with pytest.raises(
        BundleError, match=r"Two different files want to be lib/libtool\.so: .*bin/libtool.* and .*other"
    ):
        plan_bundle(build.tree, name=NAME, context=context, root=build.system)


def test_two_copies_of_one_library(small_build, tmp_path, context):
    """Found under two paths, bundled once: whoever was led to the other copy has to find it as well."""
    place = ("-shared", "-fPIC", "-Wl,-soname,libcopy.so.1")
    one = tmp_path / "one"
    deep = compile_c(one / "libdeep.so.1", "int deep(void) { return 1; }", "-shared", "-Wl,-soname,libdeep.so.1")
    source = "int deep(void); int c(void) { return deep(); }"
    compile_c(one / "libcopy.so.1", source, *place, deep, "-Wl,-rpath,$ORIGIN")
    shutil.copytree(one, tmp_path / "two")
    bins = small_build.tree.folder / "bin"
    build = small_build
    for folder in ("one", "two"):
        # Two libraries of the system, each with a copy of its own: one process meets each.
        user = compile_c(
            small_build.system / f"usr/lib/x86_64-linux-gnu/lib{folder}.so.1",
            f"int c(void); int {folder}(void) {{ return c(); }}",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,lib{folder}.so.1,--enable-new-dtags,-rpath,{tmp_path / folder}",
            tmp_path / folder / "libcopy.so.1",
        )
        extra = compile_c(
            bins / f"libggml-{folder}.so", f"int {folder}(void); int score(void) {{ return {folder}(); }}", "-shared",
            "-fPIC", user, f"-Wl,-rpath-link,{tmp_path / folder}",
        )  # fmt: skip
        build = build.with_files(BuiltFile(f"ggml-{folder}", "module", extra, plugin=True))
    staged = make(build, tmp_path / "stage", context)
    closure = resolve_closure(elf_roots(staged.root), search=Search(inside=staged.root))
    assert not closure.by_origin("missing")


def test_hard_links_stay_hard_links(small_build, tmp_path, context):
    out = small_build.tree.folder / "bin"
    (out / "llama-twin").hardlink_to(out / "llama-small")
    build = small_build.with_files(BuiltFile("twin", "executable", out / "llama-twin", plugin=False))
    staged = make(build, tmp_path / "stage", context)
    assert (staged.root / "bin/llama-twin").samefile(staged.root / "bin/llama-small")
    (artifact,) = make_archives(staged, tmp_path / "dist", context=context, formats=("tar.gz",))
    root = open_archive(artifact.path, tmp_path / "u")
    assert (root / "bin/llama-twin").samefile(root / "bin/llama-small")


def test_a_full_disk_leaves_nothing(small_build, tmp_path, context, monkeypatch):
    staged = make(small_build, tmp_path / "stage", context)
    from llamabuild.bundle import archive

    class Full:
        """A file whose disk is full after the first bytes, as the kernel reports it on /dev/full."""

        def __init__(self, handle):
            self.size = 0

        def write(self, data):
            with Path("/dev/full").open("wb", buffering=0) as full:
                return full.write(data)

    monkeypatch.setattr(archive, "_Hashed", Full)
    with pytest.raises(BundleError, match="The disk is full"):
        make_archives(staged, tmp_path / "dist", context=context)
    assert list((tmp_path / "dist").iterdir()) == []


def test_openmp_is_bundled(small_build, tmp_path, context):
    """lemonade-sdk/lemonade#2793: a bare distribution has no libgomp; it is taken from this machine, licence too."""
    source = (
        "#include <omp.h>\nint base(void), extra(void);"
        "int score(void) { return base() + extra() + (omp_get_max_threads() > 0); }"
    )
    out = small_build.tree.folder / "bin"
    needs = [out / "libggml-base.so.0.1", small_build.system / "usr/lib/x86_64-linux-gnu/libextra.so.2.1"]
    compile_c(out / "libggml-cpu.so", source, "-shared", "-fPIC", "-fopenmp", *needs)
    tree = replace(small_build.tree, runtime_folders=(small_build.system / "usr/lib/x86_64-linux-gnu",))
    plan = plan_bundle(tree, name=NAME, context=context)
    staged = stage(plan, tmp_path / "stage", date=DATE, context=context, strip_tool=None)
    assert (staged.root / "lib/libgomp.so.1").is_file()
    closure = resolve_closure([staged.root / "bin/libggml-cpu.so"], search=Search(inside=staged.root))
    assert ("libgomp.so.1", "bundled") in {(edge.needed, edge.origin) for edge in closure.edges}
    if Path("/var/lib/dpkg/info").is_dir():
        assert [entry for entry in plan.entries if entry.destination.startswith("licenses/libgomp1/")]


def test_a_disk_that_is_full_while_staging(small_build, tmp_path, context):
    """A real one: a file system of one megabyte, where this machine lets us have it."""
    if os.geteuid():
        pytest.skip("mounting a small file system needs to be root")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", small], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(BundleError, match="The disk is full"):
            make(small_build, small / "stage", context)
        assert list((small / "stage").iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_an_interrupted_stage_leaves_nothing(small_build, tmp_path, context, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("llamabuild.bundle.stage.apply_edit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make(small_build, tmp_path / "stage", context)
    assert list((tmp_path / "stage").iterdir()) == []


def test_a_build_without_its_license_is_noted(small_build, context):
    (small_build.tree.source / "LICENSE").unlink()
    plan = plan_bundle(small_build.tree, name=NAME, context=context, root=small_build.system)
    assert "the source tree has no LICENSE file" in plan.notes


def test_a_split_archive(small_build, tmp_path, context):
    staged = make(small_build, tmp_path / "stage", context)
    parts = {"bin": ["bin/llama-small"], "rest": ["lib/libtool.so", "BUILD_INFO.txt"]}
    for part, members in parts.items():
        make_archives(
            staged, tmp_path / "dist", context=context, formats=("tar.zst",), name=f"{NAME}-{part}", members=members
        )
    for part in parts:
        open_archive(tmp_path / f"dist/{NAME}-{part}.tar.zst", tmp_path / "u")
    assert names(tmp_path / "u" / NAME) == {"bin/llama-small", "lib/libtool.so", "BUILD_INFO.txt"}
