"""The symbolic links through which libraries are named."""

from __future__ import annotations

import os
from pathlib import Path

from llamabuild.core.errors import BundleError


def link_chain(path: Path) -> tuple[Path, ...]:
    """A library's path, each link it goes through, and the real file at the end.

    Raises BundleError for a link that leads nowhere or in a circle.
    """
    hops = [path]
    while hops[-1].is_symlink():
        following = Path(os.path.normpath(hops[-1].parent / hops[-1].readlink()))
        if following in hops or not (following.is_symlink() or following.exists()):
            raise BundleError(f"{path} is a link that leads nowhere.", hint="Install the library again.")
        hops.append(following)
    return tuple(hops)


def sibling_links(path: Path) -> tuple[tuple[str, str], ...]:
    """The links beside a file that end at it, each with the name it points at: ``libx.so`` → ``libx.so.1`` → file."""
    found = []
    for other in sorted(path.parent.iterdir()):
        if other.is_symlink() and other.resolve() == path.resolve():
            target = other.readlink()
            found.append((other.name, target.name if target.name != other.name else path.name))
    return tuple(found)
