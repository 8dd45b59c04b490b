"""Preflight for CUDA: find nvcc and its toolkit, and compile, for the target's arch, a program that calls cuBLAS."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.build.probe import Checked, Problem, find_tool, first_errors

if TYPE_CHECKING:
    from llamabuild.build.host import Host
    from llamabuild.build.model import BuildOptions, Target, Tool
    from llamabuild.core.process import Completed

_USUAL_PLACES = ("/usr/local/cuda", "/opt/cuda")
_TRIAL = """#include <cublas_v2.h>
#include <cuda.h>
__global__ void kernel(float * x) { x[threadIdx.x] *= 2.0f; }
int main() {
    cublasHandle_t handle;
    kernel<<<1, 1>>>(nullptr);
    return cublasCreate(&handle) || cuInit(0);
}
"""
_NCCL_TRIAL = "#include <nccl.h>\nint main() { int version; return ncclGetVersion(&version); }\n"
_OLDER_COMPILERS = tuple(f"g++-{release}" for release in range(15, 8, -1))
"""Host compilers that are tried, newest first, when nvcc refuses the default one."""

_LEFT_BEHIND = frozenset({"50", "52", "53", "60", "61", "62", "70", "72"})
"""Archs that CUDA 12 compiles for and CUDA 13 does not (``nvcc --list-gpu-arch`` of both)."""
_NEW = frozenset({"88", "100", "103", "110", "120", "121"})
"""Archs of CUDA 13.0 that one or another toolkit before it lacks."""


def gencode_flags(arch: str) -> list[str]:
    """Nvcc's flags for archs as CMake would pass them (``86``: SASS and PTX; ``-real``, ``-virtual``: one of them).

    A plain 12X becomes 12Xa, as ggml's own lists make it.
    """
    flags = []
    for name in re.split(r"[,;]", arch):
        number, _, kind = name.strip().partition("-")
        number = re.sub(r"^(12\d)$", r"\1a", number)
        codes = {"real": [f"sm_{number}"], "virtual": [f"compute_{number}"]}
        code = ",".join(codes.get(kind, [f"compute_{number}", f"sm_{number}"]))
        flags.append(f"-gencode=arch=compute_{number},code=[{code}]")
    return flags


def check_cuda(target: Target, host: Host, options: BuildOptions, *, root: Path | None) -> Checked:
    """Find and try the CUDA toolkit: the one at ``root`` (assembled, or named by a person), else an installed one."""
    nvcc = find_nvcc(host, options, root)
    if nvcc is None:
        named = _named(host, options, root)
        where = root or f"PATH, {' and '.join(_USUAL_PLACES)}"
        what = f"CUDACXX={named} is not a program" if named else f"nvcc was not found in {where}"
        return Checked(problems=(Problem("nvcc", f"no CUDA compiler: {what}", package="cuda"),))
    toolkit = _toolkit_of(nvcc, host)
    entries = {"CMAKE_CUDA_COMPILER": str(nvcc.path), "CUDAToolkit_ROOT": str(toolkit)}
    argv = [str(nvcc.path), *gencode_flags(target.arch), f"-L{toolkit}/lib64/stubs"]
    libraries = ["{source}", "-o", "{out}", "-lcublas", "-lcuda"]
    done = host.attempt([*argv, *libraries], name="trial.cu", text=_TRIAL)
    if not done.ok and _refuses_host_compiler(done):
        for path in filter(None, map(host.which, _OLDER_COMPILERS)):
            again = host.attempt([*argv, "-ccbin", str(path), *libraries], name="trial.cu", text=_TRIAL)
            if again.ok:
                entries["CMAKE_CUDA_HOST_COMPILER"] = str(path)
                done = again
                break
    problems = () if done.ok else (_explain(done, nvcc, target, host),)
    if target.nccl and not problems:
        flags = ["{source}", "-o", "{out}", "-lnccl"]
        tried = host.attempt([str(nvcc.path), *flags], name="trial.cpp", text=_NCCL_TRIAL)
        if not tried.ok:
            problems = (
                Problem("NCCL", "the recipe wants NCCL, and it does not link", "nccl", first_errors(tried.tail)),
            )
    return Checked(
        tools=(nvcc,),
        problems=problems,
        entries=tuple(entries.items()),
        runtime_folders=(toolkit / "lib64",),
    )


def find_nvcc(host: Host, options: BuildOptions, root: Path | None) -> Tool | None:
    """The CUDA compiler: of the toolkit at ``root``, of ``CUDACXX``, on ``PATH``, or at the usual places."""
    named = _named(host, options, root)
    if root is not None:
        places: tuple[str, ...] = (str(root / "bin/nvcc"),)
    elif named:
        places = (named,)
    else:
        places = ("nvcc", *(f"{place}/bin/nvcc" for place in _USUAL_PLACES))
    tool = find_tool("nvcc", *places, host=host)
    if tool is None:
        return None
    # "Cuda compilation tools, release 13.0, V13.0.88": the first number is the wrong one in some releases.
    text = host.run([str(tool.path), "--version"]).text
    found = re.search(r"V(\d+(?:\.\d+)+)", text)
    return type(tool)(name="nvcc", path=tool.path, version=found[1] if found else tool.version)


def _named(host: Host, options: BuildOptions, root: Path | None) -> str:
    """The value of ``CUDACXX`` where it counts: a toolkit that is chosen on the command line comes first."""
    return host.env.get("CUDACXX", "").strip() if root is None and options.cuda_toolkit is None else ""


def _toolkit_of(nvcc: Tool, host: Host) -> Path:
    """The toolkit's folder as nvcc itself says it, which CMake asks too: what lies on PATH may be a wrapper script."""
    told = re.search(r"^#\$ TOP=(/.+)$", host.run([str(nvcc.path), "--dryrun", "none.cu"]).text, re.MULTILINE)
    if told:
        return Path(os.path.normpath(host.resolve(told[1].strip())))
    return Path(host.resolve(str(nvcc.path))).parent.parent


