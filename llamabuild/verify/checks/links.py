"""Links: every one leads to something inside, and nothing was flattened on the way."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from typing import TYPE_CHECKING

from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import Subject

DANGLING = Kind(
    "link.dangling",
    "error",
    "A symbolic link whose target is not there. A library's soname link that dangles makes the loader fail (or, for a "
    "plugin, silently skips the device): archives whose targets were rewritten by a prefix rule, and bundles that "
    "copied a link without its chain, look like this.",
    "Copy the whole chain of links with its final file, and keep link targets relative.",
)
ABSOLUTE = Kind(
    "link.absolute",
    "error",
    "A symbolic link with an absolute target: it leads to the machine it is unpacked on, not into the bundle.",
    "Make the target relative to the link's own folder.",
)
OUTSIDE = Kind(
    "link.outside",
    "error",
    "A relative symbolic link that leads out of the bundle.",
    "Point it at a file inside, or copy what it means.",
)
LOOP = Kind("link.loop", "error", "A symbolic link that leads back to itself.", "Remove one link of the circle.")
FLATTENED = Kind(
    "link.flattened",
    "warning",
    "The same library stands in one folder several times as regular files where links belong: what a copy or a zip "
    "that follows links makes. It costs space, and a later update of one copy leaves the others stale.",
    "Copy with links kept (cp -a, tar), and archive as tar.",
)

KINDS = (DANGLING, ABSOLUTE, OUTSIDE, LOOP, FLATTENED)

_LONGEST_CHAIN = 40
"""Linux gives up after as many."""


def check(subject: Subject) -> Iterator[Finding]:
    """Follow every link as the kernel would, and look for copies in place of links."""
    for path, target in subject.links.items():
        yield from _follow(subject, path, target)
    copies: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in subject.elves:
        if file.elf and file.elf.kind == "shared":
            copies[file.folder, file.sha256].append(file.path)
    for paths in copies.values():
        if len(paths) > 1 and not _hard_linked(subject, paths):
            yield FLATTENED.at(
                paths[0], f"{paths[0]} stands there {len(paths)} times as a regular file.", evidence=", ".join(paths)
            )


def _follow(subject: Subject, path: str, target: str) -> Iterator[Finding]:
    place = path
    seen = {path}
    while True:
        if target.startswith("/"):
            yield ABSOLUTE.at(path, f"{path} is a link to the absolute path {target}.", evidence=f"{place} -> {target}")
            return
        where = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        if where == ".." or where.startswith("../"):
            yield OUTSIDE.at(path, f"{path} is a link that leads out of the bundle.", evidence=f"{place} -> {target}")
            return
        if where in seen or len(seen) > _LONGEST_CHAIN:
            yield LOOP.at(path, f"{path} is a link that leads back to itself.", evidence=f"{place} -> {target}")
            return
        if where in subject.links:
            seen.add(where)
            place, target = where, subject.links[where]
            continue
        if where not in subject.files and where not in subject.folders and where != ".":
            through = _through_folder_link(subject, where)
            if through is not None:
                seen.add(where)
                place, target = through
                continue
            yield DANGLING.at(
                path, f"{path} is a link to {target}, which is not there.", evidence=f"{place} -> {target}"
            )
        return


def _through_folder_link(subject: Subject, where: str) -> tuple[str, str] | None:
    """Where a folder on the way is itself a link: that link, and its target with the rest of the way added."""
    parts = where.split("/")
    for count in range(1, len(parts)):
        head = "/".join(parts[:count])
        if head in subject.links:
            return head, posixpath.join(subject.links[head], *parts[count:])
    return None


def _hard_linked(subject: Subject, paths: list[str]) -> bool:
    return len({subject.files[path].real.stat().st_ino for path in paths}) == 1
