"""Preflight for HIP: a program for the target's gfx arch, compiled and linked against rocBLAS and hipBLAS."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.build.model import Tool
from llamabuild.build.probe import Checked, Problem, find_tool, first_errors
from llamabuild.build.rocm import find_rocm
from llamabuild.core.errors import ToolError

if TYPE_CHECKING:
    from llamabuild.build.host import Host
    from llamabuild.build.model import BuildOptions, Target
    from llamabuild.build.rocm import RocmTree

_USUAL_PLACES = (Path("/opt/rocm"), Path("/usr"))
_TRIAL = """#include <hip/hip_runtime.h>
#include <hipblas/hipblas.h>
#include <rocblas/rocblas.h>
__global__ void kernel(float * x) { x[threadIdx.x] *= 2.0f; }
int main() {
    hipblasHandle_t handle;
    kernel<<<1, 1>>>(nullptr);
    rocblas_initialize();
    return hipblasCreate(&handle);
}
"""


def check_hip(target: Target, host: Host, options: BuildOptions) -> Checked:
    """Find and try the ROCm tree: ``--rocm``, else ``ROCM_PATH``, else where packages put it."""
    tree = _find_tree(host, options)
    if isinstance(tree, Problem):
        return Checked(problems=(tree,))
    if tree.prefix is None:
        message = f"{tree.root} holds ROCm's run-time libraries alone: no include/hip/hip_runtime.h is below it"
        return Checked(problems=(Problem("ROCm", message, _development(tree)),))
    prefix = tree.prefix
    compiler = find_tool("hipcc", str(tree.clang or "clang++"), host=host)
    if compiler is None:
        message = f"{tree.root} has no clang++ that runs"
        return Checked(problems=(Problem("HIP compiler", message, _development(tree)),))
    libraries = ["-lamdhip64", "-lhipblas", "-lrocblas", *(["-lrccl"] if target.rccl else [])]
    places = [f"-I{prefix}/include", *(f"-L{folder}" for folder in tree.library_folders)]
    # Debian's clang brings the device libraries itself, and looks in vain below a path that it is given, be it by the
    # option or by ROCM_PATH.
    own = tree.layout != "debian"
    rocm_path = [f"--rocm-path={prefix}"] if own else []
    argv = [
        str(compiler.path),
        "-x",
        "hip",
        f"--offload-arch={target.arch}",
        *rocm_path,
        "{source}",
        "-o",
        "{out}",
        *places,
    ]
    # A tree that was upgraded in place is tried again, and what it built before is not taken for its work.
    release = Tool(name="rocm", path=tree.root, version=tree.version or "unknown")
    done = host.attempt([*argv, *libraries], name="trial.hip", text=f"// ROCm {release.version}\n{_TRIAL}")
    return Checked(
        tools=(compiler, release),
        problems=() if done.ok else (_explain(done.tail, target, tree),),
        entries=(
            ("CMAKE_HIP_COMPILER", str(compiler.path)),
            ("CMAKE_PREFIX_PATH", str(prefix)),
            *([("CMAKE_HIP_COMPILER_ROCM_ROOT", str(prefix))] if own else []),
        ),
        env=(("ROCM_PATH", str(prefix)),) if own else (),
        runtime_folders=tree.library_folders,
    )


def _find_tree(host: Host, options: BuildOptions) -> RocmTree | Problem:
    given = options.rocm or (Path(host.env["ROCM_PATH"]) if host.env.get("ROCM_PATH") else None)
    if given is not None:
        try:
            return find_rocm(given)
        except ToolError as failure:
            return Problem("ROCm", failure.message.rstrip("."), "rocm")
    for place in _USUAL_PLACES:
        try:
            return find_rocm(place)
        except ToolError:
            continue
    where = " and ".join(str(place) for place in _USUAL_PLACES)
    return Problem("ROCm", f"no ROCm libraries were found in {where}", "hip")


def _development(tree: RocmTree) -> str:
    """The install table's key for what a tree of run-time libraries lacks."""
    return "hip" if tree.layout == "debian" else "rocm-devel"


def _explain(output: tuple[str, ...], target: Target, tree: RocmTree) -> Problem:
    text, evidence = "\n".join(output), first_errors(output)
    for library in ("rocblas", "hipblas", "rccl"):
        if re.search(rf"{library}/{library}\.h|-l{library}\b", text):
            package = library if tree.layout in {"amd", "debian"} else _development(tree)
            return Problem(library, f"{tree.root} has no {library} to compile and link against", package, evidence)
    if "hip_runtime.h" in text or "amdhip64" in text:
        message = f"{tree.root} has no HIP to compile and link against"
        return Problem("HIP", message, _development(tree), evidence)
    if "target ID" in text or "gpu arch" in text.lower():
        return Problem("HIP compiler", f"it cannot compile for arch {target.arch}", "hip", evidence)
    return Problem("HIP compiler", f"it does not compile a program for arch {target.arch}", "hip", evidence)
