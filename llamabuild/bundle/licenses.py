"""Find the licence that goes with a library of the system."""

from __future__ import annotations

import re
from dataclasses import dataclass
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

    def owner(self, path: Path) -> str | None:
        """The package that owns the file, by the database, else by Debian's way to name packages after sonames."""
        inside = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        if found := self.owners.get(_merged(f"/{inside}".replace("//", "/"))):
            return found
        match = _NAME.match(path.name)
        if match is None:
            return None
        stem, version = match["stem"].lower().replace("_", "-"), match["version"] or ""
        joined = f"{stem}-{version}" if version and stem[-1].isdigit() else f"{stem}{version}"
        for name in (joined, f"{joined}t64", f"{stem}-{version}"):
            if (self.root / "usr/share/doc" / name).exists():
                return name
        return None

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


def _merged(path: str) -> str:
    """One spelling for a file below ``/lib`` and ``/usr/lib``, which are the same folder on merged systems."""
    return "/usr" + path if path.startswith(("/lib/", "/lib64/")) else path
