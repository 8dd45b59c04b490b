"""The devices that a bundle sees, and those that it should see."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.process import run
from llamabuild.runtime.server import ServerError, clean_environment, describe_status, find_program

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEVICE = re.compile(r"^\s+(?P<name>\S+): (?P<text>.*?)(?: \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\))?$")
_SECONDS = 120.0

_PLUGIN_DEVICES = {"cuda": "CUDA", "hip": "ROCm", "vulkan": "Vulkan", "sycl": "SYCL", "metal": "Metal"}
"""A backend's plugin (``libggml-<name>.so``) and how its devices are called."""


@dataclass(frozen=True)
class Device:
    """A line of ``--list-devices``. Sizes in bytes."""

    name: str
    description: str
    total: int
    free: int


@dataclass(frozen=True)
class DeviceList:
    """What a bundle sees, and what its plugins should have added."""

    devices: tuple[Device, ...]
    lines: tuple[str, ...]
    """All that the program said."""
    silent: tuple[str, ...]
    """Backends whose plugin is in the bundle and that showed no device: in a release build a plugin that fails to
    load says nothing else."""


def list_devices(bundle: Path, *, env: Mapping[str, str]) -> DeviceList:
    """Ask the bundle's own server. Raises ServerError when there is none or it fails, ToolError if it cannot start."""
    program = find_program(bundle)
    with tempfile.TemporaryDirectory(prefix="llamabuild-home-") as home:
        done = run(
            (program, "--list-devices"), env=clean_environment(env, home=Path(home)), timeout=_SECONDS, tail_lines=None
        )
    if not done.ok:
        raise ServerError(
            f"{program.name} --list-devices ended {describe_status(done.returncode)}.",
            hint="The program itself does not run; llamabuild verify says what it lacks.",
            details=done.tail[-6:],
        )
    devices = parse_devices(done.text)
    wanted = {label for name, label in _PLUGIN_DEVICES.items() if any(program.parent.glob(f"libggml-{name}*.so"))}
    seen = {re.sub(r"\d+$", "", device.name) for device in devices}
    return DeviceList(devices=devices, lines=done.tail, silent=tuple(sorted(wanted - seen)))


def parse_devices(text: str) -> tuple[Device, ...]:
    """The devices below ``Available devices:``."""
    _, found, rest = text.partition("Available devices:")
    devices = []
    for line in rest.splitlines()[1:] if found else []:
        match = _DEVICE.match(line)
        if match is None:
            break
        devices.append(
            Device(
                name=match["name"],
                description=match["text"],
                total=int(match["total"] or 0) << 20,
                free=int(match["free"] or 0) << 20,
            )
        )
    return tuple(devices)
