"""An rpath edit changes the rpath and nothing else; readelf and the loader are the judges."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llamabuild.core.errors import BundleError, LlamabuildError
from llamabuild.elf import edit as edit_module
from llamabuild.elf.edit import ElfEdit, apply_edit, apply_edits
from llamabuild.elf.read import read_elf, read_symbols
from llamabuild.elf.snapshot import changes, take_snapshot

from .conftest import dynamic_of

OLD, NEW = "-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"
WANTED = "$ORIGIN:$ORIGIN/../lib"
LONG = "/somewhere/a/long/build/folder/that/leaves/room"
ENV = dict(os.environ)


def edited(path: Path, rpath: str | None = WANTED, *, tag="rpath", strip: bool = False):
    return apply_edit(ElfEdit(path, rpath, tag=tag, strip=strip), strip_tool=Path(shutil.which("strip")), env=ENV)


def contents(path: Path) -> dict[tuple[str, int], bytes]:
    """Every mapped section's bytes but those an rpath is written in, by objcopy's view of the file."""
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as handle:
        return {
            (section.name, section["sh_addr"]): section.data()
            for section in ELFFile(handle).iter_sections()
            if section["sh_flags"] & 2 and section.name not in {".dynamic", ".dynstr"}
        }


@pytest.mark.parametrize("tag", ["rpath", "runpath"])
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param([], id="no tag"),
        pytest.param([OLD, f"-Wl,-rpath,{LONG}"], id="rpath"),
        pytest.param([NEW, f"-Wl,-rpath,{LONG}"], id="runpath"),
        pytest.param([NEW, "-Wl,-rpath,/s"], id="short runpath"),
        pytest.param([NEW, f"-Wl,-rpath,{LONG}", "-Wl,-z,max-page-size=0x200000"], id="big alignment"),
        pytest.param(["-Wl,-z,max-page-size=0x200000"], id="no tag, big alignment"),
        pytest.param(["-Wl,-z,noseparate-code"], id="one segment for headers and code"),
        pytest.param(["-Wl,--hash-style=sysv"], id="sysv hash"),
    ],
)
def test_variants(gcc, loads, flags, tag):
    source = '#include <stdio.h>\nint f(void) { return puts("hello"); } int answer = 42;'
    lib = gcc.shared("libx.so", source, "-Wl,-soname,libx.so.1", *flags)
    before, old = take_snapshot(lib), contents(lib)
    outcome = edited(lib, tag=tag)
    assert outcome.method == "in-place"
    found = dynamic_of(lib)
    assert found.get(tag.upper()) == [WANTED]
    assert ("RUNPATH" if tag == "rpath" else "RPATH") not in found
    assert contents(lib) == old
    assert read_symbols(lib) == before.symbols
    assert subprocess.run([loads, lib], check=False).returncode == 0
    assert LONG.encode() not in lib.read_bytes()
    assert edited(lib, tag=tag).method == "unchanged"


def test_both_tags_become_one(gcc, loads):
    lib = gcc.shared("libx.so", "int f(void) { return 1; }", NEW, f"-Wl,-rpath,{LONG}")
    import lief

    binary = lief.ELF.parse(str(lib))
    binary.add(lief.ELF.DynamicEntryRpath("/the/other/one"))
    binary.write(str(lib))
    assert {"RPATH", "RUNPATH"} <= dynamic_of(lib).keys()
    edited(lib)
    assert dynamic_of(lib)["RPATH"] == [WANTED]
    assert "RUNPATH" not in dynamic_of(lib)
    assert subprocess.run([loads, lib], check=False).returncode == 0


def test_no_rpath_at_all(gcc, loads):
    lib = gcc.shared("libx.so", "int f(void) { return 1; }", NEW, f"-Wl,-rpath,{LONG}")
    assert edited(lib, None).method == "in-place"
    assert not {"RPATH", "RUNPATH"} & dynamic_of(lib).keys()
    assert subprocess.run([loads, lib], check=False).returncode == 0


def test_no_room_is_a_rewrite(gcc, loads):
    """No spare slot in the dynamic section: LIEF has to make one."""
    lib = gcc.shared(
        "libx.so", "int f(void) { return 1; }", "-Wl,-z,nodynamic-undefined-weak", "-Wl,--spare-dynamic-tags=0"
    )
    before = take_snapshot(lib)
    assert edited(lib).method == "rewritten"
    assert dynamic_of(lib)["RPATH"] == [WANTED]
    assert not changes(before, take_snapshot(lib))
    assert subprocess.run([loads, lib], check=False).returncode == 0


def test_a_string_that_others_share_is_left(gcc, loads):
    """The linker lets a symbol's name be the tail of the rpath; overwriting it would rename the symbol."""
    lib = gcc.shared(
        "libx.so", "int shared_tail_of_the_rpath(void) { return 1; }", NEW, "-Wl,-rpath,/x/shared_tail_of_the_rpath"
    )
    edited(lib, "$ORIGIN")
    assert [symbol.name for symbol in read_symbols(lib) if symbol.defined] == ["shared_tail_of_the_rpath"]
    assert dynamic_of(lib)["RPATH"] == ["$ORIGIN"]
    assert subprocess.run([loads, lib], check=False).returncode == 0


