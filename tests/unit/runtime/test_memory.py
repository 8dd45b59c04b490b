"""Memory as the vendors' tools tell it: recorded outputs, and a folder that looks like sysfs."""

from __future__ import annotations

import os
from pathlib import Path

from llamabuild.runtime.devices import Device, parse_devices
from llamabuild.runtime.memory import parse_nvidia_smi, parse_rocm_smi, sample_memory

MIB = 1 << 20

NVIDIA = """\
0, NVIDIA GeForce RTX 3090, 20013, 24576
1, NVIDIA RTX A4000, 411, 16376
2, NVIDIA GB10, [N/A], [N/A]
"""

ROCM = """\
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"VRAM Total Memory (B)": "17163091968", "VRAM Total Used Memory (B)": "27901952",
 "GTT Total Memory (B)": "33452457984", "GTT Total Used Memory (B)": "14270464"},
 "system": {"Driver version": "6.12.12"}}
"""

DEVICES = """\
ggml_cuda_init: found 2 CUDA devices:
Available devices:
  CUDA0: NVIDIA GeForce RTX 3090 (24135 MiB, 23800 MiB free)
  Vulkan1: AMD Radeon 8060S (RADV STRIX_HALO) (98304 MiB, 97000 MiB free)

"""


def test_nvidia_smi() -> None:
    found = parse_nvidia_smi(NVIDIA)
    assert [(device.name, device.used, device.total) for device in found] == [
        ("CUDA0 (NVIDIA GeForce RTX 3090)", 20013 * MIB, 24576 * MIB),
        ("CUDA1 (NVIDIA RTX A4000)", 411 * MIB, 16376 * MIB),
        ("CUDA2 (NVIDIA GB10)", 0, 0),
    ]
    assert parse_nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") == ()


def test_rocm_smi() -> None:
    (card,) = parse_rocm_smi(ROCM)
    assert (card.name, card.used, card.total, card.shared) == ("ROCm0", 27901952, 17163091968, 33452457984)
    assert parse_rocm_smi("no devices") == parse_rocm_smi("{broken}") == ()


def test_tools_on_the_path_are_asked_and_a_failing_one_adds_nothing(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{NVIDIA}END\n")
    (tmp_path / "rocm-smi").write_text("#!/bin/sh\nexit 2\n")
    for tool in tmp_path.iterdir():
        tool.chmod(0o755)
    sample = sample_memory(env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, root=tmp_path)
    assert [device.source for device in sample.devices] == ["nvidia-smi"] * 3
    assert sample.process == 0


def test_sysfs_tells_when_no_tool_does(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/drm/card1/device"
    device.mkdir(parents=True)
    for name, value in (("vram_used", 5), ("vram_total", 7), ("gtt_total", 11)):
        (device / f"mem_info_{name}").write_text(f"{value}\n")
    (card,) = sample_memory(env={"PATH": ""}, root=tmp_path).devices
    assert (card.name, card.used, card.total, card.shared, card.source) == ("card1", 5, 7, 11, "sysfs")


def test_a_process_is_read_from_proc() -> None:
    held = bytearray(64 * MIB)
    sample = sample_memory(env={"PATH": ""}, pid=os.getpid())
    assert sample.process > sample.anonymous > len(held) // 2
    assert sample_memory(env={"PATH": ""}, pid=2**22 + 5).process == 0


def test_devices_of_a_bundle() -> None:
    assert parse_devices(DEVICES) == (
        Device("CUDA0", "NVIDIA GeForce RTX 3090", 24135 * MIB, 23800 * MIB),
        Device("Vulkan1", "AMD Radeon 8060S (RADV STRIX_HALO)", 98304 * MIB, 97000 * MIB),
    )
    assert parse_devices("Available devices:\n  (none)\n") == parse_devices("nothing at all") == ()
