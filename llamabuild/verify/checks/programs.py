"""Programs and plugins as they run: started elsewhere, they answer, tell their version and load their plugins."""

from __future__ import annotations

import re
import signal
import stat
from typing import TYPE_CHECKING

from llamabuild.verify.build_info import cmake_entries
from llamabuild.verify.inspect.symbols import build_identity, holds_backend
from llamabuild.verify.kinds import Kind
from llamabuild.verify.subject import backend_of, is_plugin_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llamabuild.verify.findings import Finding
    from llamabuild.verify.relocate import Started
    from llamabuild.verify.subject import File, Subject

MISSING = Kind(
    "program.missing",
    "error",
    "A program that the recipe lists is not in bin/.",
    "Build it (it is a CMake target of that name) and stage it.",
)
NOT_EXECUTABLE = Kind(
    "program.not-executable", "error", "A program's execute permission is not set for everybody.", "Set mode 0755."
)
FAILS = Kind(
    "program.fails",
    "error",
    "A program that was moved to another path and started with an empty environment did not answer and end with "
    "status 0.",
    "Read the evidence: a library that is not found has a finding of its own.",
)
VERSION = Kind(
    "program.version",
    "error",
    "A program tells another build number or commit than the bundle claims. A shallow clone counts 'build 1'; a "
    "library of another build tells that one's.",
    "Pass -DLLAMA_BUILD_NUMBER and -DLLAMA_BUILD_COMMIT, and take all files from one build.",
)
BUILD_ONE = Kind(
    "program.build-one",
    "warning",
    "The binaries say that they are build 1, which upstream's count gives in a shallow clone: nobody can tell which "
    "build this is.",
    "Pass -DLLAMA_BUILD_NUMBER and -DLLAMA_BUILD_COMMIT, or fetch the whole history.",
)
NOT_RUN = Kind(
    "program.not-run",
    "warning",
    "Programs were not started, so nothing is known about whether they can be.",
    "Verify on a machine of that kind, and without --no-run.",
)
SAME_USER = Kind(
    "program.same-user",
    "note",
    "Programs were started as the present user: becoming another one takes root's rights, and a place others can "
    "reach.",
    "Verify as root, in a container for example, to try it.",
)
PLUGIN_FAILS = Kind(
    "plugin.not-loaded",
    "error",
    "A plugin beside the programs was not loaded by any of them. In a release build ggml says nothing then; the device "
    "is just missing.",
    "Start the program with LD_DEBUG=libs and look for the plugin's name.",
)
PLUGIN_UNTRIED = Kind(
    "plugin.not-tried",
    "note",
    "A plugin could not be loaded here because its driver, or a part of a split bundle, is not on this machine, so "
    "loading it is untested.",
    "Run llamabuild smoke on a machine with that GPU.",
)
PLUGIN_MISPLACED = Kind(
    "plugin.misplaced",
    "error",
    "A plugin lies where ggml does not look: it looks in the folder of the running program (and in the current one).",
    "Put it beside the programs, in bin/.",
)
COMPILED_IN = Kind(
    "plugin.compiled-in-folder",
    "error",
    "GGML_BACKEND_DIR was set: ggml looks for plugins in that folder of the building machine before it looks beside "
    "the programs, so another build's plugins can get in front.",
    "Leave GGML_BACKEND_DIR empty.",
)
PLUGIN_NAME = Kind(
    "plugin.name",
    "error",
    "A backend's library has a name that ggml never opens: it opens libggml-<name>-*.so, then libggml-<name>.so. A "
    "version behind the .so, or the hash that a wheel repair tool puts in, hides it.",
    "Name it libggml-<name>.so, or add a link of that name.",
)
PLUGIN_MISSING = Kind(
    "plugin.missing",
    "error",
    "A backend that was promised has no library in the bundle, and is linked into none of its programs.",
    "See whether configure took the backend: llamabuild inspect on the build folder.",
)
PLUGIN_UNDECLARED = Kind(
    "plugin.undeclared",
    "error",
    "The bundle holds a backend that nobody promised: a file of another target's bundle, or an option on by accident.",
    "Remove it, or name the backend in the recipe.",
)

KINDS = (
    MISSING,
    NOT_EXECUTABLE,
    FAILS,
    VERSION,
    BUILD_ONE,
    NOT_RUN,
    SAME_USER,
    PLUGIN_FAILS,
    PLUGIN_UNTRIED,
    PLUGIN_MISPLACED,
    COMPILED_IN,
    PLUGIN_NAME,
    PLUGIN_MISSING,
    PLUGIN_UNDECLARED,
)

ARGUMENTS = (("--version",), ("--help",), ("--list-devices",))
"""What each of llama.cpp's programs is started with. ``--list-devices`` is asked of those whose help names it."""

