"""Devices of a program that lists them, that has a silent plugin, or that does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from llamabuild.runtime.devices import list_devices
from llamabuild.runtime.server import ServerError

if TYPE_CHECKING:
    from pathlib import Path


def bundle(folder: Path, script: str, *plugins: str) -> Path:
    program = folder / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    for name in plugins:
        (program.parent / f"libggml-{name}.so").touch()
    return folder


def test_a_plugin_without_a_device_is_silent(tmp_path: Path) -> None:
    script = "echo 'Available devices:'; echo '  CUDA0: NVIDIA RTX A4000 (16376 MiB, 16000 MiB free)'"
    found = list_devices(bundle(tmp_path, script, "cuda", "vulkan", "cpu"), env={})
    assert [device.name for device in found.devices] == ["CUDA0"]
    assert found.silent == ("Vulkan",)


def test_a_program_that_does_not_run_is_not_a_missing_device(tmp_path: Path) -> None:
    script = "echo 'libfoo.so.1: cannot open shared object file' >&2; exit 127"
    with pytest.raises(ServerError, match="ended with status 127") as caught:
        list_devices(bundle(tmp_path, script, "hip"), env={})
    assert caught.value.details == ("libfoo.so.1: cannot open shared object file",)


def test_a_folder_without_the_program(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="holds no bin/llama-server"):
        list_devices(tmp_path, env={})
