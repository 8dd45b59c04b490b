"""CMake entries that a target decides from other keys of the recipe, so that ``cmake`` cannot undo them."""

from __future__ import annotations

_BACKENDS = "the target's key backends decides it"
_ARCH = "the target's key arch, or --arch, decides it"
_SHARED = "a bundle is programs with shared libraries and plugins, each found beside the other"

DECIDED: dict[str, str] = {
    **dict.fromkeys(("GGML_CPU", "GGML_CUDA", "GGML_HIP", "GGML_VULKAN", "LLAMA_CUDA"), _BACKENDS),
    **dict.fromkeys(("CMAKE_CUDA_ARCHITECTURES", "CMAKE_HIP_ARCHITECTURES", "GPU_TARGETS", "AMDGPU_TARGETS"), _ARCH),
    "GGML_CUDA_NCCL": "the target's key nccl decides it",
    "GGML_HIP_RCCL": "the target's key rccl decides it",
    "GGML_CPU_ALL_VARIANTS": "the target's key cpu-variants decides it",
    "GGML_NATIVE": "a bundle is for other machines than this; name what they have, such as GGML_AVX512, or set "
    "cpu-variants",
    **dict.fromkeys(("BUILD_SHARED_LIBS", "CMAKE_BUILD_RPATH_USE_ORIGIN", "GGML_BACKEND_DL", "GGML_STATIC"), _SHARED),
    "CMAKE_UNITY_BUILD_RELOCATABLE": "without it the binaries hold the build folder's path",
    "GGML_CCACHE": "the option --launcher decides it",
    "LLAMA_BUILD_NUMBER": "the key build-number of [source] decides it",
    "LLAMA_BUILD_IS_DEV": "the recipe's key release decides it",
    **dict.fromkeys(("LLAMA_BUILD_COMMIT", "GGML_BUILD_COMMIT", "GIT_EXE"), "the key commit of [source] decides it"),
}
"""Name → what decides it, as the rest of a sentence. ``LLAMA_CUDA`` is a name that upstream still takes."""


def decided_by(name: str) -> str | None:
    """What decides a CMake entry in place of ``cmake``, or None where ``cmake`` may; ``NAME:TYPE`` counts as NAME."""
    return DECIDED.get(name.partition(":")[0].strip())