_LOADED = re.compile(r"loaded \S+ backend from (\S.*)$", re.MULTILINE)
_BACKEND_FILE = re.compile(r"^libggml-(cpu|cuda|hip|vulkan|metal|sycl|opencl|rpc|blas|musa|cann|kompute)\b")
_LOADER = "error while loading shared libraries"
_BUILD = re.compile(r"build:?\s+(\d+)|version:\s+(\d+)\s+\(")


def check(subject: Subject) -> Iterator[Finding]:
    """What can be told of programs and plugins without starting anything."""
    here = {file.path for file in subject.programs}
    for name in subject.expected.programs:
        if f"bin/{name}" not in here and not any(path.endswith(f"/{name}") for path in here):
            yield MISSING.at(f"bin/{name}", f"The program {name} is not in bin/.", evidence=subject.expected.source)
    for file in subject.programs:
        if not is_executable_by_all(file.mode):
            yield NOT_EXECUTABLE.at(
                file.path, f"{file.path} is not executable for everybody.", evidence=stat.filemode(file.mode)
            )
    folder = cmake_entries(subject.build_info or {}).get("GGML_BACKEND_DIR", "")
    if folder:
        yield COMPILED_IN.at("", f"Plugins are looked for in {folder} first, wherever the bundle is.")
    yield from _identity(subject)
    yield from _plugin_places(subject)
    yield from _plugin_set(subject)


def is_executable_by_all(mode: int) -> bool:
    """Whether everybody may start a file of this mode."""
    executable = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
    return mode & executable == executable


def _identity(subject: Subject) -> Iterator[Finding]:
    """The build number and commit in the common library's data, which need no program to run."""
    expected = subject.expected
    for file in subject.elves:
        if not file.name.startswith("libllama-common"):
            continue
        number, commit = build_identity(file.real)
        told = f"build {number}, commit {commit}"
        if number == 1 and expected.build_number != 1:
            yield BUILD_ONE.at(file.path, f"{file.path} says that it is build 1.", evidence=told)
        if number is not None and expected.build_number is not None and number != expected.build_number:
            yield VERSION.at(file.path, f"{file.path} does not tell build {expected.build_number}.", evidence=told)
        elif commit and expected.commit and not expected.commit.startswith(commit):
            yield VERSION.at(file.path, f"{file.path} does not tell commit {expected.commit[:9]}.", evidence=told)


def _plugin_places(subject: Subject) -> Iterator[Finding]:
    homes = {file.folder for file in subject.programs}
    names = {file.name for file in subject.plugins} | {path.rpartition("/")[2] for path in subject.links}
    for file in subject.elves:
        found = _BACKEND_FILE.match(file.name)
        if not found or (file.elf and file.elf.kind != "shared"):
            continue
        linked = _is_linked(subject, file)
        hashed = re.search(r"-[0-9a-f]{8}\.so$", file.name) and not linked
        if not file.name.endswith(".so") and f"libggml-{found[1]}.so" not in names:
            yield PLUGIN_NAME.at(file.path, f"{file.path} has a name that ggml does not look for.")
        elif hashed:
            yield PLUGIN_NAME.at(file.path, f"{file.path} has a hash in its name.", severity="warning")
        elif homes and file.folder not in homes and not linked:
            yield PLUGIN_MISPLACED.at(
                file.path, f"{file.path} is not beside the programs.", evidence=f"programs: {', '.join(sorted(homes))}"
            )


def _is_linked(subject: Subject, file: File) -> bool:
    """Whether another file of the bundle names it as NEEDED: then it is a library like any other, not a plugin."""
    names = {file.name, file.elf.soname if file.elf else None}
    return any(other.elf and names & set(other.elf.needed) for other in subject.elves)


def _plugin_set(subject: Subject) -> Iterator[Finding]:
    promised = subject.expected.backends
    if promised is None:
        return
    here = {backend_of(file.name): file for file in subject.elves if _BACKEND_FILE.match(file.name)}
    for name in promised:
        if name not in here and not _is_linked_in(subject, name):
            yield PLUGIN_MISSING.at(
                f"bin/libggml-{name}.so",
                f"The backend {name} has no library in the bundle, and no program has it linked in.",
            )
    cpus = [file for file in subject.elves if file.name.startswith("libggml-cpu-")]
    if subject.expected.cpu_variants and not cpus:
        yield PLUGIN_MISSING.at(
            "bin/libggml-cpu.so", "CPU variants were promised, and there is one CPU plugin for all."
        )
    for name, file in sorted(here.items()):
        if name not in {*promised, "cpu"}:
            yield PLUGIN_UNDECLARED.at(
                file.path, f"{file.path} is a backend that {subject.expected.source} does not name."
            )


