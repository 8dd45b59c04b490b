"""A good bundle, broken in each of many ways: each has its finding."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile

from llamabuild.bundle.manifest import render_text
from llamabuild.verify.check import Options, verify_path

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Mutation:
    """One way to break a bundle."""

    name: str
    apply: Callable[[Path], object]
    finding: str
    described: bool = True
    """BUILD_INFO is written anew afterwards: the bundle was made wrong. Otherwise it was changed after it was made."""


def describe(root: Path) -> None:
    """Write BUILD_INFO anew for what is there now, as if the bundle had been made like this."""
    path = root / "BUILD_INFO.json"
    document = json.loads(path.read_text())
    records = []
    for each in sorted(root.rglob("*")):
        name = each.relative_to(root).as_posix()
        if name.startswith("BUILD_INFO.") or (each.is_dir() and not each.is_symlink()):
            continue
        if each.is_symlink():
            records.append({"path": name, "link": str(each.readlink()), "origin": "x"})
        elif each.is_file():
            digest = hashlib.sha256(each.read_bytes()).hexdigest()
            records.append({"path": name, "size": each.stat().st_size, "sha256": digest, "origin": "x"})
    document["files"] = records
    write(root, document)


def write(root: Path, document: dict) -> None:
    """Write both files of BUILD_INFO."""
    (root / "BUILD_INFO.json").write_text(json.dumps(document))
    (root / "BUILD_INFO.txt").write_text(render_text(document))


def info(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """A mutation of BUILD_INFO that keeps its two files in step."""

    def apply(root: Path) -> None:
        document = json.loads((root / "BUILD_INFO.json").read_text())
        change(document)
        write(root, document)

    return apply


def text(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    """Replace bytes of a file by as many others, everywhere."""

    def apply(root: Path) -> None:
        path = real(root, name)
        data = path.read_bytes()
        assert old in data, (name, old)
        path.write_bytes(data.replace(old, new.ljust(len(old), b"\0")))

    return apply


def real(root: Path, name: str) -> Path:
    """The one file of a name, without its version."""
    return next(path for path in sorted(root.rglob(f"{name}*")) if path.is_file() and not path.is_symlink())


def poke(name: str, where: Callable[[ELFFile], int], form: str, value: int) -> Callable[[Path], None]:
    """Overwrite a number at an offset that the ELF file itself tells."""

    def apply(root: Path) -> None:
        path = real(root, name)
        with path.open("rb") as handle:
            offset = where(ELFFile(handle))
        data = bytearray(path.read_bytes())
        struct.pack_into(form, data, offset, value)
        path.write_bytes(data)

    return apply


def header(kind: str, field: int, *, last: bool = False) -> Callable[[ELFFile], int]:
    """Offset of a field of the first (or last) program header of a kind."""

    def where(elf: ELFFile) -> int:
        indices = [index for index, segment in enumerate(elf.iter_segments()) if segment["p_type"] == kind]
        return elf["e_phoff"] + indices[-1 if last else 0] * elf["e_phentsize"] + field

    return where


def tag(kind: str) -> Callable[[ELFFile], int]:
    """Offset of the first dynamic entry of a kind."""

    def where(elf: ELFFile) -> int:
        segment = next(elf.iter_segments("PT_DYNAMIC"))
        for index, entry in enumerate(segment.iter_tags()):
            if entry.entry.d_tag == kind:
                return segment["p_offset"] + index * 16
        raise AssertionError(kind)

    return where


def add(name: str, content: bytes = b"x\n", mode: int = 0o644) -> Callable[[Path], None]:
    """Add a file."""

    def apply(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)

    return apply


def remove(name: str) -> Callable[[Path], None]:
    """Remove a file or a link."""
    return lambda root: (root / name).unlink()


def relink(name: str, target: str) -> Callable[[Path], None]:
    """Point a link elsewhere."""

    def apply(root: Path) -> None:
        path = root / name
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return apply


def flatten(name: str) -> Callable[[Path], None]:
    """Put the file in the place of a link."""

    def apply(root: Path) -> None:
        path = root / name
        content = path.resolve()
        path.unlink()
        shutil.copy2(content, path)

    return apply


def move(name: str, to: str) -> Callable[[Path], None]:
    """Move a file or folder."""

    def apply(root: Path) -> None:
        (root / to).parent.mkdir(parents=True, exist_ok=True)
        (root / name).rename(root / to)

    return apply


def chmod(name: str, mode: int) -> Callable[[Path], None]:
    """Change a mode."""
    return lambda root: (root / name).chmod(mode)


def truncate(name: str, keep: float) -> Callable[[Path], None]:
    """Cut a file short."""

    def apply(root: Path) -> None:
        path = real(root, name)
        os.truncate(path, int(path.stat().st_size * keep))

    return apply


def rebuild(name: str, source: str, *flags: str) -> Callable[[Path], None]:
    """Compile another file in the place of one."""

    def apply(root: Path) -> None:
        path = real(root, name) if "/" not in name else root / name
        words = ["gcc", "-x", "c", "-", "-fPIC", "-s", "-o", str(path), "-Wl,-z,relro,-z,now", "-x", "none", *flags]
        subprocess.run(words, input=source.encode(), check=True)

    return apply


def then(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    """Several changes as one."""

    def apply(root: Path) -> None:
        for step in steps:
            step(root)

    return apply


SERVER, LLAMA, BASE = "bin/llama-server", "libllama.so", "libggml-base.so"

CPU = [
    Mutation("delete a program", remove(SERVER), "program.missing"),
    Mutation("delete a listed file", remove("bin/llama-cli"), "metadata.file-missing", described=False),
    Mutation("delete a library", remove("lib/libllama.so.0.5.0"), "closure.not-bundled"),
    Mutation("delete the plugin", remove("bin/libggml-cpu.so"), "plugin.missing"),
    Mutation("delete libgomp's link chain", remove("lib/libgomp.so.1"), "closure.not-bundled"),
    Mutation("dangle a soname link", relink("lib/libllama.so.0", "libllama.so.0.4.0"), "link.dangling"),
    Mutation("rewrite a link by a prefix rule", relink("lib/libggml.so.0", "lib/libggml.so.0.25.1"), "link.dangling"),
    Mutation("make a link absolute", relink("lib/libggml.so", "/usr/lib/libggml.so.0"), "link.absolute"),
    Mutation("lead a link outside", relink("lib/libggml.so", "../../libggml.so.0"), "link.outside"),
    Mutation(
        "close a circle of links",
        then(relink("lib/libggml.so", "libggml2.so"), relink("lib/libggml2.so", "libggml.so")),
        "link.loop",
    ),
    Mutation("flatten a link chain", flatten("lib/libllama.so.0"), "link.flattened"),
    Mutation("flatten a listed link", flatten("lib/libllama.so.0"), "metadata.link", described=False),
    Mutation(
        "flatten the lib folder",
        lambda root: [p.rename(root / p.name) for p in (root / "lib").iterdir()],
        "program.fails",
    ),
    Mutation(
        "swap a library for another file", move("lib/libggml.so.0.25.1", "lib/libggml.so.0.25.2"), "link.dangling"
    ),
    Mutation("truncate a library to half", truncate(LLAMA, 0.5), "elf.damaged"),
    Mutation("truncate a program to its header", truncate("llama-cli", 0.002), "elf.damaged"),
    Mutation("truncate a plugin slightly", truncate("libggml-cpu.so", 0.97), "elf.damaged"),
    Mutation(
        "empty a licence",
        lambda root: (root / "licenses/llama.cpp/LICENSE").write_text(""),
        "metadata.digest",
        described=False,
    ),
    Mutation(
        "flip a byte of code", text("llama-bench", b"version: ", b"versiom: "), "metadata.digest", described=False
    ),
    Mutation("rpath to a build folder", text("llama-server", b"$ORIGIN/../lib", b"/build/bin"), "elf.rpath-absolute"),
    Mutation("rpath relative", text("llama-cli", b"$ORIGIN/../lib", b"../lib"), "elf.rpath-relative"),
    Mutation("rpath with an empty entry", text("llama-cli", b"$ORIGIN/../lib", b"$ORIGIN:"), "elf.rpath-relative"),
    Mutation("rpath outside the bundle", text("llama-cli", b"$ORIGIN/../lib", b"$ORIGIN/../.."), "elf.rpath-outside"),
    Mutation("rpath to another folder", text("llama-cli", b"$ORIGIN/../lib", b"$ORIGIN/../lab"), "elf.rpath-other"),
    Mutation("rpath gone from a library", poke(LLAMA, tag("DT_RPATH"), "<Q", 0x6FFFFEF5), "closure.not-bundled"),
    Mutation("runpath in place of rpath", poke("llama-server", tag("DT_RPATH"), "<Q", 0x1D), "elf.runpath"),
    Mutation("executable stack", poke(BASE, header("PT_GNU_STACK", 4), "<I", 7), "elf.executable-stack"),
    Mutation("no RELRO", poke(BASE, header("PT_GNU_RELRO", 0), "<I", 0), "elf.no-relro"),
    Mutation("text relocations", poke("libllama.so", tag("DT_RELACOUNT"), "<Q", 22), "elf.text-relocations"),
    Mutation("alignment of one byte", poke(BASE, header("PT_LOAD", 48), "<Q", 1), "elf.load-alignment"),
    Mutation(
        "segment moved off its page", poke(BASE, header("PT_LOAD", 16, last=True), "<Q", 0x5123), "elf.load-alignment"
    ),
    Mutation("another machine's library", poke("libggml-cpu.so", lambda elf: 18, "<H", 183), "elf.other-machine"),
    Mutation(
        "a loader of its own",
        text("llama-bench", b"/lib64/ld-linux-x86-64.so.2", b"/nix/ld-linux-x86-64.so.2"),
        "elf.interpreter",
    ),
    Mutation("a newer glibc", text("libggml.so", b"GLIBC_2.34\0", b"GLIBC_2.99\0"), "glibc.above-floor"),
    Mutation("a version the library lacks", text(BASE, b"OMP_1.0\0", b"OMP_9.9\0"), "closure.version-missing"),
    Mutation(
        "a library of another build",
        text(LLAMA, b"llama_build_number", b"llama_build_numbex"),
        "closure.symbol-undefined",
    ),
    Mutation(
        "another build number",
        rebuild(
            "libllama.so",
            "void llama_backend_init(void){} int llama_build_number(void){return 1;}"
            'const char*llama_commit(void){return "7fe450e19";} int llama_model_dflash_selector_top_k(void){return 0;}',
            "-shared",
            "-Wl,-soname,libllama.so.0",
        ),
        "program.version",
    ),
    Mutation("another commit", text(LLAMA, b"7fe450e19\0", b"8fe450e19\0"), "program.version"),
    Mutation(
        "a feature's symbol gone",
        text(LLAMA, b"llama_model_dflash_selector_top_k", b"llama_model_dflash_selector_top_j"),
        "feature.missing",
    ),
    Mutation("a feature's flag gone", text("llama-server", b"draft-mtp", b"draft-xyz"), "feature.missing"),
    Mutation("a program that crashes", rebuild("bin/llama-cli", "int main(void){__builtin_trap();}"), "program.fails"),
    Mutation("a program that fails", rebuild("bin/llama-cli", "int main(void){return 7;}"), "program.fails"),
    Mutation("a program without x", chmod("bin/llama-bench", 0o644), "program.not-executable"),
    Mutation(
        "a plugin that cannot be loaded",
        text("libggml-cpu.so", b"ggml_base_threads", b"ggml_base_threadz"),
        "plugin.not-loaded",
    ),
    Mutation("a plugin in lib", move("bin/libggml-cpu.so", "lib/libggml-cpu.so"), "plugin.misplaced"),
    Mutation("a plugin with a version", move("bin/libggml-cpu.so", "bin/libggml-cpu.so.0"), "plugin.name"),
    Mutation(
        "another target's plugin",
        lambda root: os.link(root / "bin/libggml-cpu.so", root / "bin/libggml-vulkan.so"),
        "plugin.undeclared",
    ),
    Mutation(
        "the driver's library",
        rebuild("lib/libcuda.so.1", "int cuInit(int f){return f;}", "-shared", "-Wl,-soname,libcuda.so.1"),
        "closure.driver-bundled",
    ),
    Mutation(
        "the C library",
        rebuild("lib/libm.so.6", "double sin(double x){return x;}", "-shared", "-Wl,-soname,libm.so.6"),
        "closure.system-bundled",
    ),
    Mutation(
        "a leftover library",
        rebuild("lib/libold.so.1", "int old(void){return 1;}", "-shared", "-Wl,-soname,libold.so.1"),
        "closure.unreferenced",
    ),
    Mutation(
        "NCCL linked in",
        then(
            rebuild("lib/libnccl.so.2", "int nccl(void){return 1;}", "-shared", "-Wl,-soname,libnccl.so.2"),
            lambda root: rebuild(
                "bin/libggml-cpu.so",
                "int nccl(void);int f(void){return nccl();}",
                "-shared",
                str(root / "lib/libnccl.so.2"),
                "-Wl,-rpath,$ORIGIN/../lib",
            )(root),
        ),
        "closure.collectives-unwanted",
    ),
    Mutation(
        "a debug build",
        lambda root: subprocess.run(
            ["gcc", "-g", "-x", "c", "-", "-o", root / "bin/llama-bench"],
            input=b"int main(void){return 0;}",
            check=True,
        ),
        "elf.debug-sections",
    ),
    Mutation("weights by name", add("models/tiny.gguf"), "content.weights"),
    Mutation("weights under another name", add("share/data.bin", b"GGUF\3\0\0\0" + bytes(99)), "content.weights"),
    Mutation("an environment file", add("bin/.env"), "content.secret"),
    Mutation("a repository", add(".git/HEAD"), "content.secret"),
    Mutation(
        "a private key",
        add("share/notes.txt", b"-----BEGIN RSA PRIVATE " + b"KEY-----\n" + b"A" * 64 + b"\n"),
        "content.secret",
    ),
    Mutation("a token", add("share/setup.sh", b"export T=ghp_" + b"a1B2" * 9 + b"\n"), "content.secret"),
    Mutation(
        "a build path",
        rebuild(
            "bin/libggml-cpu.so", 'const char*f(void){return "/home/somebody/llama.cpp/ggml/src/ggml.c";}', "-shared"
        ),
        "content.build-path",
    ),
    Mutation("an object file", add("lib/ggml.c.o"), "content.leftover"),
    Mutation("an unreadable file", chmod("licenses/llama.cpp/LICENSE", 0o600), "file.mode"),
    Mutation("a folder for the owner alone", chmod("lib", 0o700), "file.mode"),
    Mutation("a file everybody may change", chmod("lib/libllama.so.0.5.0", 0o777), "file.writable-by-all"),
    Mutation("a setuid program", chmod("bin/llama-cli", 0o4755), "file.writable-by-all"),
    Mutation("a pipe", lambda root: os.mkfifo(root / "lib/queue"), "file.special"),
    Mutation("a name with a line break", add("lib/a\nb"), "file.name"),
    Mutation("an unlisted file", add("lib/readme.txt"), "metadata.file-unlisted", described=False),
    Mutation("no BUILD_INFO.json", remove("BUILD_INFO.json"), "metadata.missing", described=False),
    Mutation("BUILD_INFO.json cut short", truncate("BUILD_INFO.json", 0.5), "metadata.not-read", described=False),
    Mutation(
        "BUILD_INFO.json of another schema",
        text("BUILD_INFO.json", b'"schema": 1', b'"schema": 9'),
        "metadata.not-read",
        described=False,
    ),
    Mutation("no BUILD_INFO.txt", remove("BUILD_INFO.txt"), "metadata.text", described=False),
    Mutation(
        "a byte of BUILD_INFO.txt",
        text("BUILD_INFO.txt", b"7fe450e19305b828", b"7fe450e19305b829"),
        "metadata.text",
        described=False,
    ),
    Mutation(
        "another commit in the metadata",
        info(lambda d: d.update(upstream_base_commit="8" * 40, build_commit="8" * 9)),
        "metadata.recipe-differs",
        described=False,
    ),
    Mutation(
        "another tree in the metadata",
        info(lambda d: d.update(upstream_tree="8" * 40)),
        "metadata.recipe-differs",
        described=False,
    ),
    Mutation(
        "another build number in the metadata",
        info(lambda d: d.update(build_number=1)),
        "metadata.recipe-differs",
        described=False,
    ),
    Mutation(
        "a patch that nobody asked for",
        info(
            lambda d: d["patches"].append(
                {"id": "a" * 40, "series": "x", "subject": "s", "outcome": "applied", "note": ""}
            )
        ),
        "metadata.recipe-differs",
        described=False,
    ),
    Mutation(
        "a patch that did not apply",
        info(
            lambda d: d["patches"].append(
                {"id": "a" * 40, "series": "x", "subject": "s", "outcome": "conflict", "note": ""}
            )
        ),
        "metadata.contradiction",
        described=False,
    ),
    Mutation("a short commit id", info(lambda d: d.update(commit="7fe450e")), "metadata.key-missing", described=False),
    Mutation(
        "no commit in the metadata",
        info(lambda d: d.pop("upstream_base_commit")),
        "metadata.key-missing",
        described=False,
    ),
    Mutation(
        "a build commit from nowhere",
        info(lambda d: d.update(build_commit="123456789")),
        "metadata.contradiction",
        described=False,
    ),
    Mutation(
        "a backend that is off",
        info(lambda d: d["cmake_config"][0].update(value="OFF")),
        "metadata.contradiction",
        described=False,
    ),
    Mutation(
        "a compiled-in plugin folder",
        info(lambda d: d["cmake_config"].append({"name": "GGML_BACKEND_DIR", "value": "/usr/lib/ggml"})),
        "plugin.compiled-in-folder",
        described=False,
    ),
    Mutation(
        "a native build",
        info(lambda d: d["cmake_config"].append({"name": "GGML_NATIVE", "value": "ON"})),
        "metadata.native",
        described=False,
    ),
    Mutation(
        "a feature nobody knows",
        info(lambda d: d["features"].append("teleport")),
        "metadata.recipe-differs",
        described=False,
    ),
]


@pytest.mark.parametrize("mutation", CPU, ids=lambda each: each.name.replace(" ", "-"))
def test_each_mutation_of_a_cpu_bundle_is_found(mutation, cpu_bundle, copy_of):
    made = copy_of(cpu_bundle)
    mutation.apply(made.root)
    if mutation.described:
        describe(made.root)
    # Only what shows in a running program needs one.
    run = mutation.finding.startswith(("program.", "plugin.", "feature."))
    report = verify_path(made.root, context=made.context, recipe=made.recipe, options=Options(run=run))
    assert mutation.finding in {finding.name for finding in report.findings}


def refill(name: str, section: str, content: bytes) -> Callable[[Path], None]:
    """Overwrite a section's content, keeping its size."""

    def apply(root: Path) -> None:
        path = real(root, name)
        with path.open("rb") as handle:
            found = ELFFile(handle).get_section_by_name(section)
            offset, size = found["sh_offset"], found["sh_size"]
        data = bytearray(path.read_bytes())
        data[offset : offset + size] = content[:size].ljust(size, b"\0")
        path.write_bytes(data)

    return apply


