"""Find the licence that goes with a library of the system."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NAME = re.compile(r"^(?P<stem>.+?)(?:\.so(?:\.(?P<version>[0-9]+))?.*)?$")

_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9][A-Za-z0-9.+-]*)")


@dataclass(frozen=True)
class PackageFiles:
    """Which package of a Debian-like system owns a file, read once from its database."""

    root: Path
    owners: dict[str, str]

    @classmethod
    def read(cls, root: Path) -> PackageFiles:
        """Read the libraries in ``var/lib/dpkg/info/*.list``; a system without them has no owners."""
        owners: dict[str, str] = {}
        for listing in sorted((root / "var/lib/dpkg/info").glob("*.list")):
            package = listing.name.removesuffix(".list").partition(":")[0]
            for line in listing.read_text(errors="replace").splitlines():
                if ".so" in line:
                    owners[_merged(line)] = package
        return cls(root=root, owners=owners)

    def owner(self, library: Path, *, names: Sequence[str] = ()) -> str | None:
        """The package that owns a library: by the database, else by Debian's way to name packages after sonames.

        ``names``: what the library is called besides its file's name.
        """
        inside = library.relative_to(self.root) if library.is_relative_to(self.root) else library
        if found := self.owners.get(_merged(f"/{inside}".replace("//", "/"))):
            return found
        candidates = [package for name in (library.name, *names) for package in _packages_after(name)]
        return next((name for name in candidates if (self.root / "usr/share/doc" / name).exists()), None)

    def licenses(self, package: str) -> tuple[Path, ...]:
        """The package's licence files: Debian keeps one ``copyright``, Fedora and others a folder."""
        copyright_file = self.root / "usr/share/doc" / package / "copyright"
        if copyright_file.is_file():
            return (copyright_file,)
        folder = self.root / "usr/share/licenses" / package
        return tuple(sorted(path for path in folder.glob("*") if path.is_file()))

    def common(self, licenses: tuple[Path, ...]) -> tuple[Path, ...]:
        """The texts that Debian's ``copyright`` files only point at, below ``usr/share/common-licenses``."""
        names = {
            name for path in licenses for name in _COMMON.findall(path.read_text(encoding="utf-8", errors="replace"))
        }
        folder = self.root / "usr/share/common-licenses"
        return tuple(path for name in sorted(names) if (path := folder / name.rstrip(".")).is_file())


def _packages_after(name: str) -> list[str]:
    """``libgomp.so.1`` → ``libgomp1``; a digit at the stem's end asks for a hyphen; ``t64`` is Debian's 2024 change."""
    match = _NAME.match(name)
    if match is None:
        return []
    stem, version = match["stem"].lower().replace("_", "-"), match["version"] or ""
    joined = f"{stem}-{version}" if version and stem[-1].isdigit() else f"{stem}{version}"
    return [joined, f"{joined}t64", f"{stem}-{version}"]


def _merged(path: str) -> str:
    """One spelling for a file below ``/lib`` and ``/usr/lib``, which are the same folder on merged systems."""
    return "/usr" + path if path.startswith(("/lib/", "/lib64/")) else path
