"""How many compile steps to run at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamabuild.build.devices import readable
from llamabuild.build.launchers import farm_machines, farm_slots

if TYPE_CHECKING:
    from llamabuild.build.host import Host
    from llamabuild.build.model import Target

_MIB = 1024 * 1024
_STEP_BYTES = {"cpu": 1024 * _MIB, "vulkan": 1536 * _MIB, "cuda": 2048 * _MIB, "hip": 2048 * _MIB}
"""Memory of one compile step. llama.cpp's largest C++ files take just under 1 GiB, CUDA steps about 2 GiB."""


def default_jobs(target: Target, host: Host, *, farm: str | None = None) -> int:
    """Ninja's ``-j`` for a target: what cores and memory allow, control groups included; at least 1.

    With distcc as ``farm``, what its hosts take, where that is more. Not for a target with CUDA or HIP: those steps are
    compiled here, as many at once as there are jobs. icecc has no such question to ask.
    """
    local = _local_jobs(target, host)
    if farm != "distcc" or {"cuda", "hip"} & set(target.backends) or not farm_machines(host):
        return local
    return max(local, farm_slots(host))


def _local_jobs(target: Target, host: Host) -> int:
    step = max(_STEP_BYTES[backend] for backend in ("cpu", *target.backends))
    memory = _memory_bytes(host)
    by_memory = memory // step if memory is not None else host.cores()
    return max(1, min(_cores(host), by_memory))


def _cores(host: Host) -> int:
    quota, _, period = readable(host, "/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, min(host.cores(), -(-int(quota) // int(period))))
    return host.cores()


def _memory_bytes(host: Host) -> int | None:
    """Memory that can be had without swapping: the smaller of what the system and the control group have left."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", readable(host, "/proc/meminfo"), re.MULTILINE)
    limits = [int(available[1]) * 1024] if available else []
    most, used = (readable(host, f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if most.isdigit() and used.isdigit():
        # The page cache counts as used here and can be given back, so the limit is a floor, not a ceiling.
        limits.append(max(int(most) - int(used), int(most) // 2))
    return min(limits) if limits else None
