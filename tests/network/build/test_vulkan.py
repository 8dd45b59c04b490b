"""The real Vulkan backend: built, and run on a device that is a CPU."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from llamabuild.build.model import BuildOptions
from llamabuild.runtime.tiny import write_tiny_model

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_the_vulkan_backend_is_built_and_answers_on_lavapipe(real: Any, vulkan_sdk: Path, tmp_path: Path) -> None:
    drivers = [*Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")]
    if not drivers:
        pytest.skip("no Vulkan device on the CPU here (package mesa-vulkan-drivers)")
    options = BuildOptions(vulkan_sdk=vulkan_sdk)
    tree = real.build(real.prepare("vulkan", options=options, backends=("vulkan",)))
    server = next(file.path for file in tree.files if file.target == "llama-server")
    # Without the variable ggml passes over Vulkan devices that are CPUs.
    env = {**real.context.env, "GGML_VK_VISIBLE_DEVICES": "0", "VK_DRIVER_FILES": str(drivers[0])}
    listed = subprocess.run([server, "--list-devices"], env=env, capture_output=True, text=True, check=True)
    assert re.search(r"Vulkan0: llvmpipe", listed.stdout + listed.stderr)
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [
        server,
        "-m",
        model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "-c",
        "256",
        "-dev",
        "Vulkan0",
        "-ngl",
        "99",
    ]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            assert answer(port, {"prompt": "hello", "n_predict": 4}, child)["tokens_predicted"] == 4
        finally:
            child.terminate()


def answer(port: int, body: dict[str, Any], child: subprocess.Popen[bytes]) -> Any:
    """Ask for a completion as soon as the server answers at all."""
    data = json.dumps(body).encode()
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/completion", data, timeout=60) as reply:
                return json.load(reply)
        except (urllib.error.URLError, ConnectionError):
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
