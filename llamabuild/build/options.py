"""Options that a tree does not know: told after configuring, by name and with the nearest that it knows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamabuild.build.cmake_cache import read_cache
from llamabuild.build.option_names import is_read_undeclared, suggest
from llamabuild.core.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.build.model import Target
    from llamabuild.core.console import Console
    from llamabuild.core.process import Completed

_UNUSED = re.compile(r"Manually-specified variables were not used by the project:\n\n((?: +\S+\n)+)")

_STAMPED = frozenset({"LLAMA_BUILD_NUMBER", "LLAMA_BUILD_COMMIT", "GGML_BUILD_COMMIT"})
"""What we stamp every build with, on whatever tree."""


def refuse_unused(folder: Path, target: Target, done: Completed, console: Console, *, log: Path) -> None:
    """Refuse a -D that the tree did not consume: that is how a misspelt option silently gives a CPU-only build.

    ``done`` is the configure step that made the cache in ``folder``. Raises BuildError, naming the nearest option.
    """
    cache = read_cache(folder / "CMakeCache.txt")
    warned = {name for block in _UNUSED.findall(f"{done.text}\n") for name in block.split()}
    for name, value in target.entries:
        entry = cache.entries.get(name)
        undeclared = entry is not None and not entry.is_declared and not is_read_undeclared(name)
        if name not in warned and not undeclared:
            continue
        if name not in target.asked and (value in {"", "OFF"} or name in _STAMPED):
            # Our own wish to have something off, or stamped, on a tree that does not have it.
            console.detail(f"{name} is unknown to this tree")
            continue
        near = suggest(name, cache)
        raise BuildError(
            f"The tree does not know the option {name}={value} of target {target.name}: it would have no effect.",
            hint=f"The nearest that it knows is {near}." if near else "Look for its present name in CMakeLists.txt.",
            log=log,
        )