def _refuses_host_compiler(done: Completed) -> bool:
    return "unsupported GNU version" in done.text or "unsupported clang version" in done.text


def _explain(done: Completed, nvcc: Tool, target: Target, host: Host) -> Problem:
    evidence = first_errors(done.tail)
    if _refuses_host_compiler(done):
        limit = re.search(r"later than (\d+)", done.text)
        message = f"nvcc {nvcc.version} does not take this host compiler"
        if limit is None:
            return Problem("host compiler", message, "cxx", evidence)
        return Problem("host compiler", f"{message}: gcc {limit[1]} is its limit", f"g++-{limit[1]}", evidence)
    if "Unsupported gpu architecture" in done.text:
        known = re.findall(r"^compute_(\d+)", host.run([str(nvcc.path), "--list-gpu-arch"]).text, re.MULTILINE)
        unknown = set(re.findall(r"\d+", target.arch)) - set(known)
        before_13 = re.match(r"(?:\d|1[0-2])\.", nvcc.version) is not None
        package = "cuda-arch"
        if not before_13 and unknown & _LEFT_BEHIND:
            package = "cuda-12"
        elif before_13 and unknown & _NEW:
            package = "cuda-newer"
        only = f"; it can for {', '.join(known)}" if known else ""
        return Problem("nvcc", f"nvcc {nvcc.version} cannot compile for arch {target.arch}{only}", package, evidence)
    if re.search(r"cublas_v2\.h|lcublas", done.text):
        return Problem("cuBLAS", f"the toolkit of {nvcc.path} has no cuBLAS", "cuda", evidence)
    if re.search(r"lcuda\b", done.text):
        return Problem("libcuda", f"the toolkit of {nvcc.path} has no driver library to link against", "cuda", evidence)
    return Problem("nvcc", f"nvcc {nvcc.version} does not compile a program for arch {target.arch}", "cuda", evidence)