def test_stripped_before_the_rpath_is_written(gcc, loads):
    """NixOS/patchelf#145: the other order makes a file that the loader refuses."""
    lib = gcc.shared("libx.so", "int f(void) { return 1; }")
    outcome = edited(lib, strip=True)
    assert outcome.stripped
    assert read_elf(lib).debug_sections == ()
    assert dynamic_of(lib)["RPATH"] == [WANTED]
    assert subprocess.run([loads, lib], check=False).returncode == 0
    # Whoever strips once more keeps the rpath too.
    subprocess.run(["strip", lib], check=True, capture_output=True)
    assert dynamic_of(lib)["RPATH"] == [WANTED]
    assert subprocess.run([loads, lib], check=False).returncode == 0


@pytest.mark.parametrize("strip", [False, True])
def test_hard_links_and_modes_survive(gcc, strip):
    lib = gcc.shared("libx.so.1", "int f(void) { return 1; }")
    other = lib.with_name("libx.so")
    other.hardlink_to(lib)
    lib.chmod(0o750)
    inode = lib.stat().st_ino
    edits = [ElfEdit(lib, WANTED, strip=strip), ElfEdit(other, WANTED, strip=strip)]
    outcomes = apply_edits(edits, strip_tool=Path(shutil.which("strip")), env=ENV)
    assert {outcome.method for outcome in outcomes} == {"in-place"}
    assert (lib.stat().st_ino, other.stat().st_ino) == (inode, inode)
    assert lib.stat().st_mode & 0o7777 == 0o750
    with pytest.raises(BundleError, match="one file with two names"):
        apply_edits([ElfEdit(lib, WANTED), ElfEdit(other, "$ORIGIN")], strip_tool=None, env=ENV)


def test_a_writer_that_damages_is_caught(gcc, monkeypatch):
    """lief-project/LIEF#970: a write that corrupts symbol versions. The file keeps its bytes."""
    lib = gcc.shared("libx.so", '#include <stdio.h>\nint f(void) { return puts("x"); }', "-Wl,--spare-dynamic-tags=0")
    whole = lib.read_bytes()

    def corrupt(edit: ElfEdit, part: Path, *, env: dict[str, str]) -> None:
        data = bytearray(whole)
        section = read_elf(lib).section(".gnu.version")
        data[section.offset + 2 : section.offset + 4] = b"\1\0"
        part.write_bytes(data)

    monkeypatch.setattr(edit_module, "_rewrite", corrupt)
    with pytest.raises(BundleError, match="would damage it"):
        edited(lib)
    assert lib.read_bytes() == whole
    assert not list(lib.parent.glob(".libx.so.*.part"))


def test_files_are_rewritten_one_after_the_other(gcc, monkeypatch):
    """LIEF takes twice the file's size in memory; the files of a bundle are edited by eight threads."""
    source = "int f(void) { return 1; }"
    first = gcc.shared("lib0.so", source, "-Wl,-z,nodynamic-undefined-weak", "-Wl,--spare-dynamic-tags=0")
    files = [first, *(first.with_name(f"lib{number}.so") for number in range(1, 4))]
    for copy in files[1:]:
        shutil.copy2(first, copy)
    run, running, most = edit_module.process.run, [], []

    def watched(argv, **options):
        running.append(argv)
        most.append(len(running))
        try:
            return run(argv, **options)
        finally:
            running.remove(argv)

    monkeypatch.setattr(edit_module.process, "run", watched)
    with ThreadPoolExecutor(8) as pool:
        methods = {outcome.method for outcome in pool.map(edited, files)}
    assert methods == {"rewritten"}
    assert most == [1] * len(files)


