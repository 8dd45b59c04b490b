"""Names that llama.cpp and its forks gave to one and the same option, and which of them a tree reads."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.build.cmake_cache import CMakeCache

BACKENDS: dict[str, tuple[str, ...]] = {
    "cpu": ("GGML_CPU",),
    "cuda": ("GGML_CUDA", "LLAMA_CUDA", "LLAMA_CUBLAS", "GGML_CUBLAS"),
    "hip": ("GGML_HIP", "GGML_HIPBLAS", "LLAMA_HIPBLAS", "LLAMA_HIP", "GGML_ROCM", "LLAMA_ROCM"),
    "vulkan": ("GGML_VULKAN", "LLAMA_VULKAN"),
    "metal": ("GGML_METAL", "LLAMA_METAL"),
    "sycl": ("GGML_SYCL", "LLAMA_SYCL"),
    "musa": ("GGML_MUSA", "LLAMA_MUSA"),
    "opencl": ("GGML_OPENCL", "LLAMA_OPENCL", "LLAMA_CLBLAST", "GGML_CLBLAST"),
    "rpc": ("GGML_RPC", "LLAMA_RPC"),
    "blas": ("GGML_BLAS", "LLAMA_BLAS", "LLAMA_OPENBLAS", "GGML_OPENBLAS"),
    "cann": ("GGML_CANN", "LLAMA_CANN"),
    "kompute": ("GGML_KOMPUTE", "LLAMA_KOMPUTE"),
    "webgpu": ("GGML_WEBGPU",),
    "zdnn": ("GGML_ZDNN",),
    "zendnn": ("GGML_ZENDNN",),
    "openvino": ("GGML_OPENVINO",),
    "hexagon": ("GGML_HEXAGON",),
    "virtgpu": ("GGML_VIRTGPU",),
    "et": ("GGML_ET",),
}
"""Backend → its option, today's name first, then older ones (each was the name in some release), then misreadings."""

_OTHER: tuple[tuple[str, ...], ...] = (
    ("GGML_NATIVE", "LLAMA_NATIVE"),
    ("GGML_CUDA_FA_QUANTS", "GGML_CUDA_FA_ALL_QUANTS"),
    ("GGML_CUDA_FORCE_MMQ", "LLAMA_CUDA_FORCE_MMQ"),
    ("GGML_CUDA_FORCE_CUBLAS", "LLAMA_CUDA_FORCE_CUBLAS"),
    ("GGML_CUDA_F16", "LLAMA_CUDA_F16", "LLAMA_CUDA_DMMV_F16"),
    ("GGML_CUDA_NCCL", "GGML_NCCL", "LLAMA_NCCL", "GGML_USE_NCCL"),
    ("GGML_HIP_RCCL", "GGML_RCCL", "GGML_USE_RCCL"),
    ("GGML_HIP_UMA", "LLAMA_HIP_UMA"),
    ("GGML_BACKEND_DL", "LLAMA_BACKEND_DL", "GGML_DL"),
    ("GGML_CPU_ALL_VARIANTS", "GGML_ALL_VARIANTS"),
    ("GGML_CPU_REPACK", "GGML_CPU_AARCH64"),
    ("GGML_OPENMP", "LLAMA_OPENMP"),
    ("GGML_LTO", "LLAMA_LTO"),
    ("GGML_STATIC", "LLAMA_STATIC"),
    ("GGML_LLAMAFILE", "LLAMA_LLAMAFILE"),
    ("GGML_BLAS_VENDOR", "LLAMA_BLAS_VENDOR"),
    ("GGML_CCACHE", "LLAMA_CCACHE"),
    ("LLAMA_OPENSSL", "LLAMA_SERVER_SSL", "LLAMA_CURL"),
    ("LLAMA_BUILD_UI", "LLAMA_BUILD_WEBUI"),
    ("LLAMA_USE_PREBUILT_UI", "LLAMA_USE_PREBUILT_WEBUI"),
    ("LLAMA_BUILD_NUMBER", "BUILD_NUMBER"),
    ("LLAMA_BUILD_COMMIT", "BUILD_COMMIT"),
    ("CMAKE_HIP_ARCHITECTURES", "GPU_TARGETS", "AMDGPU_TARGETS", "HIP_ARCHITECTURES", "CMAKE_ROCM_ARCHITECTURES"),
    ("CMAKE_CUDA_ARCHITECTURES", "CUDA_ARCHITECTURES", "CUDA_ARCH", "TORCH_CUDA_ARCH_LIST"),
)

