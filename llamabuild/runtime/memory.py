"""How much memory each device uses, asked of the vendors' tools, of sysfs and of ``/proc``."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import LlamabuildError
from llamabuild.core.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOOL_SECONDS = 20.0
_MIB = 1 << 20


@dataclass(frozen=True)
class DeviceMemory:
    """One device's memory, in bytes."""

    name: str
    used: int
    total: int
    source: str
    """Who said so: ``nvidia-smi``, ``rocm-smi``, ``sysfs``."""
    shared: int = 0
    """System memory that the device may use as its own (GTT): no capacity is added by it."""


@dataclass(frozen=True)
class MemorySample:
    """All devices, and the process itself, at one moment. In bytes."""

    devices: tuple[DeviceMemory, ...]
    process: int
    """Resident memory of the server; 0 when there is none yet."""
    anonymous: int = 0
    """Of ``process``, what is not backed by a file: the part that holds caches and buffers, not the mapped model."""


def sample_memory(*, env: Mapping[str, str], pid: int | None = None, root: Path = Path("/")) -> MemorySample:
    """Ask whatever there is. A tool that is missing or fails adds nothing; ``/proc`` is always there.

    ``root`` is where ``proc`` and ``sys`` are looked for.
    """
    devices = _nvidia(env) or ()
    # rocm-smi and sysfs tell of the same cards.
    devices += _rocm(env) or _sysfs(root / "sys/class/drm")
    resident, anonymous = _process(root / "proc", pid) if pid else (0, 0)
    return MemorySample(devices=devices, process=resident, anonymous=anonymous)


def parse_nvidia_smi(text: str) -> tuple[DeviceMemory, ...]:
    """Lines of ``--query-gpu=index,name,memory.used,memory.total --format=csv,noheader,nounits`` (MiB).

    A value that is no number (``[N/A]`` on devices that share the system's memory) counts as 0.
    """
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isdigit():
            used, total = (int(cell) * _MIB if cell.isdigit() else 0 for cell in cells[2:])
            found.append(DeviceMemory(f"CUDA{cells[0]} ({cells[1]})", used, total, "nvidia-smi"))
    return tuple(found)


def parse_rocm_smi(text: str) -> tuple[DeviceMemory, ...]:
    """The document of ``rocm-smi --showmeminfo vram gtt --json``; warnings around it are skipped."""
    start, end = text.find("{"), text.rfind("}")
    try:
        cards = json.loads(text[start : end + 1]) if start >= 0 else {}
    except ValueError:
        return ()
    found = []
    for card, values in sorted(cards.items()):
        if not card.startswith("card") or not isinstance(values, dict):
            continue
        number = card.removeprefix("card")
        found.append(
            DeviceMemory(
                name=f"ROCm{number}",
                used=_number(values.get("VRAM Total Used Memory (B)")),
                total=_number(values.get("VRAM Total Memory (B)")),
                source="rocm-smi",
                shared=_number(values.get("GTT Total Memory (B)")),
            )
        )
    return tuple(found)


def _number(value: object) -> int:
    return int(value) if isinstance(value, str) and value.isdigit() else 0


def _nvidia(env: Mapping[str, str]) -> tuple[DeviceMemory, ...]:
    query = "--query-gpu=index,name,memory.used,memory.total"
    return parse_nvidia_smi(_output("nvidia-smi", (query, "--format=csv,noheader,nounits"), env))


def _rocm(env: Mapping[str, str]) -> tuple[DeviceMemory, ...]:
    return parse_rocm_smi(_output("rocm-smi", ("--showmeminfo", "vram", "gtt", "--json"), env))


def _output(tool: str, arguments: tuple[str, ...], env: Mapping[str, str]) -> str:
    program = shutil.which(tool, path=env.get("PATH"))
    if program is None:
        return ""
    try:
        done = run((program, *arguments), env=env, timeout=_TOOL_SECONDS)
    except LlamabuildError:
        return ""
    return done.text if done.ok else ""


def _sysfs(folder: Path) -> tuple[DeviceMemory, ...]:
    """The files of amdgpu; other drivers have none."""
    found = []
    for used in sorted(folder.glob("card*/device/mem_info_vram_used")):
        device = used.parent
        found.append(
            DeviceMemory(
                name=device.parent.name,
                used=_read_number(used),
                total=_read_number(device / "mem_info_vram_total"),
                source="sysfs",
                shared=_read_number(device / "mem_info_gtt_total"),
            )
        )
    return tuple(found)


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _process(folder: Path, pid: int) -> tuple[int, int]:
    sizes = {"VmRSS": 0, "RssAnon": 0}
    try:
        for line in (folder / str(pid) / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in sizes:
                sizes[name] = int(value.split()[0]) * 1024
    except OSError:
        return 0, 0
    return sizes["VmRSS"], sizes["RssAnon"]
