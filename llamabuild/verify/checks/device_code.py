"""Device code: what was promised is embedded in every file that carries any, and nothing is promised that is not."""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from llamabuild.bundle.kpack import kpack_paths, simulate_kpack
from llamabuild.verify.archs import Wanted, gfx_suits, parse_archs, runs_on, suits
from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llamabuild.elf.device_code import DeviceCode
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import File, Subject

SASS_MISSING = Kind(
    "device.sass-missing",
    "error",
    "A file of this build carries CUDA code, but no machine code (SASS) of the promised arch. On that GPU it runs only "
    "if PTX is there and the driver is new enough to compile it, and starts slowly then. 'sm_120' where '120a' was "
    "promised is a mismatch too: instructions that only the 'a' has are missing.",
    "Set CMAKE_CUDA_ARCHITECTURES to the promised arch and build that file again.",
)
PTX_MISSING = Kind(
    "device.ptx-missing",
    "error",
    "A file of this build carries CUDA code, but no PTX of the promised arch, so later GPUs cannot run it.",
    "Write the arch without '-real', or promise '-real' alone.",
)
PTX_ONLY = Kind(
    "device.ptx-only",
    "warning",
    "A file carries PTX alone for the arch. It needs a driver at least as new as the toolkit that made it (SASS runs "
    "on the toolkit major's oldest driver), and is compiled on the first start.",
    "Add SASS (drop '-virtual'), or state the driver that is needed.",
)
GFX_MISSING = Kind(
    "device.gfx-missing",
    "error",
    "A file carries GPU code, but none for the promised gfx arch. Code for a sibling arch links, loads, and then "
    "crashes.",
    "Set GPU_TARGETS (CMAKE_HIP_ARCHITECTURES) to the promised arch, or take the vendor library that has it.",
)
UNDECLARED = Kind(
    "device.undeclared",
    "warning",
    "A file of this build carries code for an arch that nobody promised: space, and a claim that nobody tested.",
    "Build for the promised arch alone, or promise the others too.",
)
NONE = Kind(
    "device.none",
    "error",
    "A GPU backend with an arch was promised, and no file carries any code for a GPU.",
    "See whether configure took the backend: llamabuild inspect on the build folder.",
)
UNREADABLE = Kind(
    "device.not-read",
    "error",
    "The device code of a file could not be read to its end, so what it holds is not known: cut short, or a new "
    "format.",
    "Build or fetch the file again; if it is whole, report the format.",
)
KPACK = Kind(
    "device.kpack-missing",
    "error",
    "A library's kernels were split off into .kpack files beside it, and none of those it names is there: it has no "
    "device code at all.",
    "Copy the .kpack folder to the place the library names, relative to itself.",
)
ARCH_UNKNOWN = Kind(
    "device.arch-not-checked",
    "warning",
    "The promised arch names no single GPU, so the device code was not held against it.",
    "Promise archs by number (86, 120a) or gfx name.",
)
DIFFERS = Kind(
    "device.archs-differ",
    "warning",
    "Files of one backend carry code for different archs: they are of different builds.",
    "Take all files from one build.",
)

KINDS = (
    SASS_MISSING,
    PTX_MISSING,
    PTX_ONLY,
    GFX_MISSING,
    UNDECLARED,
    NONE,
    UNREADABLE,
    KPACK,
    ARCH_UNKNOWN,
    DIFFERS,
)


def check(subject: Subject) -> Iterator[Finding]:
    """Hold each file's device code against the promised arch."""
    wanted = parse_archs(subject.expected.arch)
    carriers = [file for file in subject.elves if file.device is not None and file.device.carried]
    for file in carriers:
        if file.device and file.device.problem:
            yield UNREADABLE.at(
                file.path, f"The device code of {file.path} could not be read.", evidence=file.device.problem
            )
        yield from _kpack(subject, file, wanted)
    if wanted.unknown:
        yield ARCH_UNKNOWN.at("", f"The promised arch {', '.join(wanted.unknown)} names no single GPU.")
    yield from _nothing_there(subject, wanted, carriers)
    for file in carriers:
        own = file.of_llama
        if file.device and not file.device.problem and not file.device.split_off:
            yield from _cuda(file, file.device, wanted, own=own)
            yield from _gfx(file, file.device, wanted, own=own)
    yield from _differing(carriers)


