"""Run a compiler with the paths of its source tree made relative, as a launcher in front of it.

    python relative_paths.py SOURCE COMMAND [ARGUMENT …]

Then no path of the tree gets into ``__FILE__``, and the same file in another tree has the same command line. ccache
does this by itself (base_dir); a prefix map would do the first and spoil the second. Little is imported: it runs for
every compile step.
"""

from __future__ import annotations

import os
import sys


def make_relative(arguments: list[str], source: str, folder: str) -> list[str]:
    """Arguments with each path below ``source`` as seen from ``folder``; definitions are left as they are."""
    there = os.path.relpath(source, folder)
    return [word if word.startswith("-D") else word.replace(f"{source}/", f"{there}/") for word in arguments]


if __name__ == "__main__":
    command = make_relative(sys.argv[2:], sys.argv[1], os.getcwd())  # noqa: PTH109 - see above
    os.execvp(command[0], command)  # noqa: S606 - an argv, and no shell is wanted
