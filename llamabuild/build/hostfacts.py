"""Facts of a host that decide how several devices can be used, each with what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llamabuild.build.archs import shares_memory
from llamabuild.build.devices import Gpu, find_gpus, nvidia_silence, readable
from llamabuild.build.drivers import driver_floor, driver_key
from llamabuild.build.host import NOT_FOUND

if TYPE_CHECKING:
    from llamabuild.build.host import Host

_PCI = "/sys/bus/pci/devices"
_LANES = re.compile(r"\d+")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GIB = 1024**3

Atomics = Literal["enabled", "off", "unknown"]


@dataclass(frozen=True)
class Link:
    """The narrowest and slowest PCIe link between a GPU and its root port."""

    speed: str
    """As sysfs says it: ``16.0 GT/s PCIe``."""
    width: int
    max_speed: str
    max_width: int

    @property
    def reduced(self) -> bool:
        """Whether the link has fewer lanes than the device could use; its speed falls at idle and says nothing."""
        return self.width < self.max_width


@dataclass(frozen=True)
class GpuFacts:
    """One GPU and what was read about it."""

    gpu: Gpu
    link: Link | None
    atomics: Atomics
    """``AtomicOpsCtl: ReqEn`` of the device."""
    vram_bytes: int | None
    gtt_bytes: int | None
    """What amdgpu may map of the system's memory."""
    unified: bool | None
    """Whether its memory is the system's; None where that could not be told."""
    driver_floor: str
    """The oldest NVIDIA driver for the installed toolkit's SASS; empty for others, or without a toolkit."""

    @property
    def driver_ok(self) -> bool | None:
        """Whether the driver is new enough; None where there is nothing to compare."""
        if not self.gpu.driver or not self.driver_floor:
            return None
        return driver_key(self.gpu.driver) >= driver_key(self.driver_floor)


@dataclass(frozen=True)
class HostFacts:
    """A host."""

    machine: str
    kernel: str
    distribution: str
    cores: int
    memory_bytes: int | None
    gpus: tuple[GpuFacts, ...]
    notes: tuple[str, ...]
    """What the facts mean, one sentence each."""
    unread: tuple[str, ...]
    """What could not be read, and what it takes to read it."""


def read_host_facts(host: Host, *, toolkit: str = "") -> HostFacts:
    """Look at a host; ``toolkit`` is the version of the CUDA toolkit that would be used, where there is one."""
    unread: list[str] = []
    gpus = tuple(_gpu_facts(gpu, host, toolkit, unread) for gpu in find_gpus(host))
    silent = [facts.gpu.bus for facts in gpus if facts.gpu.vendor == "nvidia" and not facts.gpu.arch]
    if silent:
        unread.append(f"arch and memory of {', '.join(silent)}: {nvidia_silence(host)}")
    memory = re.search(r"^MemTotal:\s+(\d+) kB", readable(host, "/proc/meminfo"), re.MULTILINE)
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', readable(host, "/etc/os-release"), re.MULTILINE)
    return HostFacts(
        machine=host.run(["uname", "-m"]).text.strip(),
        kernel=readable(host, "/proc/sys/kernel/osrelease").strip(),
        distribution=release[1] if release else "",
        cores=host.cores(),
        memory_bytes=int(memory[1]) * 1024 if memory else None,
        gpus=gpus,
        notes=tuple(_notes(gpus)),
        unread=tuple(dict.fromkeys(unread)),
    )


def _gpu_facts(gpu: Gpu, host: Host, toolkit: str, unread: list[str]) -> GpuFacts:
    vram = _number(host, f"{_PCI}/{gpu.bus}/mem_info_vram_total", unread)
    gtt = _number(host, f"{_PCI}/{gpu.bus}/mem_info_gtt_total", unread)
    return GpuFacts(
        gpu=gpu,
        link=_link(gpu, host),
        atomics=_atomics(gpu, host, unread),
        vram_bytes=vram,
        gtt_bytes=gtt,
        unified=_unified(gpu, vram, gtt),
        driver_floor=driver_floor(toolkit, (gpu.arch,)) if gpu.vendor == "nvidia" and gpu.arch else "",
    )


def _number(host: Host, path: str, unread: list[str]) -> int | None:
    try:
        text = host.read(path) or ""
    except PermissionError:
        unread.append(f"{path}: no permission")
        return None
    return int(text) if text.isdigit() else None


