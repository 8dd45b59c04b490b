"""``doctor``: what this host has and lacks for a target, and the facts of it that decide a design."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamabuild.commands.base import add_json, add_verb, emit, emit_json

if TYPE_CHECKING:
    import argparse

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
    parser.add_argument("--arch", help="the arch to try the compilers for (default: the GPU's)")
    add_toolkits(parser)
    add_json(parser)


def add_toolkits(parser: argparse.ArgumentParser) -> None:
    """Options that say where toolkits are."""
    parser.add_argument("--cuda-toolkit", metavar="system|wheels:X.Y|DIR", help="which CUDA toolkit to use")
    parser.add_argument(
        "--rocm", type=Path, metavar="DIR", help="a ROCm tree: AMD's, TheRock's, Debian's or the wheels'"
    )
    parser.add_argument("--vulkan-sdk", type=Path, metavar="DIR", help="a folder with glslc and the Vulkan headers")


def _run(args: argparse.Namespace, context: Context) -> int:
    from llamabuild.build.host import Host
    from llamabuild.build.hostfacts import read_host_facts
    from llamabuild.build.model import BuildOptions
    from llamabuild.build.toolchain import look

    host = Host.of(context)
    options = BuildOptions(cuda_toolkit=args.cuda_toolkit, rocm=args.rocm, vulkan_sdk=args.vulkan_sdk)
    target = _target(args.target or "cpu", args.arch, host)
    seen = look(target, host=host, context=context, options=options)
    tools, problems = seen.tools, (*seen.problems, *_without_kernels(target, seen, options))
    nvcc = next((tool for tool in tools if tool.name == "nvcc"), None) or _stray_nvcc(host, options)
    facts = read_host_facts(host, toolkit=nvcc.version if nvcc else "")
    rows = [_tool_row(tool.name, str(tool.path), tool.version, problems, host) for tool in tools]
    found = {tool.name for tool in tools}
    rows += [_tool_row(problem.tool, "", "", (problem,), host) for problem in problems if problem.tool not in found]
    document = {
        "ok": not problems,
        "target": target.name,
        "arch": target.arch,
        "tools": rows,
        "problems": [{"tool": problem.tool, "message": problem.message} for problem in problems],
        "host": _facts_json(facts),
    }
    if args.json:
        emit_json(document)
    else:
        emit("\n".join(_text(document, facts)))
    # Asked about a target, the exit code is the one that make would end with.
    return 5 if problems and args.target else 0


def _target(name: str, arch: str | None, host: Host) -> Any:
    from llamabuild.build.archs import check_archs
    from llamabuild.build.devices import find_gpus
    from llamabuild.build.model import Target
    from llamabuild.build.targets import STANDARD

    backends: Any = STANDARD[name]["backends"]
    kind = next((backend for backend in ("cuda", "hip") if backend in backends), None)
    chosen = ""
    if kind:
        vendor = "nvidia" if kind == "cuda" else "amd"
        archs = [gpu.arch for gpu in find_gpus(host) if gpu.vendor == vendor and gpu.arch]
        chosen = arch if arch and arch != "auto" else next(iter(archs), _DEFAULT_ARCHS[kind])
        check_archs(chosen, backend=kind, single=True, where="--arch")
    return Target(
        name=name,
        backends=backends,
        arch=chosen,
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
    from llamabuild.bundle.trees import rocm_vendor
    from llamabuild.core.errors import BundleError

    tree = options.rocm or next(iter(seen.runtime_folders), None)
    if "hip" not in target.backends or tree is None or seen.problems:
        return ()
    try:
        check_kernels(rocm_vendor(tree, arch=target.arch))
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
    name = " ".join(filter(None, (document["target"], document["arch"])))
    lines = [f"target {name}: {'ready' if document['ok'] else 'cannot be built on this host'}", ""]
    rows = document["tools"]
    table = [("tool", "version", "needed", "where")]
    table += [(row["name"], row["version"] or "-", row["needed"], row["path"] or "not found") for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    lines += ["  ".join(f"{cell:{width}}" for cell, width in zip(row, (*widths, 0), strict=True)) for row in table]
    for row in document["tools"]:
        if not row["ok"]:
            lines += ["", f"{row['name']}: {row['problem']}", f"  to get it: {row['install']}"]
    memory = f"{facts.memory_bytes / _GIB:.0f} GiB" if facts.memory_bytes else "unknown"
    lines += ["", f"host: {facts.distribution}, kernel {facts.kernel}, {facts.machine}, {facts.cores} cores, {memory}"]
    lines += [line for gpu in facts.gpus for line in _gpu_text(gpu)] or ["no GPU"]
    lines += [f"note: {note}" for note in facts.notes]
    lines += [f"not read: {what}" for what in facts.unread]
    return lines


def _gpu_text(facts: GpuFacts) -> list[str]:
    gpu = facts.gpu
    memory = f"{gpu.memory_bytes / _GIB:.1f} GiB" if gpu.memory_bytes else "memory unknown"
    parts = [gpu.name, gpu.arch or "arch unknown", memory, *([f"driver {gpu.driver}"] if gpu.driver else [])]
    lines = [f"GPU {gpu.bus or '-'}: {', '.join(parts)}"]
    if facts.link:
        link = facts.link
        lines.append(f"  PCIe: x{link.width} at {link.speed} now, x{link.max_width} at {link.max_speed} at most")
    meaning = {"off": "never any collectives over PCIe", "enabled": "collectives can work", "unknown": "not read"}
    lines.append(f"  PCIe atomics: {facts.atomics} ({meaning[facts.atomics]})")
    if facts.driver_floor:
        lines.append(f"  driver floor of the toolkit: {facts.driver_floor}{'' if facts.driver_ok else ' - too old'}")
    return lines
