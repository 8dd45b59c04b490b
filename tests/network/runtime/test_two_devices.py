"""Layer splits and drafters on two devices, for real: ggml's RPC backend makes a device of each of two processes.

The plugin and its server are built from the bundle's own tree (20 files); everything listens on loopback alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.core.process import end_group
from llamabuild.runtime.gguf_model import load_model
from llamabuild.runtime.measure import parse_buffers
from llamabuild.runtime.placement import Device, Plan, place
from llamabuild.runtime.serve_check import check_command, probe_symbols
from llamabuild.runtime.server import ServerError, free_port, serve
from llamabuild.runtime.signatures import recognise
from llamabuild.runtime.sizing import Serving
from llamabuild.runtime.smoke import run_smoke
from llamabuild.runtime.tiny import write_tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.core.context import Context

pytestmark = pytest.mark.network

MIB = 1 << 20
LAYERS = 8
FLAGS = ("-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=OFF", "-DGGML_BACKEND_DL=ON", "-DGGML_RPC=ON", "-DGGML_CPU=OFF",
         "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_OPENSSL=OFF",
         "-DCMAKE_BUILD_TYPE=Release")  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A bundle with the RPC plugin, and the flags that make two running processes its devices."""

    bundle: Path
    flags: tuple[str, ...]
    endpoints: tuple[str, str]

    def by_device(self, lines: list[str]) -> list[str]:
        """Log lines with the devices' names in them: a buffer is called by its endpoint."""
        for number, endpoint in enumerate(self.endpoints):
            lines = [line.replace(f"RPC0[{endpoint}]", f"RPC{number}") for line in lines]
        return lines