def _is_linked_in(subject: Subject, name: str) -> bool:
    """Whether the programs, or libllama, hold the backend themselves: a build without shared libraries has no other.

    CUDA's sources are HIP's too; the code for the GPU tells which of them it is.
    """
    code = {"cuda": ("sass", "ptx"), "hip": ("gfx",)}.get(name, ())
    return any(
        file.of_llama
        and not is_plugin_name(file.name)
        and (not code or any(getattr(file.device, kind, ()) for kind in code))
        and holds_backend(file.real, name)
        for file in subject.elves
    )


def judge_runs(subject: Subject, runs: Sequence[Started]) -> Iterator[Finding]:
    """Judge what the started programs answered."""
    started = {file.path: file for file in subject.programs}
    for run in runs:
        if run.refused and is_executable_by_all(started[run.program].mode):
            yield NOT_RUN.at(
                run.program,
                f"{run.program} was not started: {run.error}.",
                hint="Set TMPDIR to a folder without noexec.",
            )
        elif not run.ok:
            yield FAILS.at(
                run.program,
                f"{run.program} {' '.join(run.arguments)} {_how(run)}.",
                evidence=" | ".join(run.output.strip().splitlines()[-3:]),
                # Not every program of somebody else's bundle knows these options; each has to be loaded, though.
                severity=None if subject.own or _was_not_loaded(run) else "note",
            )
    yield from _versions(subject, [run for run in runs if run.ok and run.arguments == ("--version",)])
    yield from _loads(subject, runs)


def _was_not_loaded(run: Started) -> bool:
    """Whether it did not come to run its own code to an end: 127 is the loader's status."""
    return run.returncode is None or run.returncode < 0 or run.returncode == 127 or _LOADER in run.output


def _how(run: Started) -> str:
    if run.returncode is None:
        return f"could not be run: {run.error}"
    if run.returncode < 0:
        return f"was ended by a signal ({signal.strsignal(-run.returncode) or -run.returncode})"
    return f"ended with status {run.returncode}"


def _versions(subject: Subject, runs: Sequence[Started]) -> Iterator[Finding]:
    number, commit = subject.expected.build_number, subject.expected.commit
    for run in runs:
        line = next((line for line in run.output.splitlines() if line.startswith("version:")), "")
        told = _BUILD.search(line)
        if number is not None and (not told or int(told[1] or told[2]) != number):
            yield VERSION.at(
                run.program, f"{run.program} does not tell build {number}.", evidence=line or run.output[-200:]
            )
        elif commit and not any(commit.startswith(word) for word in re.findall(r"\b[0-9a-f]{7,40}\b", line)):
            yield VERSION.at(run.program, f"{run.program} does not tell commit {commit[:9]}.", evidence=line)


def _loads(subject: Subject, runs: Sequence[Started]) -> Iterator[Finding]:
    listed = [run for run in runs if run.ok and run.arguments == ("--list-devices",)]
    if not listed:
        return
    loaded = {match.rpartition("/")[2] for run in listed for match in _LOADED.findall(run.output)}
    homes = {file.folder for file in subject.programs}
    here = [file for file in subject.plugins if file.folder in homes and not _is_linked(subject, file)]
    families: dict[str, list[File]] = {}
    for file in here:
        families.setdefault(backend_of(file.name), []).append(file)
    for name, files in sorted(families.items()):
        # Of the variants of one backend (libggml-cpu-zen4.so, …) ggml loads the one that suits the machine best.
        if any(file.name in loaded for file in files):
            continue
        apart = {path.rpartition("/")[2] for paths in subject.absent_parts.values() for path in paths}
        drivers = {each for file in files for each in _absent_from_host(subject, file)}
        drivers |= {each for file in files if file.elf for each in file.elf.needed if each in apart}
        if drivers:
            yield PLUGIN_UNTRIED.at(
                files[0].path,
                f"{files[0].path} could not be loaded here.",
                evidence=f"not on this machine: {', '.join(sorted(drivers))}",
            )
        else:
            tail = " | ".join(listed[0].output.strip().splitlines()[-3:])
            yield PLUGIN_FAILS.at(files[0].path, f"No program loaded the {name} plugin {files[0].path}.", evidence=tail)


def _absent_from_host(subject: Subject, file: File) -> list[str]:
    """What the file needs of the host's driver, or of a runtime that is left to the host, and this host lacks."""
    from llamabuild.elf.closure import system_folders
    from llamabuild.elf.policy import LibraryPolicy

    if file.elf is None:
        return []
    folders = system_folders(machine=file.elf.machine)
    policy = LibraryPolicy()
    return [
        name
        for name in file.elf.needed
        if (policy.classify(name) == "driver" or subject.left_to_host(name))
        and not any((folder / name).exists() for folder in folders)
    ]
