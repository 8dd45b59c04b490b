"""The GPUs of the host: from sysfs, ``nvidia-smi``, the kernel's KFD topology, ``rocminfo`` or ``amdgpu-arch``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from llamabuild.build.archs import gfx_name, listed
from llamabuild.build.host import NOT_FOUND
from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    from llamabuild.build.host import Host

Vendor = Literal["nvidia", "amd", "intel"]

_PCI = "/sys/bus/pci/devices"
_KFD = "/sys/class/kfd/kfd/topology/nodes"
_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""VGA, 3D and other display controllers, and processing accelerators (MI300 calls itself one)."""
_SMI = (
    "nvidia-smi",
    "--query-gpu=pci.bus_id,name,compute_cap,memory.total,driver_version",
    "--format=csv,noheader,nounits",
)


_NAME_LINE = r"^\s*Name:\s+(gfx[0-9a-f]+)\s*$"
"""How rocminfo names a device."""
_ARCH_LINE = r"^(gfx[0-9a-f]+)\s*$"
"""How amdgpu-arch does."""


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    vendor: Vendor
    bus: str
    """PCI address, ``0000:03:00.0``; empty where the host does not show it."""
    name: str
    """As its tool calls it, else the PCI device id."""
    arch: str
    """``86``, ``gfx1100``; empty where no tool could tell."""
    memory_bytes: int | None
    driver: str
    """The NVIDIA driver's version; empty for others, and where neither nvidia-smi nor the kernel module tells it."""


def find_gpus(host: Host) -> tuple[Gpu, ...]:
    """All NVIDIA, AMD and Intel GPUs, by PCI address; what only a tool shows (in a container) comes last."""
    found = {gpu.bus: gpu for gpu in _pci_gpus(host)}
    addressed = [gpu.bus for gpu in found.values() if gpu.vendor == "amd"]
    for more in (*_nvidia_gpus(host), *_amd_gpus(host, addressed)):
        known = found.get(more.bus)
        if known is None:
            found[more.bus or f"{more.vendor}-{len(found)}"] = more
        else:
            found[more.bus] = replace(
                known,
                name=more.name or known.name,
                arch=more.arch,
                memory_bytes=more.memory_bytes or known.memory_bytes,
                driver=more.driver or known.driver,
            )
    return tuple(found.values())


def detect_arch(backend: str, host: Host, *, asked: str = "--arch auto") -> str:
    """The arch of this host's GPU for ``cuda`` or ``hip``; ``asked`` is the option that wants to know.

    Raises UsageError when there is none, or when there are several different ones.
    """
    vendor, maker = ("nvidia", "NVIDIA") if backend == "cuda" else ("amd", "AMD")
    gpus = [gpu for gpu in find_gpus(host) if gpu.vendor == vendor]
    archs = sorted({gpu.arch for gpu in gpus if gpu.arch})
    if len(archs) > 1:
        cards = "; ".join(f"{gpu.name} ({gpu.bus}): {gpu.arch}" for gpu in gpus if gpu.arch)
        raise UsageError(
            f"{asked}: this host has different {maker} GPUs: {cards}.",
            hint=f"One target is for one arch: give --arch {listed(archs)}.",
        )
    if not archs:
        what = without_arch(backend, host) if gpus else f"no {maker} GPU was found in this host"
        tools = "nvidia-smi" if backend == "cuda" else "the amdgpu driver's /sys/class/kfd, rocminfo and amdgpu-arch"
        raise UsageError(f"{asked}: {what} (asked {tools}).", hint="Give the arch with --arch.")
    return archs[0]


def without_arch(backend: str, host: Host) -> str:
    """Why a GPU that is in this host has no arch, as the words of a sentence."""
    if backend == "cuda":
        return f"this host's NVIDIA GPU does not say which arch it has: {nvidia_silence(host)}"
    return "this host's AMD GPU does not say which arch it has"