@pytest.fixture(scope="module")
def rpc(bundle: Path, source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The bundle with the plugin in it, and the folder of the RPC server."""
    folder = tmp_path_factory.mktemp("rpc")
    tools = Path(sys.executable).parent
    build = folder / "build"
    configure = [
        tools / "cmake",
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        "-S",
        source_tree,
        "-B",
        build,
    ]
    subprocess.run([*configure, *FLAGS], check=True, stdout=subprocess.DEVNULL)
    targets = ("ggml-rpc", "ggml-rpc-server")
    subprocess.run([tools / "cmake", "--build", build, "--target", *targets], check=True, stdout=subprocess.DEVNULL)
    copy = folder / "bundle"
    for part in ("bin", "lib"):
        if (bundle / part).is_dir():
            shutil.copytree(bundle / part, copy / part, symlinks=True)
    shutil.copy2(build / "bin" / "libggml-rpc.so", copy / "bin")
    for plugin in (bundle / "bin").glob("libggml-cpu*.so"):
        shutil.copy2(plugin, build / "bin")
    return copy, build / "bin"


@pytest.fixture
def machine(rpc: tuple[Path, Path], tmp_path: Path) -> Iterator[Machine]:
    """Two fresh devices: a server that aborts can take a device with it."""
    copy, tools = rpc
    endpoints = (f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    with contextlib.ExitStack() as stack:
        for endpoint in endpoints:
            host, _, port = endpoint.partition(":")
            log = stack.enter_context((tmp_path / f"rpc-{port}.log").open("wb"))
            device = subprocess.Popen(
                [tools / "ggml-rpc-server", "-H", host, "-p", port], stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(end_group, device)
            wait_for(int(port))
        flags = ("--rpc", ",".join(endpoints), "-ngl", "all", "--fit", "off", "-t", "1", "-lv", "4", "-np", "1")
        yield Machine(copy, flags, endpoints)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"no RPC server on port {port}")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    sizes: dict[str, Any] = {"width": 256, "heads": 8, "kv_heads": 4, "head_size": 64, "feed_forward": 1024}
    sizes |= {"vocab": 4000, "context": 1 << 20}
    target = write_tiny_model(
        folder / "t.gguf", kind="hybrid", layers=LAYERS, state_size=32, state_heads=16, **sizes
    )  # fmt: skip
    return target, write_tiny_model(folder / "d.gguf", kind="dflash2", layers=3, **sizes)


def drafting(pair: tuple[Path, Path], *flags: str) -> list[str]:
    words = ["-m", str(pair[0]), "-md", str(pair[1]), "--spec-type", "draft-dflash", "--spec-draft-n-max", "7"]
    return [*words, "-c", "2048", *flags]


@pytest.mark.parametrize("first", [1, 4, 8])
def test_each_device_carries_what_was_predicted(
    machine: Machine, pair: tuple[Path, Path], tmp_path: Path, first: int
) -> None:
    plan = Plan(load_model(str(pair[0])), Serving(context=16384), (Device("RPC0", 1 << 40), Device("RPC1", 1 << 40)))
    row = place(plan, (first, LAYERS + 1 - first))
    words = [*machine.flags, "-m", str(pair[0]), "-c", "16384", "-ts", row.tensor_split, "--no-warmup"]
    with serve(machine.bundle, words, env=os.environ, log=tmp_path / "log") as server:
        found = parse_buffers(machine.by_device(server.lines()))
    for load in row.loads:
        said = found[load.device.name]
        assert load.kv == pytest.approx(said.kv, abs=0.006 * MIB)
        assert load.state == pytest.approx(said.state, abs=0.006 * MIB)
        assert load.weights == pytest.approx(said.model, abs=0.02 * MIB)
        assert load.total == pytest.approx(said.total, rel=0.05)
    host = sum(buffers.total for name, buffers in found.items() if name.startswith("CPU"))
    assert row.host == pytest.approx(host, rel=0.05)


def test_the_battery_over_a_layer_split_with_a_pinned_drafter(
    machine: Machine, pair: tuple[Path, Path], context: Context, tmp_path: Path
) -> None:
    flags = [*machine.flags[:-2], "-c", "2048", "-ts", "5,4", "-devd", "RPC1"]
    report = run_smoke(
        machine.bundle, context, subject="b", model=pair[0], draft=pair[1], log=tmp_path / "log", flags=flags
    )
    assert report.ok, report.checks
    assert next(check for check in report.checks if check.name == "drafts").state == "passed"


def outcome(machine: Machine, words: list[str], log: Path) -> set[str]:
    """Names of the failures that a load, or its first drafted request, shows; empty when it answers."""
    try:
        with serve(machine.bundle, [*machine.flags, *words], env=os.environ, log=log) as server:
            answer = server.post("/completion", {"prompt": "hello there", "n_predict": 16, "ignore_eos": True})
            assert answer.ok
            assert answer.body["timings"]["draft_n"] > 0
    except ServerError:
        return {finding.name for finding in recognise(log.read_text(errors="replace").splitlines())} or {"unnamed"}
    return set()


def judged(machine: Machine, words: list[str], context: Context) -> dict[str, str]:
    line = ["llama-server", *machine.flags, *words]
    report = check_command(line, machine.bundle, context, devices=["RPC0", "RPC1"])
    return {finding.name: finding.severity for finding in report.findings}


def test_a_drafter_beside_the_last_layers_serves(
    machine: Machine, pair: tuple[Path, Path], context: Context, tmp_path: Path
) -> None:
    words = drafting(pair, "-ts", "5,4", "-devd", "RPC1")
    assert judged(machine, words, context) == {}
    assert outcome(machine, words, tmp_path / "log") == set()


def test_an_unpinned_drafter_serves_and_is_a_warning(
    machine: Machine, pair: tuple[Path, Path], context: Context, tmp_path: Path
) -> None:
    words = drafting(pair, "-ts", "5,4")
    assert judged(machine, words, context) == {"draft.unpinned": "warning"}
    assert outcome(machine, words, tmp_path / "log") == set()


def test_a_drafter_away_from_the_last_layers_aborts(
    machine: Machine, pair: tuple[Path, Path], context: Context, tmp_path: Path
) -> None:
    words = drafting(pair, "-ts", "5,4", "-devd", "RPC0")
    assert judged(machine, words, context) == {"draft.elsewhere": "error"}
    assert outcome(machine, words, tmp_path / "log") == {"runtime.tensor-placement"}


def test_a_drafter_pinned_under_a_tensor_split_aborts(
    machine: Machine, pair: tuple[Path, Path], context: Context, tmp_path: Path
) -> None:
    words = drafting(pair, "-sm", "tensor", "-devd", "RPC1")
    assert judged(machine, words, context)["draft.pinned"] == "error"
    assert outcome(machine, words, tmp_path / "log") == {"runtime.tensor-placement"}


def test_dflash2_under_a_tensor_split_aborts_without_its_series(
    machine: Machine, pair: tuple[Path, Path], context: Context, tmp_path: Path
) -> None:
    words = drafting(pair, "-sm", "tensor")
    if "llama_model_get_split_mode" in probe_symbols(machine.bundle):
        pytest.skip("this bundle has the dflash2-tensor series")
    assert judged(machine, words, context)["draft.tensor-series"] == "error"
    assert outcome(machine, words, tmp_path / "log") == {"runtime.dflash2-tensor-split"}


def test_rpc_has_to_come_before_its_devices(
    machine: Machine, pair: tuple[Path, Path], context: Context, tmp_path: Path
) -> None:
    words = ["-devd", "RPC1", *machine.flags, "-md", str(pair[1]), "-m", str(pair[0]), "-c", "2048", "-ts", "5,4"]
    report = check_command(["llama-server", *words], machine.bundle, context, devices=["RPC0", "RPC1"])
    assert [finding.name for finding in report.findings] == ["rpc.order"]
    with pytest.raises(ServerError), serve(machine.bundle, words, env=os.environ, log=tmp_path / "log"):
        pass
