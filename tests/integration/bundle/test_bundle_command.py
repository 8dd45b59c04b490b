"""``bundle --build`` on a made-up ROCm tree, from end to end: planned, staged, verified, copied where it was asked."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import pytest

from llamabuild.bundle.pack import pack_bundle, split_members
from llamabuild.bundle.run import bundle_folder
from llamabuild.bundle.unpack import open_archive
from llamabuild.cli import main

from .hip import code, hip_library, offload_bundle
from .rocm_trees import RocmLayout, make_tree
from .test_rocm import ARCH, files, fill


@pytest.fixture(scope="session")
def hip_template(small_template, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    tree = make_tree(folder / "rocm", "amd")
    # Verification asks for the code too, not for the index alone.
    for path in tree.hipblaslt("").glob("TensileLibrary_lazy_*"):
        assert path.with_name(f"Kernels.so-000-{path.stem.rpartition('_')[2]}.hsaco").is_file()
    fill(folder / "build", small_template, tree)
    return folder


@pytest.fixture
def tree(hip_template, tmp_path) -> RocmLayout:
    shutil.copytree(hip_template / "rocm", tmp_path / "rocm", symlinks=True)
    return RocmLayout(tmp_path / "rocm", tmp_path / "rocm/lib", "rocblas/library")


@pytest.fixture
def bundle(hip_template, tree, tmp_path, monkeypatch, capsys):
    """Run the command; returns its exit code, the bundle's folder, the report and what it said."""
    monkeypatch.setenv("LLAMABUILD_HOME", str(tmp_path / "home"))

    def run(*words: str | Path, arch: str = ARCH, to: Path = tmp_path / "made"):
        given = ["bundle", "--build", hip_template / "build", "--rocm", tree.root, "--arch", arch, "--to", to, "--json"]
        code = main([str(word) for word in (*given, *words)])
        out, err = capsys.readouterr()
        return code, to, json.loads(out)["verification"] if out else None, err

    return run


@pytest.mark.parametrize("runtime", ["bundled", "split", "system"])
def test_each_runtime_is_verified(bundle, runtime):
    code, root, report, err = bundle("--runtime", runtime)
    assert code == 0, err
    there = [name for name in files(root) if "rocblas" in name]
    assert bool(there) is (runtime != "system")
    left = {each["file"]: each for each in report["findings"] if each["name"] == "closure.host-library"}
    assert bool(left) is (runtime == "system")
    if left:
        assert {each["severity"] for each in left.values()} == {"note"}
        assert "runtime kind" in left["bin/libggml-hip.so"]["message"]


def test_a_library_that_is_no_vendors_is_not_left_to_the_host(bundle, tmp_path):
    """Who leaves ROCm to the host leaves that, and nothing else."""
    code, root, _, _ = bundle("--runtime", "system")
    assert code == 0
    (root / "lib/libextra.so.2").unlink()
    assert main(["verify", str(root), "--json"]) == 1


def test_hipblaslt_is_held_against_its_own_tree(bundle, tree, tmp_path):
    """A hipBLASLt that was built without the arch is bundled with a note; one that lost its kernels is refused."""
    for path in tree.hipblaslt("").glob(f"*{ARCH}*"):
        path.unlink()
    code, root, report, err = bundle()
    assert code == 0, err
    assert json.loads((root / "BUILD_INFO.json").read_text())["runtime"]["source_archs"] == {
        "hipblaslt": ["gfx90a", "gfx1030"]
    }
    assert "tensile.hipblaslt-not-for-arch" in {each["name"] for each in report["findings"]}


