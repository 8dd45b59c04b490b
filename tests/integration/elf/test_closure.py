"""The closure says what the loader does: each case is asked of glibc's own ld.so as well."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from llamabuild.elf.closure import Search, resolve_closure, system_folders
from llamabuild.elf.policy import LibraryPolicy
from llamabuild.elf.read import read_elf

from .conftest import dynamic_of

OLD, NEW = "-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"
INNER = "int inner(void) { return 1; }"
OUTER = "int inner(void); int outer(void) { return inner(); }"
MAIN = "int outer(void); int main(void) { return outer() - 1; }"


def asked_of_loader(program: Path) -> dict[str, str | None]:
    """Where ld.so takes each library from, None for those it does not find."""
    env = {"LD_TRACE_LOADED_OBJECTS": "1", "PATH": os.environ["PATH"]}
    output = subprocess.run([program], env=env, capture_output=True, text=True, check=False).stdout
    found: dict[str, str | None] = {}
    for line in output.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow:
            found[name] = None if rest.startswith("not found") else os.path.realpath(rest.split(" (")[0])
    return found


def build(gcc, *, program: list[str], outer: list[str], inner_at: str = "lib") -> Path:
    """bin/p needs lib/libouter.so.1, which needs <inner_at>/libinner.so.1."""
    root = gcc.folder / "tree"
    inner = gcc.shared("libinner.so.1", INNER, "-Wl,-soname,libinner.so.1", folder=root / inner_at)
    out = gcc.shared("libouter.so.1", OUTER, "-Wl,-soname,libouter.so.1", str(inner), *outer, folder=root / "lib")
    gcc.program(
        "p",
        MAIN,
        str(out),
        "-Wl,--allow-shlib-undefined",
        f"-Wl,-rpath-link,{inner.parent}",
        *program,
        folder=root / "bin",
    )
    return root


@pytest.mark.parametrize(
    ("program", "outer", "found"),
    [
        pytest.param([OLD, "-Wl,-rpath,$ORIGIN/../lib"], [], True, id="rpath reaches dependencies of dependencies"),
        pytest.param([NEW, "-Wl,-rpath,$ORIGIN/../lib"], [], False, id="runpath does not (ggml-org/llama.cpp#25807)"),
        pytest.param([NEW, "-Wl,-rpath,$ORIGIN/../lib"], [NEW, "-Wl,-rpath,$ORIGIN"], True, id="each its own runpath"),
        pytest.param([NEW, "-Wl,-rpath,$ORIGIN/../lib"], [OLD, "-Wl,-rpath,${ORIGIN}"], True, id="each its own rpath"),
        pytest.param(
            [OLD, "-Wl,-rpath,$ORIGIN/../lib"],
            [NEW, "-Wl,-rpath,/nowhere"],
            False,
            id="a runpath shuts inherited rpaths",
        ),
        pytest.param([OLD, "-Wl,-rpath,$ORIGIN/../lib"], [OLD, "-Wl,-rpath,/nowhere"], True, id="an rpath does not"),
    ],
)
def test_rules_of_the_loader(gcc, program, outer, found):
    root = build(gcc, program=program, outer=outer)
    closure = resolve_closure([root / "bin/p"], search=Search(inside=root, system_folders=system_folders()))
    origins = {edge.needed: edge.origin for edge in closure.edges}
    assert origins["libouter.so.1"] == "bundled"
    assert origins["libinner.so.1"] == ("bundled" if found else "missing")
    assert origins["libc.so.6"] == "system"
    loader = asked_of_loader(root / "bin/p")
    assert (loader["libinner.so.1"] is not None) is found
    if found:
        edge = next(edge for edge in closure.edges if edge.needed == "libinner.so.1")
        assert os.path.realpath(edge.target) == loader["libinner.so.1"]


def test_dollar_lib_is_the_multiarch_folder(gcc):
    if not shutil.which("dpkg"):
        pytest.skip("$LIB has this value on Debian's glibc")
    root = build(
        gcc, program=[OLD, "-Wl,-rpath,$ORIGIN/../$LIB:$ORIGIN/../lib"], outer=[], inner_at="lib/x86_64-linux-gnu"
    )
    if read_elf(root / "bin/p").machine != "EM_X86_64":
        pytest.skip("made for x86-64")
    closure = resolve_closure([root / "bin/p"], search=Search(inside=root, system_folders=system_folders()))
    edge = next(edge for edge in closure.edges if edge.needed == "libinner.so.1")
    assert os.path.realpath(edge.target) == asked_of_loader(root / "bin/p")["libinner.so.1"]


def test_what_is_loaded_already_is_not_searched_for(gcc):
    """The program finds libinner itself, so libouter, which looks nowhere, gets that one."""
    root = gcc.folder / "tree"
    inner = gcc.shared("libinner.so.1", INNER, "-Wl,-soname,libinner.so.1", folder=root / "lib")
    outer = gcc.shared("libouter.so.1", OUTER, "-Wl,-soname,libouter.so.1", str(inner), folder=root / "lib")
    gcc.program(
        "p",
        "int inner(void), outer(void); int main(void) { return outer() - inner(); }",
        str(inner),
        str(outer),
        NEW,
        "-Wl,-rpath,$ORIGIN/../lib",
        folder=root / "bin",
    )
    search = Search(inside=root, system_folders=system_folders())
    closure = resolve_closure([root / "bin/p"], search=search)
    edges = {(edge.source.name, edge.needed): edge for edge in closure.edges}
    assert edges["libouter.so.1", "libinner.so.1"].via == "loaded"
    assert asked_of_loader(root / "bin/p")["libinner.so.1"]
    # As a root of its own, the way a plugin is opened, it finds nothing.
    alone = resolve_closure([root / "lib/libouter.so.1"], search=search)
    assert [edge.needed for edge in alone.by_origin("missing")] == ["libinner.so.1"]


def test_relative_and_empty_entries_lead_nowhere(gcc):
    root = build(gcc, program=[OLD, "-Wl,-rpath,../lib:"], outer=[])
    closure = resolve_closure([root / "bin/p"], search=Search(inside=root, system_folders=()))
    assert [edge.needed for edge in closure.by_origin("missing")] == ["libouter.so.1"]


def test_a_file_for_another_machine_is_passed_over(gcc):
    root = build(gcc, program=[OLD, "-Wl,-rpath,$ORIGIN/../wrong:$ORIGIN/../lib"], outer=[])
    (root / "wrong").mkdir()
    data = bytearray((root / "lib/libinner.so.1").read_bytes())
    data[18:20] = (183).to_bytes(2, "little")  # e_machine: AArch64
    (root / "wrong/libinner.so.1").write_bytes(data)
    closure = resolve_closure([root / "bin/p"], search=Search(inside=root, system_folders=()))
    edge = next(edge for edge in closure.edges if edge.needed == "libinner.so.1")
    assert edge.target == root / "lib/libinner.so.1"
    assert asked_of_loader(root / "bin/p")["libinner.so.1"] == os.path.realpath(edge.target)


def test_a_damaged_dependency_is_missing_with_the_reason(gcc):
    root = build(gcc, program=[OLD, "-Wl,-rpath,$ORIGIN/../lib"], outer=[])
    (root / "lib/libinner.so.1").write_bytes(b"not an ELF file")
    closure = resolve_closure([root / "bin/p"], search=Search(inside=root))
    (edge,) = closure.by_origin("missing")
    assert "is not an ELF file" in edge.note


def test_a_link_that_leads_out_of_the_bundle_is_outside(gcc):
    root = build(gcc, program=[OLD, "-Wl,-rpath,$ORIGIN/../lib"], outer=[])
    (root / "lib/libinner.so.1").rename(gcc.folder / "libinner.so.1")
    (root / "lib/libinner.so.1").symlink_to(gcc.folder / "libinner.so.1")
    closure = resolve_closure([root / "bin/p"], search=Search(inside=root))
    assert [edge.needed for edge in closure.by_origin("outside")] == ["libinner.so.1"]


def test_libraries_opened_by_name_count(gcc):
    root = build(gcc, program=[OLD, "-Wl,-rpath,$ORIGIN/../lib"], outer=[])
    gcc.shared("libnamed.so.2", "int n(void) { return 3; }", "-Wl,-soname,libnamed.so.2", folder=root / "lib")
    search = Search(inside=root, opened_by_name={"libouter.so.1": ("libnamed.so.2",)})
    closure = resolve_closure([root / "bin/p"], search=search)
    assert ("libnamed.so.2", "bundled") in {(edge.needed, edge.origin) for edge in closure.edges}


def test_whose_a_library_is():
    plain, vulkan = LibraryPolicy(), LibraryPolicy(vulkan=True)
    assert {plain.classify(name) for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libGLX.so.0")} == {"driver"}
    assert {plain.classify(name) for name in ("libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6")} == {"system"}
    assert plain.classify("libgomp.so.1") is None
    assert vulkan.classify("libgomp.so.1") is None
    assert (plain.classify("libstdc++.so.6"), vulkan.classify("libstdc++.so.6")) == (None, "system")
    assert plain.classify("libcudart.so.13") is None


def test_folders_of_another_system(tmp_path):
    for folder in ("usr/lib/x86_64-linux-gnu", "opt/rocm/lib", "lib64", "etc/ld.so.conf.d"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (tmp_path / "etc/ld.so.conf.d/rocm.conf").write_text("# ROCm\n/opt/rocm/lib\n/gone\n")
    found = [path.relative_to(tmp_path).as_posix() for path in system_folders(tmp_path)]
    assert found == ["opt/rocm/lib", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib"]


@pytest.mark.parametrize(("machine", "wide"), [("EM_X86_64", True), ("EM_AARCH64", True), ("EM_386", False)])
def test_the_wide_folder(tmp_path, machine, wide):
    """Fedora and its kin keep the libraries of every machine of 64 bits in ``lib64``."""
    (tmp_path / "usr/lib64").mkdir(parents=True)
    assert system_folders(tmp_path, machine=machine) == ((tmp_path / "usr/lib64",) if wide else ())


def test_both_tags_are_one_runpath(gcc):
    """Where DT_RPATH stands beside DT_RUNPATH the loader ignores it, for dependencies of dependencies too."""
    lib = gcc.shared("libx.so", INNER, OLD, "-Wl,-rpath,$ORIGIN")
    assert "RPATH" in dynamic_of(lib)
    assert "RUNPATH" not in dynamic_of(lib)