def _nothing_there(subject: Subject, wanted: Wanted, carriers: Sequence[File]) -> Iterator[Finding]:
    for backend, archs in (("cuda", (*wanted.sass, *wanted.ptx)), ("hip", wanted.gfx)):
        if not archs or backend not in (subject.expected.backends or (backend,)):
            continue
        family = [
            file
            for file in carriers
            if file.device
            and (file.device.sass or file.device.ptx if backend == "cuda" else file.device.gfx or file.device.split_off)
        ]
        if not any(file.of_llama for file in family):
            yield NONE.at(
                "", f"No file of this build carries {backend} code, and {', '.join(sorted(set(archs)))} was promised."
            )


def _cuda(file: File, code: DeviceCode, wanted: Wanted, *, own: bool) -> Iterator[Finding]:
    sass = [arch for arch, _ in code.sass]
    ptx = [arch for arch, _ in code.ptx]
    if not sass and not ptx:
        return
    shown = f"SASS {', '.join(sass) or 'none'}; PTX {', '.join(ptx) or 'none'}"
    for arch in wanted.sass:
        if any(suits(arch, each) for each in sass) or (not own and any(runs_on(each, arch) for each in sass)):
            continue
        if not own and ptx:
            yield PTX_ONLY.at(
                file.path, f"{file.path} has no SASS that runs on {arch}.", evidence=shown, severity="note"
            )
            continue
        yield SASS_MISSING.at(file.path, f"{file.path} has no SASS for {arch}.", evidence=shown)
        if ptx:
            yield PTX_ONLY.at(file.path, f"On {arch} {file.path} runs from PTX, or not at all.", evidence=shown)
    if not own:
        return
    for arch in wanted.ptx:
        if not any(suits(arch, each) for each in ptx):
            yield PTX_MISSING.at(file.path, f"{file.path} has no PTX for {arch}.", evidence=shown)
    if wanted.ptx and not wanted.sass and not sass:
        yield PTX_ONLY.at(file.path, f"{file.path} has PTX alone.", evidence=shown)
    if not wanted.sass and not wanted.ptx and not sass:
        yield PTX_ONLY.at(file.path, f"{file.path} has PTX alone.", evidence=shown)
    extra = [f"sm_{each}" for each in sass if not any(suits(arch, each) for arch in wanted.sass)]
    extra += [f"compute_{each}" for each in ptx if not any(suits(arch, each) for arch in wanted.ptx)]
    if extra and (wanted.sass or wanted.ptx):
        yield UNDECLARED.at(file.path, f"{file.path} carries code nobody promised: {', '.join(extra)}.", evidence=shown)


def _gfx(file: File, code: DeviceCode, wanted: Wanted, *, own: bool) -> Iterator[Finding]:
    here = [arch for arch, _ in code.gfx]
    if not here and not code.emptied:
        return
    for arch in wanted.gfx:
        if not any(gfx_suits(arch, each) for each in here):
            yield GFX_MISSING.at(
                file.path, f"{file.path} has no code for {arch}.", evidence=f"there: {', '.join(here)}"
            )
    extra = [each for each in here if not any(gfx_suits(arch, each) for arch in wanted.gfx)]
    if extra and wanted.gfx and own:
        yield UNDECLARED.at(
            file.path, f"{file.path} carries code nobody promised: {', '.join(extra)}.", evidence=", ".join(here)
        )


def _kpack(subject: Subject, file: File, wanted: Wanted) -> Iterator[Finding]:
    """Each arch needs one of the archives that the file names; where no arch is known, any will do."""
    if file.device is None or not file.device.split_off:
        return
    for arch in wanted.gfx:
        result = simulate_kpack(subject.root, file.real, arch)
        if not result.present:
            yield KPACK.at(
                file.path,
                f"{file.path} has its kernels for {arch} in .kpack files that are not there.",
                evidence=", ".join(result.wanted) or "it names none",
            )
    if not wanted.gfx:
        names = kpack_paths(file.real)
        patterns = [posixpath.normpath(posixpath.join(file.folder, name.replace("@GFXARCH@", "*"))) for name in names]
        if not any(fnmatchcase(path, each) for each in patterns for path in (*subject.files, *subject.links)):
            yield KPACK.at(
                file.path,
                f"{file.path} has its kernels in .kpack files that are not there.",
                evidence=", ".join(patterns) or "it names none",
            )


def _differing(carriers: Sequence[File]) -> Iterator[Finding]:
    own = [file for file in carriers if file.of_llama and file.device and file.device.sass]
    sets = {tuple(arch for arch, _ in file.device.sass) for file in own if file.device}
    if len(sets) > 1:
        yield DIFFERS.at(
            own[0].path,
            "Files of one backend carry code for different archs.",
            evidence="; ".join(
                f"{file.path}: {', '.join(arch for arch, _ in file.device.sass)}" for file in own if file.device
            ),
        )