CUDA = [
    Mutation("no SASS of the arch", ("sass", "89"), "device.sass-missing"),
    Mutation("code nobody promised", ("sass", "89"), "device.undeclared"),
    Mutation("PTX in place of SASS", ("ptx", "86"), "device.ptx-only"),
    Mutation("the arch-specific variant", ("sass", "90a"), "device.sass-missing"),
]


@pytest.mark.parametrize("mutation", CUDA, ids=lambda each: each.name.replace(" ", "-"))
def test_each_mutation_of_a_cuda_bundle_is_found(mutation, cuda_bundle, copy_of, nv_fatbin):
    made = copy_of(cuda_bundle)
    refill("libggml-cuda.so", ".nv_fatbin", nv_fatbin(mutation.apply))(made.root)
    describe(made.root)
    report = verify_path(made.root, context=made.context, recipe=made.recipe, options=Options(run=False))
    assert mutation.finding in {finding.name for finding in report.findings}


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        (b"", "device.none"),
        (b"\x50\xed\x55\xba\x01\x00\x10\x00" + b"\xff" * 8, "device.not-read"),
        (b"no fat binary at all", "device.not-read"),
    ],
    ids=["emptied", "container-too-long", "garbage"],
)
def test_broken_cuda_code_is_found(content, finding, cuda_bundle, copy_of):
    made = copy_of(cuda_bundle)
    refill("libggml-cuda.so", ".nv_fatbin", content)(made.root)
    report = verify_path(made.root, context=made.context, recipe=made.recipe, options=Options(run=False))
    assert finding in {each.name for each in report.findings}


