"""What read_elf says is what readelf says, and damage never ends in a traceback."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from llamabuild.elf.read import ElfError, exported_names, is_elf, read_elf, read_symbols


@pytest.mark.parametrize(
    ("flags", "rpath", "runpath"),
    [
        ([], None, None),
        (["-Wl,--disable-new-dtags,-rpath,$ORIGIN/../x"], "$ORIGIN/../x", None),
        (["-Wl,--enable-new-dtags,-rpath,/a:/b"], None, "/a:/b"),
    ],
)
def test_dynamic_entries(gcc, flags, rpath, runpath):
    dep = gcc.shared("libdep.so.3", "int d(void) { return 2; }", "-Wl,-soname,libdep.so.3")
    lib = gcc.shared("libx.so", "int d(void); int f(void) { return d(); }", "-Wl,-soname,libx.so.1", str(dep), *flags)
    elf = read_elf(lib)
    assert (elf.soname, elf.rpath, elf.runpath, elf.kind) == ("libx.so.1", rpath, runpath, "shared")
    assert "libdep.so.3" in elf.needed
    assert {"f"} <= exported_names(lib)
    assert "d" not in exported_names(lib)
    assert ".symtab" in elf.debug_sections
    assert any(name.startswith(".debug") for name in elf.debug_sections)


@pytest.mark.parametrize(
    ("flags", "relro", "execstack"),
    [
        (["-Wl,-z,relro,-z,now"], "full", False),
        (["-Wl,-z,relro,-z,lazy"], "partial", False),
        (["-Wl,-z,norelro"], "none", False),
        (["-Wl,-z,execstack"], "full", True),
    ],
)
def test_hardening(gcc, flags, relro, execstack):
    elf = read_elf(gcc.shared("libx.so", "int f(void) { return 1; }", "-Wl,-z,now", *flags))
    assert elf.relro == relro
    assert elf.execstack is execstack


@pytest.mark.parametrize("flags", [["-pie"], ["-no-pie"], ["-static"]])
def test_programs_are_executables(gcc, flags):
    elf = read_elf(gcc.program("p", "int main(void) { return 0; }", *flags))
    assert elf.kind == "executable"
    assert elf.dynamic is ("-static" not in flags)


def test_a_library_with_an_interpreter_is_a_library():
    libc = next(Path("/").glob("lib/*-linux-gnu/libc.so.6"), None) or Path("/lib64/libc.so.6")
    if not libc.exists():
        pytest.skip("no glibc at a known place")
    assert read_elf(libc).kind == "shared"


def test_floors_are_the_greatest_by_number(gcc):
    program = gcc.program(
        "p", '#include <pthread.h>\n#include <stdio.h>\nint main(void) { pthread_create(0,0,0,0); return puts(""); }'
    )
    printed = subprocess.run(["readelf", "-VW", program], check=True, capture_output=True, text=True).stdout
    needed = {tuple(map(int, number.split("."))) for number in re.findall(r"Name: GLIBC_([\d.]+)", printed)}
    assert read_elf(program).version_floor()["GLIBC"] == ".".join(map(str, max(needed)))


def test_symbols_are_those_of_readelf(gcc):
    source = "int shown(void) { return 1; } __attribute__((weak)) int soft(void) { return 2; } int used(void);"
    lib = gcc.shared("libx.so", source + "int g(void) { return used(); } int number = 7;")
    printed = subprocess.run(["readelf", "--dyn-syms", "-W", lib], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in printed.splitlines() if re.match(r"\s+\d+:", line)]
    expected = {(row[7].partition("@")[0], row[6] != "UND", int(row[1], 16)) for row in rows if len(row) > 7}
    assert {(symbol.name, symbol.defined, symbol.value) for symbol in read_symbols(lib)} == expected


def test_what_is_no_elf_file(tmp_path):
    text = tmp_path / "t"
    text.write_text("#!/bin/sh\n")
    assert not is_elf(text)
    assert not is_elf(tmp_path)
    assert not is_elf(tmp_path / "missing")
    with pytest.raises(ElfError, match="is not an ELF file"):
        read_elf(text)


def test_damage_is_one_sentence(gcc):
    """Cut anywhere, or with any bytes changed, a file is read or refused; nothing else comes out."""
    lib = gcc.shared("libx.so", '#include <stdio.h>\nint f(void) { return puts("x"); }')
    whole = lib.read_bytes()
    dice = random.Random(7)
    bad = lib.with_name("bad.so")
    refusals = []
    for turn in range(300):
        data = bytearray(whole[: dice.randrange(4, len(whole))] if turn % 2 else whole)
        if not turn % 2:
            for _ in range(8):
                data[dice.randrange(4, min(len(data), 4096))] = dice.randrange(256)
        bad.write_bytes(data)
        try:
            read_elf(bad)
            read_symbols(bad)
        except ElfError as failure:
            refusals.append(failure)
    assert len(refusals) > 50
    assert all(str(bad) in failure.message and "\n" not in failure.message and failure.hint for failure in refusals)
