"""The symbolic links through which libraries and programs are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.core.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path


def link_chain(path: Path) -> tuple[Path, ...]:
    """A library's path, each link it goes through, and the real file at the end.

    Raises BundleError for a link that leads nowhere or in a circle.
    """
    hops = [path]
    while hops[-1].is_symlink():
        following = _followed(hops[-1])
        if following is None or following in hops or not (following.is_symlink() or following.exists()):
            raise BundleError(f"{path} is a link that leads nowhere.", hint="Install the library again.")
        hops.append(following)
    return tuple(hops)


def sibling_links(path: Path) -> tuple[tuple[str, str], ...]:
    """The links beside a file that end at it, each with the name it points at: ``libx.so`` → ``libx.so.1`` → file.

    A link that takes a way through another folder points at the file itself: only what is beside it is bundled.
    """
    found = []
    real = path.resolve()
    for other in sorted(path.parent.iterdir()):
        if other == path or not other.is_symlink() or resolved(other) != real:
            continue
        following = _followed(other)
        beside = following is not None and following.parent == real.parent and following.name != other.name
        found.append((other.name, following.name if following and beside else path.name))
    return tuple(found)


def resolved(path: Path) -> Path | None:
    """The real file at the end of a path; None where its links go in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # pathlib before Python 3.13 raises the latter
        return None


def _followed(link: Path) -> Path | None:
    """What a link points at, as the loader goes there: ``..`` counts from where the folder before it leads."""
    target = link.parent / link.readlink()
    folder = resolved(target.parent)
    return folder / target.name if folder else None
