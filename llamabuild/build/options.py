"""Options that a tree does not know: told after configuring, by name and with the nearest that it knows."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from llamabuild.build.cachefile import read_cache
from llamabuild.core.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.build.model import Target
    from llamabuild.core.console import Console
    from llamabuild.core.process import Completed

_UNUSED = re.compile(r"Manually-specified variables were not used by the project:\n\n((?: +\S+\n)+)")

_READ_UNDECLARED = frozenset({"LLAMA_BUILD_NUMBER", "LLAMA_BUILD_COMMIT", "GGML_BUILD_COMMIT"})
"""Read by llama.cpp's lists although never declared, so that they stay UNINITIALIZED in the cache."""

_READ_BY_MODULES = re.compile(
    r"CMAKE_.*|FETCHCONTENT_.*|(?:AMD)?GPU_TARGETS|.*_(?:ROOT|DIR)|(?:BLAS|CUDAToolkit|OpenMP|OPENSSL|Vulkan)_.*"
)
"""Names that CMake, its find modules or ROCm's packages read, declared or not."""

_TODAY = {
    **dict.fromkeys(("GGML_CUBLAS", "LLAMA_CUBLAS", "LLAMA_CUDA"), "GGML_CUDA"),
    **dict.fromkeys(("GGML_HIPBLAS", "LLAMA_HIPBLAS"), "GGML_HIP"),
    "LLAMA_VULKAN": "GGML_VULKAN",
    "LLAMA_NATIVE": "GGML_NATIVE",
    "LLAMA_CURL": "LLAMA_OPENSSL",
}
"""Names of older trees that field notes still use, and today's, where the nearest by letters is another option."""


def refuse_unused(folder: Path, target: Target, done: Completed, console: Console, *, log: Path) -> None:
    """Refuse a -D that the tree did not consume: that is how a misspelt option silently gives a CPU-only build.

    ``done`` is the configure step that made the cache in ``folder``. Raises BuildError, naming the nearest option.
    """
    cache = read_cache(folder / "CMakeCache.txt")
    warned = {name for block in _UNUSED.findall(f"{done.text}\n") for name in block.split()}
    for name, value in target.entries:
        entry = cache.get(name)
        undeclared = entry is not None and entry.type == "UNINITIALIZED" and not _READ_BY_MODULES.fullmatch(name)
        if name not in warned and (not undeclared or name in _READ_UNDECLARED):
            continue
        if name not in target.asked and (value in {"", "OFF"} or name in _READ_UNDECLARED):
            # Our own wish to have something off, or stamped, on a tree that does not have it.
            console.detail(f"{name} is unknown to this tree")
            continue
        known = [other.name for other in cache.values() if other.type not in {"UNINITIALIZED", "INTERNAL", "STATIC"}]
        today = [_TODAY[name]] if _TODAY.get(name) in known else []
        near = today or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise BuildError(
            f"The tree does not know the option {name}={value} of target {target.name}: it would have no effect.",
            hint=f"The nearest that it knows is {near[0]}." if near else "Look for its present name in CMakeLists.txt.",
            log=log,
        )