def test_hipblaslt_that_lost_its_kernels(bundle, capsys):
    code, root, _, _ = bundle()
    assert code == 0
    (root / f"lib/hipblaslt/library/TensileLibrary_lazy_{ARCH}.dat").unlink()
    assert main(["verify", str(root), "--json"]) == 1
    found = {each["name"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert "tensile.hipblaslt-missing" in found


def test_the_copy_keeps_holes_and_hard_links(bundle, tree):
    """Thinning makes holes; TheRock's trees hold the same library under two names."""
    code, root, _, _ = bundle()
    assert code == 0
    thinned = (root / "bin/libggml-hip.so").stat()
    assert thinned.st_blocks * 512 < thinned.st_size - 60_000
    for path in (root, root / "bin"):
        assert path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("obstacle", ["folder", "file", "dangling link", "file above"])
def test_where_it_cannot_go_is_told_before_the_work(bundle, tmp_path, obstacle, monkeypatch):
    to = tmp_path / "there"
    if obstacle == "folder":
        to.mkdir()
    elif obstacle == "dangling link":
        to.symlink_to("nowhere")
    else:
        to.write_text("x")
    if obstacle == "file above":
        to /= "below"
    monkeypatch.setattr("llamabuild.bundle.run.bundle_folder", lambda *_, **__: pytest.fail("work was begun"))
    code, _, _, err = bundle(to=to)
    assert code == 2
    assert str(to) in err


def test_a_full_disk_is_one_sentence(bundle, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")

    monkeypatch.setattr("llamabuild.release.publish.copy_tree", full)
    code, root, _, err = bundle()
    assert code == 7
    assert "The disk is full" in err
    assert not list(tmp_path.glob(f"*{root.name}*"))


def test_each_part_carries_the_licences_of_what_it_holds(small_template, tmp_path, context):
    """A system library that only the vendor's need is in their archive; one that both have papers of is in both."""
    tree = make_tree(tmp_path / "root/usr", "debian")
    folder = tmp_path / "build"
    fill(folder, small_template, tree)
    # Debian's database says which package a file is of.
    listing = tmp_path / "root/var/lib/dpkg/info"
    listing.mkdir(parents=True)
    owned = {
        "libnuma1": "librocm_sysdeps_numa.so.1.0.1",
        "librocblas4": "librocblas.so.4.0.1",
        "libextra2": "libextra.so.2.1",
    }
    for package, name in owned.items():
        (listing / f"{package}:amd64.list").write_text(f"/usr/lib/x86_64-linux-gnu/{name}\n")
        paper = tmp_path / "root/usr/share/doc" / package / "copyright"
        paper.parent.mkdir(parents=True)
        paper.write_text(f"{package}: see /usr/share/common-licenses/GPL-3\n")
    (tmp_path / "root/usr/share/common-licenses").mkdir()
    (tmp_path / "root/usr/share/common-licenses/GPL-3").write_text("GPL\n")
    staged, plan = bundle_folder(folder, tmp_path / "out", arch=ARCH, rocm=tree.root, context=context, name="x")
    parts = split_members(plan)
    papers = {part: {name for name in names if name.startswith("licenses/")} for part, names in parts.items()}
    assert "lib/librocm_sysdeps_numa.so.1.0.1" in parts["rocm-runtime"]
    assert {"licenses/libnuma1/copyright", "licenses/librocblas4/copyright", "licenses/common/GPL-3"} <= papers[
        "rocm-runtime"
    ]
    assert papers["bin"] == {name for name in papers["bin"] if "llama.cpp" in name} | {
        "licenses/libextra2/copyright",
        "licenses/common/GPL-3",
    }
    made = pack_bundle(staged, plan, tmp_path / "dist", context=context, formats=("tar.zst",), split=True)
    roots = {open_archive(artifact.path, tmp_path / "both") for artifact in made}
    assert {files(root) == files(staged.root) for root in roots} == {True}


def compressed(*archs: str) -> bytes:
    """A bundle as ``--offload-compress`` makes it: version 2, zlib."""
    inner = offload_bundle({arch: code(at) for at, arch in enumerate(archs)})
    packed = zlib.compress(inner)
    return b"CCOB" + struct.pack("<HHIIQ", 2, 0, 24 + len(packed), len(inner), 0) + packed


@pytest.mark.parametrize(("archs", "told"), [((ARCH, "gfx1030"), True), ((ARCH,), False)])
def test_a_library_that_cannot_be_thinned_is_told(hip_template, tree, tmp_path, context, archs, told):
    build = tmp_path / "build"
    shutil.copytree(hip_template / "build", build, symlinks=True)
    needs = ("-Wl,--no-as-needed", str(tree.lib / "libhipblas.so.2"), f"-Wl,-rpath-link,{tree.lib}")
    hip_library(build / "bin/libggml-hip.so", compressed(*archs), flags=needs)
    staged, _ = bundle_folder(build, tmp_path / "out", arch=ARCH, rocm=tree.root, context=context)
    note = "libggml-hip.so keeps the device code of gfx1030: its device code is compressed"
    assert (note in json.loads((staged.root / "BUILD_INFO.json").read_text())["notes"]) is told
    assert (note in context.console.stream.getvalue()) is told
    assert ("device code is compressed" in (staged.root / "BUILD_INFO.txt").read_text()) is told