DEPRECATED = frozenset({"LLAMA_CUDA", "LLAMA_METAL", "LLAMA_RPC", "LLAMA_SYCL", "LLAMA_CANN"})
"""Names that ``llama_option_depr`` in upstream's CMakeLists.txt (v0.5.0) still takes, with a warning."""

_READ_UNDECLARED = re.compile(
    r"^(?:CMAKE_.*"
    r"|LLAMA_(?:BUILD_NUMBER|BUILD_COMMIT|VERSION|INSTALL_VERSION|SOURCE_DIR)"
    r"|GGML_(?:BUILD_NUMBER|BUILD_COMMIT|VERSION.*|SCHED_MAX_COPIES)"
    r"|GPU_TARGETS|AMDGPU_TARGETS|HIP_PLATFORM|HIP_PATH|ROCM_PATH"
    r"|BUILD_SHARED_LIBS|BUILD_TESTING|FETCHCONTENT_.*|PKG_CONFIG_.*|(?:Python|Python3|OpenSSL|OPENSSL|CUDAToolkit|Vulkan|"
    r"SPIRV-Headers|NCCL|hip|hipblas|rocblas|BLAS|OpenMP)_.*|.*_(?:ROOT|DIR))$"
)
"""Names that CMake, its modules or llama.cpp read without declaring them: with -D they stay UNINITIALIZED and count.

Listed because an UNINITIALIZED entry of any other name is one that nobody reads. CMake's own warning about unused
variables does not tell: something enumerates all variables in v0.5.0, and no GGML_ name is ever warned of (seen).
"""

_TREE_NAME = re.compile(r"^(?:GGML|LLAMA|WHISPER|SD)_[A-Z0-9_]+$")


def synonyms(name: str) -> tuple[str, ...]:
    """All names of the same option, this one included; the name alone where none is known."""
    for group in (*BACKENDS.values(), *_OTHER):
        if name in group:
            return group
    return (name,)


def is_read_undeclared(name: str) -> bool:
    """Whether somebody reads the name although no option of that name is declared."""
    return bool(_READ_UNDECLARED.match(name))


def given_undeclared(cache: CMakeCache) -> Iterator[str]:
    """Names that were given and that the tree did not declare."""
    for name, entry in cache.entries.items():
        if not entry.is_declared and name:
            yield name


def suggest(name: str, cache: CMakeCache) -> str | None:
    """The declared option that was meant: another name of the same thing, the other prefix, or the nearest spelling."""
    declared = [
        other
        for other, entry in cache.entries.items()
        if entry.is_declared and entry.kind not in {"INTERNAL", "STATIC"}
    ]
    for other in synonyms(name):
        if other != name and other in declared:
            return other
    prefix, _, rest = name.partition("_")
    swapped = {"LLAMA": "GGML_", "GGML": "LLAMA_"}.get(prefix, "") + rest
    if swapped in declared:
        return swapped
    own = [other for other in declared if _TREE_NAME.match(other)]
    near = difflib.get_close_matches(name, own, n=1, cutoff=0.8) or difflib.get_close_matches(
        swapped, own, n=1, cutoff=0.85
    )
    if near:
        return near[0]
    newest = synonyms(name)[0]
    if newest != name and (is_read_undeclared(newest) or newest.startswith("GGML_") or not own):
        return newest
    return _nearest_known(name) if not own else None


def _nearest_known(name: str) -> str | None:
    """The nearest of today's names, where the cache declares none of the tree's options at all."""
    known = [group[0] for group in (*BACKENDS.values(), *_OTHER) if group[0] != name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return near[0] if near else None
