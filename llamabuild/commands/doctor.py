"""``doctor``: what this host has and lacks for a target, and the facts of it that decide a design."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from llamabuild.commands.base import add_json, add_verb, emit, emit_json, folder, given

if TYPE_CHECKING:
    import argparse

    from llamabuild.build.devices import Gpu
    from llamabuild.build.host import Host
    from llamabuild.build.hostfacts import GpuFacts, HostFacts
    from llamabuild.build.model import BuildOptions, Target
    from llamabuild.build.probe import Checked, Problem
    from llamabuild.commands.base import Subparsers
    from llamabuild.core.context import Context

_TARGETS = ("cpu", "cpu-all", "cuda", "vulkan", "cuda-vulkan", "hip")
_NEEDED = {
    "cmake": "3.21",
    "ninja": "1.10",
    "ccache": "4.0",
    "cc": "C11, tried",
    "cxx": "C++17, tried",
    "strip": "any",
    "nvcc": "12.0; 12.8 for Blackwell; tried for the arch",
    "glslc": "2023.8 (GL_KHR_cooperative_matrix), tried",
    "hipcc": "tried for the arch",
    "rocm": "ROCm 6.1",
    "ROCm": "ROCm 6.1",
}
"""What v0.5.0 needs of each tool; what is marked so is tried, not read off the version."""
_PACKAGES = {"nvcc": "cuda", "hipcc": "hip"}
"""Keys of the install table, where they are not the tool's name."""
_DEFAULT_ARCHS = {"cuda": "86", "hip": "gfx1100"}
"""Tried where the host has no GPU to take the arch from, and none is given."""
_ATOMICS = {
    ("amd", "off"): " (never any collectives over PCIe)",
    ("amd", "enabled"): " (collectives can work)",
}
"""What the setting means for RCCL; NCCL does without them."""
_GIB = 1024**3


def register(verbs: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "doctor",
        _run,
        summary="say what this host has, and what it lacks for a target",
        example="llamabuild doctor --target cuda-vulkan",
    )
    parser.add_argument("--target", choices=_TARGETS, help="the target to look for (default: cpu, and what GPUs allow)")
    parser.add_argument("--arch", help="the arch to try the compilers for, with --target (default: the GPU's)")
    add_toolkits(parser)
    add_json(parser)


def add_toolkits(parser: argparse.ArgumentParser) -> None:
    """Options that say where toolkits are."""
    parser.add_argument("--cuda-toolkit", type=given, metavar="system|wheels:X.Y|DIR", help="which CUDA toolkit to use")
    parser.add_argument(
        "--rocm", type=folder, metavar="DIR", help="a ROCm tree: AMD's, TheRock's, Debian's or the wheels'"
    )
    parser.add_argument("--vulkan-sdk", type=folder, metavar="DIR", help="a folder with glslc and the Vulkan headers")


