"""Hygiene of ELF files: whole, hardened, aligned, for one machine, readable by everybody."""

from __future__ import annotations

import stat
from collections import Counter
from typing import TYPE_CHECKING

from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.elf.read import ElfFile
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import Subject

DAMAGED = Kind(
    "elf.damaged",
    "error",
    "A file starts as an ELF file does and cannot be read as one: it was cut short, or its tables contradict each "
    "other.",
    "Build, copy or download it again.",
)
EXECSTACK = Kind(
    "elf.executable-stack",
    "error",
    "A file asks for an executable stack. glibc 2.41 and later, and hardened kernels, refuse to load such a library.",
    "Find the object without a .note.GNU-stack section (an assembler file), or link with -z noexecstack.",
)
TEXTREL = Kind(
    "elf.text-relocations",
    "error",
    "The loader has to write into the file's code. Hardened kernels refuse it, and the pages cannot be shared.",
    "Compile every object with -fPIC.",
)
RELRO = Kind(
    "elf.no-relro",
    "warning",
    "The file's relocated data stays writable after loading.",
    "Link with -z relro (and -z now).",
)
ALIGNMENT = Kind(
    "elf.load-alignment",
    "error",
    "A LOAD segment's alignment is below a page, is not a power of two, or its offset and address disagree modulo it: "
    "the kernel or the loader refuses the file. Editing tools have produced such files.",
    "Edit the file again with a tool that keeps the alignment.",
)
UNSTRIPPED = Kind(
    "elf.debug-sections",
    "warning",
    "A file carries debug sections or its static symbol table: space, and paths of the build machine.",
    "Strip before the rpath is edited (after it, strip can make the file unusable).",
)
MACHINE = Kind(
    "elf.other-machine",
    "error",
    "A file is for another processor than the rest of the bundle.",
    "Take it from the build for this one.",
)
INTERPRETER = Kind(
    "elf.interpreter",
    "error",
    "A program's loader is not the one at the place that all distributions agree on, so it starts on few machines.",
    "Link with the compiler of an ordinary distribution.",
)

KINDS = (DAMAGED, EXECSTACK, TEXTREL, RELRO, ALIGNMENT, UNSTRIPPED, MACHINE, INTERPRETER)

_INTERPRETERS = {
    "EM_X86_64": "/lib64/ld-linux-x86-64.so.2",
    "EM_AARCH64": "/lib/ld-linux-aarch64.so.1",
    "EM_RISCV": "/lib/ld-linux-riscv64-lp64d.so.1",
    "EM_PPC64": "/lib64/ld64.so.2",
    "EM_S390": "/lib/ld64.so.1",
}
_PAGE = 4096


def check(subject: Subject) -> Iterator[Finding]:
    """Judge each file by its headers alone."""
    for path, file in subject.files.items():
        if file.elf_error:
            yield DAMAGED.at(path, f"{path} is a damaged ELF file.", evidence=file.elf_error)
    machines = Counter(file.elf.machine for file in subject.elves if file.elf)
    usual = machines.most_common(1)[0][0] if machines else ""
    for file in subject.elves:
        elf, path = file.elf, file.path
        if elf is None:
            continue
        if elf.machine != usual:
            yield MACHINE.at(path, f"{path} is for {elf.machine}, the rest for {usual}.", evidence=str(dict(machines)))
        if elf.execstack:
            yield EXECSTACK.at(path, f"{path} asks for an executable stack.")
        if elf.textrel:
            yield TEXTREL.at(path, f"{path} has text relocations.")
        if elf.relro == "none" and elf.dynamic:
            yield RELRO.at(
                path, f"{path} has no RELRO segment.", severity=None if subject.own and file.of_llama else "note"
            )
        yield from _alignment(path, elf)
        if elf.debug_sections:
            yield UNSTRIPPED.at(
                path,
                f"{path} is not stripped.",
                evidence=", ".join(elf.debug_sections[:8]),
                severity=None if subject.own and file.of_llama else "note",
            )
        usual_loader = _INTERPRETERS.get(elf.machine)
        if elf.interp and usual_loader and elf.interp != usual_loader and elf.kind == "executable":
            yield INTERPRETER.at(path, f"{path} asks for the loader {elf.interp}.", evidence=f"usual: {usual_loader}")


def _alignment(path: str, elf: ElfFile) -> Iterator[Finding]:
    for part in elf.loads:
        wrong = (
            part.align < _PAGE
            or part.align & (part.align - 1)
            or (part.offset - part.address) % part.align
            or part.file_size > part.memory_size
        )
        if wrong:
            yield ALIGNMENT.at(
                path,
                f"{path} has a LOAD segment that cannot be mapped.",
                evidence=f"offset {part.offset:#x}, address {part.address:#x}, alignment {part.align:#x}, "
                f"{part.file_size:#x} bytes in the file and {part.memory_size:#x} in memory",
            )


def is_readable_by_all(mode: int) -> bool:
    """Whether another user can read a file, or enter a folder, of this mode."""
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return mode & needed == needed
