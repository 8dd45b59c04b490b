"""The job matrix: recipes and flavours as what a CI system needs to start one job for each."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.core.files import key_of
from llamabuild.release.flavours import flavour_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.build.model import Target
    from llamabuild.release.flavours import Flavour

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
    """For the compile cache; unique to recipe, target, arch and toolkit."""
    cache_prefix: str
    """What a cache of an earlier recipe for the same target, arch and toolkit starts with."""
    size_estimate_mb: int
    """Of the unpacked bundle with its vendor libraries: what the job's disk must hold beside the build."""
    timeout_minutes: int

    def to_json(self) -> dict[str, Any]:
        """The job as a matrix entry: keys as workflows write them, packages as one line."""
        fields = {key.replace("_", "-"): value for key, value in asdict(self).items()}
        return {**fields, "packages": " ".join(self.packages)}


def plan_job(recipe: str, target: Target, flavour: Flavour, *, inputs: str) -> Job:
    """One job; ``inputs`` is a digest of the recipe, which names the compile cache that the job leaves behind."""
    backends = target.backends
    toolkit = flavour.toolkit or (_CUDA_TOOLKIT if "cuda" in backends else "")
    packages = flavour.packages
    if packages is None:
        packages = tuple(name for backend in backends for name in _PACKAGES.get(backend, ()))
    recent = "vulkan" in backends or "hip" in backends
    prefix = "-".join(part for part in ("ccache", flavour_name(target.name, target.arch), toolkit) if part) + "-"
    prefix = prefix.replace(":", "_").replace(",", "+")
    return Job(
        recipe=recipe,
        flavour=flavour_name(target.name, target.arch),
        target=target.name,
        arch=target.arch,
        runs_on=flavour.runs_on or (_RECENT_RUNNER if recent else _PORTABLE_RUNNER),
        toolkit=toolkit,
        packages=packages,
        cache_key=prefix + key_of([recipe, inputs, flavour.runs_on])[:16],
        cache_prefix=prefix,
        size_estimate_mb=_size(target),
        timeout_minutes=_timeout(target),
    )


def _arch_count(target: Target) -> int:
    return max(1, len([arch for arch in target.arch.split(",") if arch]))


def _size(target: Target) -> int:
    variants = _CPU_VARIANTS_MB if ("GGML_CPU_ALL_VARIANTS", "ON") in target.entries else 0
    plugins = sum(
        _UNPACKED_MB[backend] * (1 if backend == "vulkan" else _arch_count(target))
        for backend in target.backends
        if backend in _UNPACKED_MB
    )
    return _BASE_MB + variants + plugins + sum(_RUNTIME_MB.get(backend, 0) for backend in target.backends)


def _timeout(target: Target) -> int:
    """Three times the expected wall time without a cache, so that a hanging job ends the same day."""
    count = _arch_count(target)
    minutes = _CPU_MINUTES["cpu"] + sum(
        _CPU_MINUTES[backend] * (count if backend in {"cuda", "hip"} else 1)
        for backend in target.backends
        if backend != "cpu"
    )
    return _SETUP_MINUTES + math.ceil(_TIMEOUT_FACTOR * minutes / _RUNNER_CORES)


def github_matrix(jobs: Sequence[Job]) -> dict[str, Any]:
    """What ``strategy.matrix: ${{ fromJSON(…) }}`` takes."""
    return {"include": [job.to_json() for job in jobs]}
