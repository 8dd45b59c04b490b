"""The battery against the real server: green on sound models, and each fault by its own name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from llamabuild.cli import main
from llamabuild.runtime import battery, server, smoke
from llamabuild.runtime.tiny import CHAT_TEMPLATE, write_tiny_model

if TYPE_CHECKING:
    from llamabuild.core.context import Context

pytestmark = pytest.mark.network


def states(report: smoke.SmokeReport) -> dict[str, str]:
    return {check.name: check.state for check in report.checks}


@pytest.mark.parametrize("kind", ["dense", "moe", "dflash2"])
def test_the_battery_is_green(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("LLAMABUILD_HOME", str(tmp_path))
    assert main(["smoke", str(bundle), "--tiny", kind, "--json", "--", "-c", "1500", "-np", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {check["name"]: check for check in document["checks"]}
    assert list(found) == ["devices", *(name for name, _ in battery.BATTERY), "shutdown"]
    # 1500 becomes 1536, a third of that is 512.
    assert found["slots"]["message"] == "3 slots of 512 positions"
    assert found["long-prompt"]["message"].startswith("480 of 512 tokens")
    assert found["tool-call"]["state"] == "passed"
    assert document["reasoning_effort"] == dict.fromkeys(("low", "medium", "high", "xhigh"), "accepted")
    assert found["drafts"]["state"] == ("passed" if kind == "dflash2" else "skipped")
    assert document["memory"]["loaded"]["process"] > 0
    assert document["findings"] == []


def test_an_archive_is_unpacked_elsewhere_and_leaves_nothing(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "b.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for part in ("bin", "lib"):
            if (bundle / part).is_dir():
                tar.add(bundle / part, f"llama-b/{part}")
    place = tmp_path / "unpacked"
    place.mkdir()
    monkeypatch.setenv("LLAMABUILD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    assert main(["smoke", str(archive)]) == 0
    assert "ok: 13 of 14 checks passed" in capsys.readouterr().out
    assert list(place.iterdir()) == []


def test_a_template_that_raises_on_one_level_is_found(bundle: Path, context: Context, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=CHAT_TEMPLATE.replace("refuse-me", "high"))
    report = smoke.run_smoke(bundle, context, subject="b", model=model, log=tmp_path / "log")
    assert report.ok
    assert [(finding.name, finding.severity) for finding in report.findings] == [
        ("runtime.reasoning-effort", "warning")
    ]
    assert "high REFUSED" in next(check.message for check in report.checks if check.name == "reasoning-effort")
    # Field reports tell of 500; v0.5.0 answers 400. The report says what was answered.
    assert report.efforts["high"].startswith(("400: ", "500: "))
    assert "unsupported reasoning effort" in report.efforts["high"]
    assert report.efforts["low"] == report.efforts["xhigh"] == "accepted"


def test_tensors_that_the_build_does_not_know(bundle: Path, context: Context, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    reader = gguf.GGUFReader(write_tiny_model(tmp_path / "sound.gguf"))
    writer = gguf.GGUFWriter(model, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("blk.0.attn_conv_base", np.ones((4, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    report = smoke.run_smoke(bundle, context, subject="b", model=model, log=tmp_path / "log")
    assert states(report) == {"devices": "passed", "start": "failed"}
    assert [finding.name for finding in report.findings] == ["runtime.unknown-tensors"]
    assert "expected 22, got 21" in report.findings[0].evidence


def test_memory_that_is_not_there(bundle: Path, models: dict[str, Path], tmp_path: Path) -> None:
    # 512 bytes a position in f32, 8,388,608 positions: 4 GiB, where the process may have 3.
    argv = [sys.executable, "-m", "llamabuild", "smoke", bundle, "--model", models["dense"], "--json", "--"]
    argv += ["-c", "8388608", "-np", "1", "-ctk", "f32", "-ctv", "f32"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -v 3145728; exec "$@"', "bash", *argv],
        env={**os.environ, "LLAMABUILD_HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert [finding["name"] for finding in document["findings"]] == ["runtime.out-of-memory"]


def test_an_older_server_holds_the_port(
    bundle: Path, context: Context, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as older:
        older.bind(("127.0.0.1", 0))
        older.listen()
        port = older.getsockname()[1]
        monkeypatch.setattr(server, "free_port", lambda: port)
        monkeypatch.setattr(server, "_is_healthy", lambda _: False)
        report = smoke.run_smoke(bundle, context, subject="b", model=models["dense"], log=tmp_path / "log")
    assert [finding.name for finding in report.findings] == ["runtime.port-taken"]


def test_a_flag_that_the_build_does_not_know(
    bundle: Path, context: Context, models: dict[str, Path], tmp_path: Path
) -> None:
    report = smoke.run_smoke(
        bundle, context, subject="b", model=models["dense"], log=tmp_path / "log", flags=["--seq-compact"]
    )
    assert [finding.name for finding in report.findings] == ["runtime.unknown-argument"]


def test_a_plugin_that_does_not_load_is_a_missing_device(
    bundle: Path, context: Context, models: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle / "bin", copy / "bin", symlinks=True)
    if (bundle / "lib").is_dir():
        shutil.copytree(bundle / "lib", copy / "lib", symlinks=True)
    (copy / "bin" / "libggml-cuda.so").write_bytes(b"\x7fELF but nothing that could be loaded")
    report = smoke.run_smoke(copy, context, subject="b", model=models["dense"], log=tmp_path / "log")
    assert states(report)["devices"] == "failed"
    assert "any CUDA device is expected and not there" in report.checks[0].message
    assert states(report)["completion"] == "passed"
    report = smoke.run_smoke(
        bundle, context, subject="b", model=models["dense"], log=tmp_path / "log", expected_devices=["ROCm1"]
    )
    assert "ROCm1 is expected" in report.checks[0].message


def test_a_server_that_dies_leaves_what_was_learned(
    bundle: Path, context: Context, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(exam: battery.Exam) -> str:
        os.kill(exam.server.pid, signal.SIGABRT)
        return battery.check_completion(exam)

    monkeypatch.setattr(smoke, "BATTERY", (*battery.BATTERY[:3], ("completion", kill), *battery.BATTERY[4:6]))
    report = smoke.run_smoke(bundle, context, subject="b", model=models["dense"], log=tmp_path / "log")
    assert list(states(report).values()) == ["passed"] * 4 + ["failed"] + ["skipped"] * 3
    failed = report.checks[4].message
    assert "the server has ended by signal 6" in failed


def test_every_check_fails_when_its_answer_is_wrong(
    bundle: Path, context: Context, models: dict[str, Path], tmp_path: Path
) -> None:
    """What is asked for is not what runs: one slot more, another window, a drafter that is not there."""
    with server.serve(
        bundle, ["-m", str(models["dense"]), "-c", "512", "-np", "1", "-t", "1"], env=os.environ, log=tmp_path / "log"
    ) as running:
        exam = battery.Exam(server=running, slots=2, slot_context=1024, drafted=True, tiny=True)
        failed = set()
        for name, check in battery.BATTERY:
            try:
                check(exam)
            except battery.CheckFailed:
                failed.add(name)
    # No --metrics, one slot of 512.
    assert failed == {"slots", "two-at-once", "long-prompt", "metrics", "drafts"}
