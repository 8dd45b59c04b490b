"""Targets: from a recipe's ``[targets.NAME]`` and a lock to CMake cache entries. Nothing here runs a tool."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from llamabuild.build.archs import check_archs, listed
from llamabuild.build.devices import detect_arch
from llamabuild.build.model import Target
from llamabuild.core.errors import RecipeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.build.host import Host
    from llamabuild.build.model import BuildOptions
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe, TargetSpec
    from llamabuild.source.lock import Lock

COMMIT_DIGITS = 9
"""What upstream's own releases show of a commit id."""

_X86_BASELINE = ("AVX", "AVX2", "BMI2", "F16C", "FMA", "SSE42")
"""x86-64-v3 less LZCNT and MOVBE: what upstream turns on with GGML_NATIVE=OFF, Haswell (2013) and Zen (2017) on.

Passed one by one, because ggml/CMakeLists.txt turns them all off when SOURCE_DATE_EPOCH is set, and a CPU plugin with
nothing but SSE2 is several times slower.
"""

_PORTABLE = {
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_BUILD_RPATH_USE_ORIGIN": "ON",
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_UNITY_BUILD_RELOCATABLE": "ON",
    "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
    "GGML_BACKEND_DL": "ON",
    "GGML_CCACHE": "OFF",
    "GGML_CPU": "ON",
    "GGML_CUDA_NCCL": "OFF",
    "GGML_HIP_RCCL": "OFF",
    "GGML_NATIVE": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
"""What every target starts from.

CMAKE_UNITY_BUILD_RELOCATABLE: libllama's models are compiled in batches, whose generated files otherwise name each
source by its absolute path; that would end up in the binary and spoil the compile cache. GGML_CCACHE: the launcher is
passed explicitly, so that its settings are ours. LLAMA_OPENSSL: it would link the build host's libssl. The two UI
options download the web UI while building.
"""

STANDARD: dict[str, dict[str, object]] = {
    "cpu": {"backends": ("cpu",)},
    "cpu-all": {"backends": ("cpu",), "cpu-variants": True},
    "cuda": {"backends": ("cuda",)},
    "vulkan": {"backends": ("vulkan",)},
    "cuda-vulkan": {"backends": ("cuda", "vulkan")},
    "hip": {"backends": ("hip",)},
}
"""The targets by their usual names, as a recipe would write them, for questions that are asked without a recipe."""

_BASELINES = {
    "x86_64": "x86-64 with SSE4.2, AVX, AVX2, BMI2, F16C and FMA (Intel Haswell, AMD Zen and later)",
    "aarch64": "the compiler's default for AArch64 (Armv8-A)",
}


def folder_name(target: Target) -> str:
    """The name of a target's build folder in any source tree, such as ``build-cuda-86-real``."""
    return "-".join(("build", target.name, *re.findall(r"\w+", target.arch)))


def cpu_baseline(target: Target, machine: str) -> str:
    """What the CPU code of a target needs, in words for BUILD_INFO."""
    if dict(target.entries).get("GGML_CPU_ALL_VARIANTS") == "ON":
        return "chosen at run time from one plugin for each CPU generation"
    return _BASELINES.get(machine, f"the compiler's default for {machine}")


def resolve_target(
    recipe: Recipe,
    lock: Lock,
    *,
    name: str | None,
    arch: str | None,
    host: Host,
    options: BuildOptions | None = None,
    context: Context | None = None,
) -> Target:
    """The target called ``name`` (None: the recipe's default; ``auto``: what this host is fit for), with its one arch.

    ``arch`` (None: the target's own; ``auto``: the GPU's in this host) replaces what the recipe says. ``auto`` looks
    for toolkits where ``options`` say, and notes on ``context``'s console why a target whose GPU is here does not do.
    Raises UsageError for an unknown target or arch, RecipeError for backends that do not go together, and ToolError
    where a toolkit that ``options`` name does not serve the target that ``auto`` tried it for.
    """
    wanted = recipe.default_target if name is None else name
    if wanted == "auto":
        from llamabuild.build.choice import choose_target

        return choose_target(recipe, lock, arch=arch, host=host, options=options, context=context)
    spec = recipe.targets.get(wanted)
    if spec is None:
        near = difflib.get_close_matches(wanted, recipe.targets, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"Recipe {recipe.name} has no target {wanted!r}.", hint=f"{hint}It has {listed(sorted(recipe.targets))}."
        )
    return make_target(wanted, spec, lock, arch=arch_of(wanted, spec, arch, host), machine=machine_of(host))


def machine_of(host: Host) -> str:
    """The processor architecture as the kernel names it: ``x86_64``, ``aarch64``."""
    return host.run(["uname", "-m"]).text.strip() or "x86_64"


def make_target(name: str, spec: TargetSpec, lock: Lock, *, arch: str, machine: str) -> Target:
    """A target's CMake cache entries. A pure function of its arguments."""
    if {"cuda", "hip"} <= set(spec.backends):
        raise RecipeError(
            f"Target {name} has both cuda and hip: ggml builds the two from the same sources, and they do not coexist.",
            hint="Make two targets of it, or use vulkan for one of the vendors.",
        )
    entries = dict(_PORTABLE)
    entries |= dict(_lock_entries(lock))
    if spec.cpu_variants:
        entries["GGML_CPU_ALL_VARIANTS"] = "ON"
    elif machine == "x86_64":
        entries |= {f"GGML_{feature}": "ON" for feature in _X86_BASELINE}
    archs = arch.replace(",", ";")
    if "cuda" in spec.backends:
        entries |= {
            "CMAKE_CUDA_ARCHITECTURES": archs,
            "GGML_CUDA": "ON",
            "GGML_CUDA_NCCL": _switch(on=spec.nccl),
        }
    if "hip" in spec.backends:
        entries |= {"CMAKE_HIP_ARCHITECTURES": archs, "GGML_HIP": "ON", "GGML_HIP_RCCL": _switch(on=spec.rccl)}
    if "vulkan" in spec.backends:
        entries["GGML_VULKAN"] = "ON"
    entries |= spec.cmake
    return Target(
        name=name,
        backends=tuple(spec.backends),
        arch=arch,
        entries=tuple(sorted(entries.items())),
        programs=tuple(spec.programs),
        rpath=spec.rpath,
        glibc_floor=spec.glibc_floor,
        rccl=spec.rccl,
        nccl=spec.nccl,
        asked=tuple(sorted(spec.cmake)),
    )


def _lock_entries(lock: Lock) -> Iterator[tuple[str, str]]:
    commit = lock.commit[:COMMIT_DIGITS]
    yield "LLAMA_BUILD_NUMBER", str(lock.build_number)
    yield "LLAMA_BUILD_COMMIT", commit
    yield "LLAMA_BUILD_IS_DEV", _switch(on=not lock.release)
    # ggml asks git for its commit, whichever repository the tree happens to lie in; without a git it takes ours.
    yield "GIT_EXE", ""
    yield "GGML_BUILD_COMMIT", commit


def _switch(*, on: bool) -> str:
    return "ON" if on else "OFF"


def arch_backend(spec: TargetSpec) -> str | None:
    """The backend that takes an arch, where the target has one: ``cuda`` or ``hip``."""
    return next((backend for backend in ("cuda", "hip") if backend in spec.backends), None)


def arch_of(name: str, spec: TargetSpec, given: str | None, host: Host) -> str:
    """The arch of a target: ``given`` (``auto``: the GPU's in this host), else the recipe's; empty where it has none.

    Raises UsageError for one that is missing, unknown or of no use to the target.
    """
    backend = arch_backend(spec)
    where = f"--arch for target {name}" if given else f"Target {name}"
    if backend is None:
        if given or spec.arch:
            raise UsageError(
                f"{where}: a target with the backends {', '.join(spec.backends)} has no arch.", hint="Leave it out."
            )
        return ""
    wanted = given or spec.arch
    if wanted is None:
        raise UsageError(f"Target {name} needs an arch.", hint="Give --arch, or --arch auto for the GPU in this host.")
    if wanted == "auto":
        return detect_arch(backend, host)
    check_archs(wanted, backend=backend, single=spec.single_arch, where=where)
    return wanted


def cpu_target(recipe: Recipe) -> str | None:
    """The recipe's target that every host can build: ``cpu``, else the first without a GPU backend."""
    plain = [name for name, spec in recipe.targets.items() if set(spec.backends) <= {"cpu"}]
    return "cpu" if "cpu" in plain else next(iter(plain), None)