@pytest.mark.parametrize(
    ("archs", "emptied", "finding"),
    [
        (("gfx1101",), (), "device.gfx-missing"),
        (("gfx1100",), ("gfx1100",), "device.gfx-missing"),
        ((), (), "device.none"),
    ],
    ids=["a-sibling-arch", "zeroed-code", "host-code-alone"],
)
def test_each_mutation_of_a_hip_bundle_is_found(archs, emptied, finding, hip_bundle_gfx1100, copy_of, hip_bundle):
    made = copy_of(hip_bundle_gfx1100)
    refill("libggml-hip.so", ".hip_fatbin", hip_bundle(*archs, emptied=emptied))(made.root)
    report = verify_path(made.root, context=made.context, recipe=made.recipe, options=Options(run=False))
    assert finding in {each.name for each in report.findings}


@pytest.mark.parametrize("archs", [("gfx11-generic",), ("gfx1100", "gfx11-generic")])
def test_generic_code_of_the_archs_family_is_code_for_it(archs, hip_bundle_gfx1100, copy_of, hip_bundle):
    made = copy_of(hip_bundle_gfx1100)
    refill("libggml-hip.so", ".hip_fatbin", hip_bundle(*archs))(made.root)
    report = verify_path(made.root, context=made.context, recipe=made.recipe, options=Options(run=False))
    assert not {each.name for each in report.findings} & {"device.gfx-missing", "device.undeclared"}


