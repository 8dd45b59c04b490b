"""Licences and versions of what is bundled from elsewhere, as SPDX and package databases name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_GCC_RUNTIME = "GPL-3.0-or-later WITH GCC-exception-3.1"
_NVIDIA = "LicenseRef-NVIDIA-CUDA-EULA"

_SPDX = (
    ("libgomp", _GCC_RUNTIME),
    ("libstdc++", _GCC_RUNTIME),
    ("libgcc", _GCC_RUNTIME),
    ("libquadmath", "LGPL-2.1-or-later"),
    ("libvulkan", "Apache-2.0"),
    ("libssl", "Apache-2.0"),
    ("libcurl", "curl"),
    ("cuda", _NVIDIA),
    ("cudart", _NVIDIA),
    ("cublas", _NVIDIA),
    ("nvidia-", _NVIDIA),
    ("libcudart", _NVIDIA),
    ("libcublas", _NVIDIA),
    ("rocblas", "MIT"),
    ("librocblas", "MIT"),
    ("hipblas", "MIT"),
    ("libhipblas", "MIT"),
    ("hipblaslt", "MIT"),
    ("rocsolver", "BSD-2-Clause"),
    ("librocsolver", "BSD-2-Clause"),
    ("libamdhip64", "MIT"),
    ("libamd-comgr", "NCSA"),
    ("libhsa-runtime64", "NCSA"),
)
"""By how a component's name starts: as each project's own licence file says."""


def spdx_of(name: str) -> str:
    """The SPDX expression of a component, or an empty text where it is not known here: its licence file is bundled."""
    found = [(start, expression) for start, expression in _SPDX if name.startswith(start)]
    return max(found, key=lambda pair: len(pair[0]))[1] if found else ""


def component_version(name: str, *, recorded: Mapping[str, Any], packages: Mapping[str, str]) -> str:
    """The version that the bundle recorded for a component, else its distribution package's; empty if unknown."""
    known = recorded.get(name)
    if isinstance(known, dict) and known.get("version"):
        return str(known["version"])
    return packages.get(name, "")


def host_facts(root: Path, *, kernel: str) -> dict[str, str]:
    """``os`` (its name for people), ``os_id`` and ``kernel`` of the system below ``root``."""
    try:
        text = (root / "etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    release = {key: value.strip("\"'") for key, value in pairs}
    return {"os": release.get("PRETTY_NAME", "unknown"), "os_id": release.get("ID", "linux"), "kernel": kernel}


def installed_packages(root: Path) -> dict[str, str]:
    """Version of each package that the Debian-like system below ``root`` has installed; elsewhere none."""
    try:
        text = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[:1] != " ")
        if fields.get("Status", "").endswith(" installed") and "Version" in fields:
            found[fields["Package"]] = fields["Version"]
    return found
