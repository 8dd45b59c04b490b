"""Debian's packages and root folders for tests, from the archive that this machine is configured for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# A frozen copy of an archive may be past the date that its Release file names.
ANY_DATE = ("-o", "Acquire::Check-Valid-Until=false")


def archive() -> str:
    """The archive's address; skips the test where this machine has none."""
    if shutil.which("apt-get") is None:
        pytest.skip("no apt-get here to fetch Debian's packages with")
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    targets = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = next((line for line in targets.splitlines() if re.search(r"/debian/?$", line)), None)
    if found is None:
        pytest.skip("this machine has no Debian archive configured")
    return found


def download(folder: Path, suite: str, packages: Iterable[str], *, with_needs: bool = False) -> list[Path]:
    """Download packages of any suite, this machine's own package lists untouched.

    ``with_needs``: and everything they depend on, as for an empty machine. Skips the test where they cannot be had.
    """
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    address = archive()
    if not keyring.exists():
        pytest.skip("the keys of Debian's archive are not here (package debian-archive-keyring)")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(f"deb [signed-by={keyring}] {address} {suite} main\n")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    options = [
        *("-o", f"Dir::Etc::sourcelist={folder}/sources.list", "-o", "Dir::Etc::sourceparts=-"),
        *("-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"),
        *("-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=", *ANY_DATE),
    ]
    place = folder / "cache/archives"
    before = set(place.glob("*.deb"))
    if with_needs:
        options += ["-o", "Dir::State::status=/dev/null"]
        get = ["install", "-y", "--no-install-recommends", "--download-only", *packages]
    else:
        get = ["download", *packages]
    for verb in (["update"], get):
        argv = ["apt-get", *options, *verb]
        done = subprocess.run(argv, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"packages of {suite} cannot be had: {done.stderr[-300:]}")
    return sorted(set(place.glob("*.deb")) - before)


def bootstrap(root: Path, suite: str, *, packages: Iterable[str] = ()) -> Path:
    """A minimal Debian in ``root``, with ``packages`` installed; skips the test where it cannot be made."""
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.skip(f"a Debian {suite} can only be made by root, with debootstrap")
    argv = ["debootstrap", "--variant=minbase", suite, root, archive()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"debootstrap failed, so there is no Debian {suite} to test in: {done.stdout[-300:]}")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    if packages:
        options = ["-q", "-y", "--no-install-recommends", *ANY_DATE]
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        argv = ["chroot", root, "apt-get", *options, "install", *packages]
        subprocess.run(argv, check=True, env=env, stdout=subprocess.DEVNULL)
    return root


@contextmanager
def bound(root: Path, places: Iterable[Path]) -> Iterator[None]:
    """Have ``places`` of this machine, and ``/proc``, at the same paths inside ``root``."""
    mounted: list[Path] = []
    try:
        for place in dict.fromkeys([*places, Path("/proc")]):
            inside = root / place.relative_to("/")
            inside.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--bind", place, inside], check=True)
            mounted.append(inside)
        yield
    finally:
        for inside in reversed(mounted):
            subprocess.run(["umount", "--lazy", inside], check=True)