def _run(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.build.devices import find_gpus
    from llamabuild.build.host import Host
    from llamabuild.build.hostfacts import read_host_facts
    from llamabuild.build.model import BuildOptions

    host = Host.of(context)
    options = BuildOptions(cuda_toolkit=args.cuda_toolkit, rocm=args.rocm, vulkan_sdk=args.vulkan_sdk)
    gpus = find_gpus(host)
    asked = [_asked(args.target, args.arch, gpus, host)] if args.target else _possible(args.arch, gpus, host)
    checked = [_check(target, note, host, context, options) for target, note in asked]
    nvcc = [row["version"] for each in checked for row in each["tools"] if row["name"] == "nvcc" and row["version"]]
    stray = None if nvcc else _stray_nvcc(host, options)
    facts = read_host_facts(host, toolkit=nvcc[0] if nvcc else stray.version if stray else "")
    document = {**checked[0], "targets": checked, "host": _facts_json(facts)}
    if args.json:
        emit_json(document)
    else:
        emit("\n".join(_text(document, facts)))
    # Asked about a target, the exit code is the one that make would end with; make looks at the free disk space too.
    return 5 if not document["ok"] and args.target else 0


def _check(target: Target, note: str, host: Host, context: Context, options: BuildOptions) -> dict[str, Any]:
    from llamabuild.build.toolchain import look

    seen = look(target, host=host, context=context, options=options)
    problems = (*seen.problems, *_without_kernels(target, seen, options))
    rows = [_tool_row(tool.name, str(tool.path), tool.version, problems, host) for tool in seen.tools]
    found = {tool.name for tool in seen.tools}
    rows += [_tool_row(problem.tool, "", "", (problem,), host) for problem in problems if problem.tool not in found]
    return {
        "ok": not problems,
        "target": target.name,
        "arch": target.arch,
        "note": note,
        "tools": rows,
        "problems": [{"tool": problem.tool, "message": problem.message} for problem in problems],
    }


def _asked(name: str, arch: str | None, gpus: tuple[Gpu, ...], host: Host) -> tuple[Target, str]:
    """The target that was asked for, and what is to be said about its arch.

    Raises UsageError for an arch that make would refuse, and where several different GPUs leave the choice to a person.
    """
    from llamabuild.build.archs import check_archs
    from llamabuild.build.devices import detect_arch
    from llamabuild.core.errors import UsageError

    kind = _kind(name)
    if arch is not None and kind is None:
        raise UsageError(f"--arch for target {name}: it has no backend that takes an arch.", hint="Leave it out.")
    if kind is None:
        return _target(name, ""), ""
    if arch == "auto":
        return _target(name, detect_arch(kind, host)), ""
    if arch is not None:
        check_archs(arch, backend=kind, single=True, where=f"--arch for target {name}")
        return _target(name, arch), ""
    if any(gpu.arch for gpu in _gpus(kind, gpus)):
        return _target(name, detect_arch(kind, host, asked=f"--target {name}")), ""
    return _target(name, _DEFAULT_ARCHS[kind]), _guessed(kind, gpus, host)


def _possible(arch: str | None, gpus: tuple[Gpu, ...], host: Host) -> list[tuple[Target, str]]:
    """The CPU, and each kind of GPU in this host with CUDA or HIP."""
    from llamabuild.core.errors import UsageError

    if arch is not None:
        raise UsageError("--arch says nothing without a target.", hint="Name one: --target cuda, or --target hip.")
    targets = [(_target("cpu", ""), "")]
    for kind in ("cuda", "hip"):
        here = _gpus(kind, gpus)
        archs = sorted({gpu.arch for gpu in here if gpu.arch})
        targets += [(_target(kind, arch), "") for arch in archs]
        if here and not archs:
            targets.append((_target(kind, _DEFAULT_ARCHS[kind]), _guessed(kind, gpus, host)))
    return targets


def _guessed(kind: str, gpus: tuple[Gpu, ...], host: Host) -> str:
    """Why the arch that was tried is none of this host."""
    from llamabuild.build.devices import without_arch

    maker = "NVIDIA" if kind == "cuda" else "AMD"
    why = without_arch(kind, host) if _gpus(kind, gpus) else f"no {maker} GPU here"
    return f"{why}: tried for {_DEFAULT_ARCHS[kind]}"


def _gpus(kind: str, gpus: tuple[Gpu, ...]) -> list[Gpu]:
    """Those that ``cuda`` or ``hip`` is for."""
    vendor = "nvidia" if kind == "cuda" else "amd"
    return [gpu for gpu in gpus if gpu.vendor == vendor]


def _kind(name: str) -> str | None:
    """The backend of a target that takes an arch."""
    from llamabuild.build.targets import STANDARD

    backends: Any = STANDARD[name]["backends"]
    return next((backend for backend in ("cuda", "hip") if backend in backends), None)


def _target(name: str, arch: str) -> Target:
    from llamabuild.build.model import Target
    from llamabuild.build.targets import STANDARD

    backends: Any = STANDARD[name]["backends"]
    return Target(
        name=name,
        backends=backends,
        arch=arch,
        entries=(),
        programs=(),
        rpath="rpath",
        glibc_floor=None,
        rccl=False,
        nccl=False,
    )


def _without_kernels(target: Target, seen: Checked, options: BuildOptions) -> tuple[Problem, ...]:
    """A ROCm that compiles for an arch may have no kernels for it, and is refused by ``make`` then."""
    from llamabuild.build.probe import Problem
    from llamabuild.bundle.plan import check_kernels
    from llamabuild.bundle.trees import target_vendor
    from llamabuild.core.errors import BundleError

    if seen.problems:
        return ()
    try:
        vendor = target_vendor(target, rocm=options.rocm, folders=seen.runtime_folders)
        if vendor is not None:
            check_kernels(vendor)
    except BundleError as failure:
        return (Problem("rocBLAS", failure.message.rstrip("."), "rocblas-kernels"),)
    return ()


def _stray_nvcc(host: Host, options: BuildOptions) -> Any:
    from llamabuild.build.cuda import find_nvcc

    return find_nvcc(host, options, None)


def _tool_row(name: str, path: str, version: str, problems: tuple[Problem, ...], host: Host) -> dict[str, Any]:
    from llamabuild.build.packages import install_line

    wrong = [problem for problem in problems if problem.tool == name]
    packages = [problem.package for problem in wrong] or [_PACKAGES.get(name, name)]
    return {
        "name": name,
        "version": version,
        "path": path,
        "needed": _NEEDED.get(name, "tried"),
        "ok": not wrong,
        "problem": "; ".join(problem.message for problem in wrong),
        "install": install_line(packages, host),
    }


def _facts_json(facts: HostFacts) -> dict[str, Any]:
    document = asdict(facts)
    for entry, gpu in zip(document["gpus"], facts.gpus, strict=True):
        entry["driver_ok"] = gpu.driver_ok
        entry["link_reduced"] = gpu.link.reduced if gpu.link else None
    return document


def _text(document: dict[str, Any], facts: HostFacts) -> list[str]:
    lines = [line for checked in document["targets"] for line in (*_target_text(checked), "")]
    memory = f"{facts.memory_bytes / _GIB:.0f} GiB" if facts.memory_bytes else "unknown"
    lines += [f"host: {facts.distribution}, kernel {facts.kernel}, {facts.machine}, {facts.cores} cores, {memory}"]
    lines += [line for gpu in facts.gpus for line in _gpu_text(gpu)] or ["no GPU"]
    lines += [f"note: {note}" for note in facts.notes]
    lines += [f"not read: {what}" for what in facts.unread]
    return lines


def _target_text(checked: dict[str, Any]) -> list[str]:
    name = " ".join(filter(None, (checked["target"], checked["arch"])))
    lines = [f"target {name}: {'ready' if checked['ok'] else 'cannot be built on this host'}"]
    lines += [f"note: {checked['note']}"] if checked["note"] else []
    rows = checked["tools"]
    table = [("tool", "version", "needed", "where")]
    table += [(row["name"], row["version"] or "-", row["needed"], row["path"] or "not found") for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    lines.append("")
    lines += ["  ".join(f"{cell:{width}}" for cell, width in zip(row, (*widths, 0), strict=True)) for row in table]
    for row in rows:
        if not row["ok"]:
            lines += ["", f"{row['name']}: {row['problem']}", f"  to get it: {row['install']}"]
    return lines


def _gpu_text(facts: GpuFacts) -> list[str]:
    gpu = facts.gpu
    memory = f"{gpu.memory_bytes / _GIB:.1f} GiB" if gpu.memory_bytes else "memory unknown"
    parts = [gpu.name, gpu.arch or "arch unknown", memory, *([f"driver {gpu.driver}"] if gpu.driver else [])]
    lines = [f"GPU {gpu.bus or '-'}: {', '.join(parts)}"]
    if facts.link:
        link = facts.link
        now = f"x{link.width} at {link.speed} now (the speed falls at idle)"
        lines.append(f"  PCIe: {now}, x{link.max_width} at {link.max_speed} at most")
    lines.append(f"  PCIe atomics: {facts.atomics}{_ATOMICS.get((gpu.vendor, facts.atomics), '')}")
    if facts.driver_floor:
        old = " - too old" if facts.driver_ok is False else ""
        lines.append(f"  driver floor of the toolkit: {facts.driver_floor}{old}")
    return lines