def nvidia_silence(host: Host) -> str:
    """What nvidia-smi does in place of telling an NVIDIA GPU's arch: a driver that was updated under it answers so."""
    done = host.run(_SMI)
    if done.returncode == NOT_FOUND and not done.tail:
        return "nvidia-smi was not found"
    line = next((line.strip().rstrip(".") for line in done.tail if line.strip()), "nothing")
    return f"nvidia-smi says {line!r}"


def readable(host: Host, path: str) -> str:
    """A file's content, or nothing where it is missing or may not be read."""
    try:
        return host.read(path) or ""
    except PermissionError:
        return ""


def _pci_gpus(host: Host) -> list[Gpu]:
    gpus = []
    for bus in host.names(_PCI):
        if not readable(host, f"{_PCI}/{bus}/class").startswith(_DISPLAY_CLASSES):
            continue
        vendor = _VENDORS.get(readable(host, f"{_PCI}/{bus}/vendor"))
        if vendor is None:
            continue
        device = readable(host, f"{_PCI}/{bus}/device")
        memory = readable(host, f"{_PCI}/{bus}/mem_info_vram_total")
        gpus.append(
            Gpu(
                vendor=vendor,
                bus=bus,
                name=f"{vendor} {device}".strip(),
                arch="",
                memory_bytes=int(memory) if memory.isdigit() else None,
                # The kernel module answers where nvidia-smi does not.
                driver=readable(host, "/sys/module/nvidia/version").strip() if vendor == "nvidia" else "",
            )
        )
    return gpus


def _nvidia_gpus(host: Host) -> list[Gpu]:
    done = host.run(_SMI)
    gpus = []
    for line in done.tail if done.ok else ():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 5 or not re.fullmatch(r"\d+\.\d+", fields[2]):
            continue
        bus, name, capability, memory, driver = fields
        domain, _, rest = bus.lower().partition(":")
        gpus.append(
            Gpu(
                vendor="nvidia",
                bus=f"{domain[-4:]}:{rest}",
                name=name,
                arch=capability.replace(".", ""),
                # nvidia-smi counts in MiB; integrated devices answer [N/A].
                memory_bytes=int(memory) * 1024 * 1024 if memory.isdigit() else None,
                driver=driver,
            )
        )
    return gpus


def _amd_gpus(host: Host, addressed: list[str]) -> list[Gpu]:
    """What the kernel's topology says, else what tools say; ``addressed`` are the PCI addresses of AMD GPUs."""
    gpus = []
    for node in host.names(_KFD):
        pairs = (line.split() for line in readable(host, f"{_KFD}/{node}/properties").splitlines())
        facts = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        version = facts.get("gfx_target_version", 0)
        if version:
            location = facts.get("location_id", 0)
            bus = f"{facts.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
            gpus.append(Gpu("amd", bus=bus, name="", arch=gfx_name(version), memory_bytes=None, driver=""))
    return gpus or _amd_gpus_of_tools(host, addressed)


def _amd_gpus_of_tools(host: Host, addressed: list[str]) -> list[Gpu]:
    """Where the topology files cannot be read: names alone, which are the PCI devices' where there are as many."""
    trees = [place for place in (host.env.get("ROCM_PATH", ""), "/opt/rocm") if place]
    programs = [
        *((place, _NAME_LINE) for place in ("rocminfo", *(f"{t}/bin/rocminfo" for t in trees))),
        *((place, _ARCH_LINE) for place in ("amdgpu-arch", *(f"{t}/lib/llvm/bin/amdgpu-arch" for t in trees))),
    ]
    for program, pattern in programs:
        done = host.run([program])
        names = re.findall(pattern, done.text, re.MULTILINE) if done.ok else []
        if names:
            # Both list the devices in the driver's order, which is that of the PCI addresses.
            known = len(names) == len(addressed)
            buses = addressed if known else [""] * len(names)
            labels = [""] * len(names) if known else names
            return [
                Gpu("amd", bus=bus, name=label, arch=name, memory_bytes=None, driver="")
                for bus, label, name in zip(buses, labels, names, strict=True)
            ]
    return []