def test_an_offload_bundle_cut_short_is_found(hip_bundle_gfx1100, copy_of, hip_bundle):
    made = copy_of(hip_bundle_gfx1100)
    longer = hip_bundle("gfx1100").replace(struct.pack("<Q", 256), struct.pack("<Q", 1 << 30))
    refill("libggml-hip.so", ".hip_fatbin", longer)(made.root)
    report = verify_path(made.root, context=made.context, recipe=made.recipe, options=Options(run=False))
    assert "device.not-read" in {each.name for each in report.findings}


def test_a_name_that_is_no_text_is_told_and_can_be_printed(cpu_bundle, copy_of):
    made = copy_of(cpu_bundle)
    Path(os.fsdecode(os.fsencode(made.root) + b"/lib/caf\xe9.so")).write_bytes(b"x")
    report = verify_path(made.root, context=made.context, recipe=made.recipe, options=Options(run=False))
    assert "file.name" in {each.name for each in report.findings}
    assert json.dumps(report.to_json(), ensure_ascii=False).encode()


def test_another_top_folder_name_is_found(cpu_bundle, copy_of):
    made = copy_of(cpu_bundle)
    renamed = made.root.rename(made.root.with_name("llama-other-cpu"))
    report = verify_path(renamed, context=made.context, recipe=made.recipe, target="cpu", options=Options(run=False))
    assert "metadata.name" in {each.name for each in report.findings}
