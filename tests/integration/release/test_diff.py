"""diff-builds on real ELF files, held against what objcopy extracts."""

import random
import shutil
import subprocess

import pytest

from llamabuild.release.diff import diff_trees

SOURCE = """
#include <stdio.h>
const char place[] = PLACE;
int counter = NUMBER;
int main(void) { printf("%s %d\\n", place, counter); return 0; }
"""


def _build(folder, *defines, extra=()):
    folder.mkdir()
    (folder / "a.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "a.c", "-o", "prog", "-Wl,--build-id=none", *defines, *extra], cwd=folder, check=True)
    (folder / "a.c").unlink()
    return folder


def _differing_sections(a, b, tmp_path):
    """What objcopy says: the sections whose bytes are not the same."""
    listed = subprocess.run(["objdump", "-h", a], capture_output=True, text=True, check=True).stdout
    names = [line.split()[1] for line in listed.splitlines() if line.strip()[:1].isdigit()]
    differing = set()
    for name in names:
        dumps = []
        for which in (a, b):
            out = tmp_path / "dump"
            out.unlink(missing_ok=True)
            subprocess.run(
                ["objcopy", "--dump-section", f"{name}={out}", which, "/dev/null"], capture_output=True, check=False
            )
            dumps.append(out.read_bytes() if out.exists() else b"")
        if dumps[0] != dumps[1]:
            differing.add(name)
    return differing


def test_the_same_build_at_two_places_has_no_difference(tmp_path):
    define = ('-DPLACE="here"', "-DNUMBER=1")
    assert diff_trees(_build(tmp_path / "a", *define), _build(tmp_path / "b", *define)) == ()


def test_a_build_path_is_told_with_its_section_and_text(tmp_path):
    a = _build(tmp_path / "a", '-DPLACE="/home/one/x"', "-DNUMBER=1")
    b = _build(tmp_path / "b", '-DPLACE="/home/two/x"', "-DNUMBER=2")
    found = diff_trees(a, b)
    assert {each.where.partition("+")[0] for each in found} == _differing_sections(a / "prog", b / "prog", tmp_path)
    rodata = next(each for each in found if each.where.startswith(".rodata"))
    assert (rodata.file, rodata.what) == ("prog", "section")
    assert (rodata.a, rodata.b) == ("'/home/one/x'", "'/home/two/x'")


def test_a_section_that_only_one_has(tmp_path):
    a = _build(tmp_path / "a", '-DPLACE="x"', "-DNUMBER=1", extra=("-g",))
    b = _build(tmp_path / "b", '-DPLACE="x"', "-DNUMBER=1")
    only = {each.where for each in diff_trees(a, b) if each.what == "only-in-a"}
    assert ".debug_info" in only


def test_a_byte_outside_every_section(tmp_path):
    a = _build(tmp_path / "a", '-DPLACE="x"', "-DNUMBER=1")
    shutil.copytree(a, tmp_path / "b")
    data = bytearray((a / "prog").read_bytes())
    data[0x30] ^= 1  # e_flags
    (tmp_path / "b/prog").write_bytes(data)
    (found,) = diff_trees(a, tmp_path / "b")
    assert (found.file, found.what, found.where) == ("prog", "header", "offset 0x30")


def test_kinds_modes_links_text_and_missing_files(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        (folder / "sub").mkdir(parents=True)
        (folder / "notes.txt").write_text("one\ntwo\nthree\n")
        (folder / "mode").write_text("x")
        (folder / "link").symlink_to("notes.txt")
    (b / "notes.txt").write_text("one\n2\nthree\n")
    (b / "mode").chmod(0o755)
    (b / "link").unlink()
    (b / "link").symlink_to("mode")
    (a / "only").write_text("x")
    (b / "sub").rmdir()
    (b / "sub").write_text("x")
    found = {(each.file, each.what, each.where, each.a, each.b) for each in diff_trees(a, b)}
    assert found == {
        ("notes.txt", "line", "line 2", "two", "2"),
        ("mode", "mode", "", f"{(a / 'mode').stat().st_mode & 0o777:o}", "755"),
        ("link", "link", "", "notes.txt", "mode"),
        ("only", "only-in-a", "", "file", ""),
        ("sub", "kind", "", "folder", "file"),
    }


@pytest.mark.parametrize("place", [0, 1, (1 << 20) - 1, 1 << 20, 3 << 20])
def test_the_first_differing_byte_of_a_big_binary_file(tmp_path, place):
    data = bytearray(random.Random(1).randbytes((3 << 20) + 1))
    data[:16] = bytes(16)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/blob").write_bytes(data)
    data[place] ^= 0x80
    (tmp_path / "b/blob").write_bytes(data)
    (found,) = diff_trees(tmp_path / "a", tmp_path / "b")
    assert (found.what, found.where) == ("bytes", f"offset {place:#x}")


def test_a_file_that_goes_on(tmp_path):
    for name, data in (("a", b"\0same"), ("b", b"\0same and more")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "blob").write_bytes(data)
    (found,) = diff_trees(tmp_path / "a", tmp_path / "b")
    assert (found.where, found.a) == ("offset 0x5", "ends after 5 bytes")