def _unified(gpu: Gpu, vram: int | None, gtt: int | None) -> bool | None:
    if gpu.vendor == "amd" and (known := shares_memory(gpu.arch)) is not None:
        # Sizes do not tell: the GTT window is half of the system's memory by default, so that a card in a large host
        # looks like an APU, and an APU with a large carve-out looks like a card.
        return known
    if vram is not None and gtt is not None:
        return gtt >= 4 * vram
    if gpu.vendor == "nvidia" and gpu.name:
        # nvidia-smi answers [N/A] for memory.total where a GPU has none of its own (Orin, Thor, GB10).
        return gpu.memory_bytes is None if gpu.arch else None
    return None


def _link(gpu: Gpu, host: Host) -> Link | None:
    """The link that counts: a card's own bridges are wide, and the slot above them may not be."""
    if not gpu.bus:
        return None
    chain = _ADDRESS.findall(host.resolve(f"{_PCI}/{gpu.bus}")) or [gpu.bus]
    links = [link for bus in chain if (link := _link_of(bus, host)) is not None]
    # Both ends of one link answer the same width: the end that could do more shows what is lost.
    return min(links, key=lambda link: (link.width * _rate(link.max_speed), -link.max_width), default=None)


def _link_of(bus: str, host: Host) -> Link | None:
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    speed, width, max_speed, max_width = (readable(host, f"{_PCI}/{bus}/{name}") for name in names)
    # Integrated devices and root complexes answer 0 lanes or "Unknown".
    if not (width.isdigit() and max_width.isdigit() and int(width) and _LANES.match(speed)):
        return None
    return Link(speed=speed, width=int(width), max_speed=max_speed, max_width=int(max_width))


def _rate(speed: str) -> float:
    found = re.match(r"\d+(?:\.\d+)?", speed)
    return float(found[0]) if found else 0.0


def _atomics(gpu: Gpu, host: Host, unread: list[str]) -> Atomics:
    if not gpu.bus:
        return "unknown"
    done = host.run(["lspci", "-vv", "-s", gpu.bus])
    found = re.search(r"AtomicOpsCtl:\s*ReqEn([+-])", done.text)
    if found:
        return "enabled" if found[1] == "+" else "off"
    if done.returncode == NOT_FOUND:
        unread.append("AtomicOpsCtl: lspci was not found (package pciutils)")
    elif "access denied" in done.text:
        unread.append(f"AtomicOpsCtl of {gpu.bus}: PCI capabilities are shown to root alone")
    return "unknown"


def _notes(gpus: tuple[GpuFacts, ...]) -> list[str]:
    notes = []
    # Where the arch does not tell, a GPU counts as a card here: sizes may take one for an APU.
    amd = [facts for facts in gpus if facts.gpu.vendor == "amd" and not shares_memory(facts.gpu.arch)]
    without = [facts.gpu.bus for facts in amd if facts.atomics == "off"]
    if len(amd) > 1 and without:
        notes.append(
            f"no PCIe atomics on {', '.join(without)} (AtomicOpsCtl: ReqEn-): collectives cannot work, so keep "
            "rccl = false and use --split-mode layer, not tensor."
        )
    for facts in gpus:
        name = f"{facts.gpu.name} ({facts.gpu.bus})" if facts.gpu.bus else facts.gpu.name
        if facts.unified:
            size = f": GTT {_gib(facts.gtt_bytes)} against VRAM {_gib(facts.vram_bytes)}" if facts.gtt_bytes else ""
            notes.append(f"{name} has unified memory{size}: what it holds is taken from the system's, none is added.")
        if facts.link and facts.link.reduced:
            notes.append(f"{name} runs on {facts.link.width} of {facts.link.max_width} PCIe lanes.")
        if facts.driver_ok is False:
            notes.append(
                f"{name}: driver {facts.gpu.driver} is older than {facts.driver_floor}, which the toolkit needs."
            )
    vendors = {facts.gpu.vendor for facts in gpus}
    if {"nvidia", "amd"} <= vendors:
        notes.append(
            "NVIDIA and AMD GPUs together: one build for both is cuda-vulkan (CUDA and HIP exclude each other); "
            "a layer split works across them, a tensor split does not."
        )
    return notes


def _gib(size: int | None) -> str:
    return f"{size / _GIB:.1f} GiB" if size is not None else "unknown"
