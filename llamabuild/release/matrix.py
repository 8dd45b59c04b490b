"""The job matrix: recipes and flavours as what a CI system needs to start one job for each."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.build.archs import check_archs
from llamabuild.core.errors import UsageError
from llamabuild.core.files import key_of
from llamabuild.release.flavours import Flavour, flavour_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.recipe.model import Recipe, TargetSpec

_BASE_MB = 17
"""Programs and libraries of a stripped CPU build of v0.5.0, measured (16.9 MB)."""

_UNPACKED_MB = {"cuda": 45, "vulkan": 43, "hip": 81}
"""One plugin for one arch of v0.5.0, measured: 86-real with CUDA 13.0, all Vulkan shaders, gfx1100."""

_CPU_VARIANTS_MB = 12
"""Fourteen CPU plugins where one stood, *estimated* from third-party bundles of the same release."""

_RUNTIME_MB = {"cuda": 500, "hip": 1400}
"""Vendor libraries: libcudart, libcublas and libcublasLt; Debian's librocblas (1.0 GB, before thinning) with the
files of rocBLAS and hipBLASLt for gfx1100."""

_CPU_MINUTES = {"cpu": 12.5, "cuda": 43.0, "vulkan": 12.0, "hip": 30.0}
"""CPU time of the parts of a v0.5.0 build without a cache, measured; the first is every build's."""

_RUNNER_CORES = 4
_TIMEOUT_FACTOR = 3
_SETUP_MINUTES = 15

_PORTABLE_RUNNER = "ubuntu-22.04"
"""The oldest hosted image: its glibc (2.35) is the floor of what is built on it."""

_RECENT_RUNNER = "ubuntu-26.04"
"""Vulkan shaders need a glslc that knows GL_KHR_cooperative_matrix, and headers to match: 2025.2 (Debian 13) does,
2023.2 (Debian 12) does not. Distribution packages of HIP are younger still."""

_PACKAGES = {
    "cuda": (),
    "vulkan": ("glslc", "libvulkan-dev", "spirv-headers"),
    "hip": ("hipcc", "libamdhip64-dev", "libhipblas-dev", "librocblas-dev"),
}
_CUDA_TOOLKIT = "wheels:13.0"
"""Hosted runners have no CUDA; NVIDIA's wheels need no root and are pinned by version."""


@dataclass(frozen=True)
class Job:
    """One job of the matrix."""

    recipe: str
    flavour: str
    target: str
    arch: str
    runs_on: str
    toolkit: str
    """As ``--cuda-toolkit`` takes it; empty where no toolkit is chosen."""
    packages: tuple[str, ...]
    """Distribution packages to install first."""
    cache_key: str
    """For the compile cache; unique to runner, target, arch, toolkit and the recipe's content."""
    cache_prefix: str
    """What the keys of other recipes for the same runner, target, arch and toolkit start with."""
    size_estimate_mb: int
    """Of the unpacked bundle with its vendor libraries: what the job's disk must hold beside the build."""
    timeout_minutes: int

    def to_json(self) -> dict[str, Any]:
        """The job as a matrix entry: keys as workflows write them, packages as one line."""
        fields = {key.replace("_", "-"): value for key, value in asdict(self).items()}
        return {**fields, "packages": " ".join(self.packages)}


def plan_jobs(recipe: Recipe, flavours: Sequence[Flavour]) -> tuple[Job, ...]:
    """One job for each flavour, or for each of the recipe's targets where none is given.

    Raises UsageError for a flavour that the recipe cannot give: nothing is built to find that out.
    """
    wanted = flavours or tuple(Flavour(target=name) for name in recipe.targets)
    inputs = key_of(recipe.model_dump(mode="json", by_alias=True))
    return tuple(_job(recipe, flavour, inputs) for flavour in wanted)


def target_of(recipe: Recipe, flavour: Flavour) -> tuple[TargetSpec, str]:
    """The recipe's target that a flavour means, and its arch (the recipe's own where the flavour gives none).

    Raises UsageError for an unknown target, and for an arch that is missing, unknown or of no use to it.
    """
    spec = recipe.targets.get(flavour.target)
    if spec is None:
        near = difflib.get_close_matches(flavour.target, recipe.targets, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"Recipe {recipe.name} has no target {flavour.target!r} for the flavour {flavour.name}.",
            hint=f"{hint}It has {', '.join(sorted(recipe.targets))}.",
        )
    arch = flavour.arch or spec.arch or ""
    backend = next((backend for backend in spec.backends if backend in {"cuda", "hip"}), None)
    if backend is None and arch:
        raise UsageError(f"The flavour {flavour.name}: a target without cuda or hip has no arch.", hint="Leave it out.")
    if backend is not None and arch in {"", "auto"}:
        raise UsageError(
            f"The flavour {flavour.name} needs an arch: what a release holds is not left to the host that builds it.",
            hint=f"Write {flavour.target}:ARCH.",
        )
    if backend is not None:
        check_archs(arch, backend=backend, single=spec.single_arch, where=f"The flavour {flavour.name}")
    return spec, arch


def _job(recipe: Recipe, flavour: Flavour, inputs: str) -> Job:
    spec, arch = target_of(recipe, flavour)
    toolkit = flavour.toolkit or (_CUDA_TOOLKIT if "cuda" in spec.backends else "")
    packages = flavour.packages
    if packages is None:
        packages = tuple(name for backend in spec.backends for name in _PACKAGES.get(backend, ()))
    recent = "vulkan" in spec.backends or "hip" in spec.backends
    runner = flavour.runs_on or (_RECENT_RUNNER if recent else _PORTABLE_RUNNER)
    name = flavour_name(flavour.target, arch)
    # A cache key may hold no comma, and what the compiler of another image made is of no use.
    prefix = re.sub("[:,]", "-", "-".join(part for part in ("ccache", runner, name, toolkit) if part)) + "-"
    return Job(
        recipe=recipe.name,
        flavour=name,
        target=flavour.target,
        arch=arch,
        runs_on=runner,
        toolkit=toolkit,
        packages=packages,
        cache_key=prefix + inputs[:16],
        cache_prefix=prefix,
        size_estimate_mb=_size(spec, arch),
        timeout_minutes=_timeout(spec, arch),
    )


def _arch_count(arch: str) -> int:
    return arch.count(",") + 1


def _size(spec: TargetSpec, arch: str) -> int:
    plugins = sum(
        _UNPACKED_MB[backend] * (1 if backend == "vulkan" else _arch_count(arch))
        for backend in spec.backends
        if backend in _UNPACKED_MB
    )
    variants = _CPU_VARIANTS_MB if spec.cpu_variants else 0
    return _BASE_MB + variants + plugins + sum(_RUNTIME_MB.get(backend, 0) for backend in spec.backends)


def _timeout(spec: TargetSpec, arch: str) -> int:
    """Three times the expected wall time without a cache, so that a hanging job ends the same day."""
    minutes = _CPU_MINUTES["cpu"] + sum(
        _CPU_MINUTES[backend] * (1 if backend == "vulkan" else _arch_count(arch))
        for backend in spec.backends
        if backend != "cpu"
    )
    return _SETUP_MINUTES + math.ceil(_TIMEOUT_FACTOR * minutes / _RUNNER_CORES)


def github_matrix(jobs: Sequence[Job]) -> dict[str, Any]:
    """What ``strategy.matrix: ${{ fromJSON(…) }}`` takes."""
    return {"include": [job.to_json() for job in jobs]}