def test_a_file_that_cannot_be_rewritten_is_told(gcc, monkeypatch):
    """LIEF throws, or brings its process down: the caller goes on, and the file keeps its bytes."""
    lib = gcc.shared("libx.so", "int f(void) { return 1; }", "-Wl,--spare-dynamic-tags=0")
    whole = lib.read_bytes()
    monkeypatch.setattr(edit_module.sys, "executable", "/bin/false")
    with pytest.raises(BundleError, match="LIEF could not write"):
        edited(lib)
    assert lib.read_bytes() == whole


def test_damaged_files_are_refused_whole(gcc):
    """Whatever bytes are wrong, a file is edited, or refused in a sentence and left as it was."""
    lib = gcc.shared("libx.so", '#include <stdio.h>\nint f(void) { return puts("x"); }', NEW, f"-Wl,-rpath,{LONG}")
    whole = lib.read_bytes()
    dice = random.Random(11)
    refusals = 0
    for _ in range(80):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 8)):
            data[dice.randrange(16, 3000)] = dice.randrange(256)
        lib.write_bytes(data)
        try:
            edited(lib)
        except LlamabuildError:
            refusals += 1
            assert lib.read_bytes() == data
    assert refusals > 10
    assert not list(lib.parent.glob(".libx.so.*.part"))


def test_a_failing_strip_is_told(gcc):
    lib = gcc.shared("libx.so")
    with pytest.raises(BundleError, match="could not strip"):
        apply_edit(ElfEdit(lib, WANTED, strip=True), strip_tool=Path("/bin/false"), env=ENV)


def _system_files(limit: int) -> list[Path]:
    folders = [
        Path(name) for name in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/bin")
    ]
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*.so*" if folder.name != "bin" else "*")) if folder.is_dir() else ():
            if not path.is_symlink() and path.is_file() and path.stat().st_size < 40 << 20:
                with path.open("rb") as handle:
                    if handle.read(4) == b"\x7fELF":
                        found.append(path)
    step = max(1, len(found) // limit)
    return found[::step][:limit]


def _edit_system_files(tmp_path: Path, loads: Path, *, limit: int) -> dict[str, int]:
    counts = {"in-place": 0, "rewritten": 0, "static": 0, "loaded": 0}
    for path in _system_files(limit):
        facts = read_elf(path)
        if not facts.dynamic:
            counts["static"] += 1
            continue
        copy = tmp_path / path.name
        shutil.copyfile(path, copy)
        old = contents(copy)
        outcome = edited(copy, "$ORIGIN/../llamabuild-test")
        counts[outcome.method] += 1
        found = dynamic_of(copy)
        assert found["RPATH"] == ["$ORIGIN/../llamabuild-test"], path
        assert "RUNPATH" not in found, path
        if outcome.method == "in-place":
            assert contents(copy) == old, path
        if facts.kind == "shared" and subprocess.run([loads, path], capture_output=True, check=False).returncode == 0:
            # Private folders of packages are reached by rpaths; here they are given instead.
            env = {**ENV, "LD_LIBRARY_PATH": _private_folders(path, facts)}
            done = subprocess.run([loads, copy], capture_output=True, text=True, env=env, check=False)
            assert done.returncode == 0, (path, outcome, done.stdout)
            counts["loaded"] += 1
        copy.unlink()
    return counts


def _private_folders(path: Path, facts) -> str:
    entries = [entry for text in (facts.rpath, facts.runpath) if text for entry in text.split(":")]
    return ":".join([entry.replace("$ORIGIN", str(path.parent)) for entry in entries] + [str(path.parent)])


def test_files_of_this_system(tmp_path, loads):
    counts = _edit_system_files(tmp_path, loads, limit=70)
    assert counts["in-place"] + counts["rewritten"] > 30
    assert counts["loaded"] > 15


@pytest.mark.slow
def test_a_thousand_files_of_this_system(tmp_path, loads):
    counts = _edit_system_files(tmp_path, loads, limit=2500)
    print(counts)
    assert counts["in-place"] + counts["rewritten"] >= 1000
