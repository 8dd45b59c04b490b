"""What serve-check says of a line, held against what the real server does with it."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING

import pytest

from llamabuild.cli import main
from llamabuild.runtime.serve_check import check_command, probe_symbols
from llamabuild.runtime.server import ServerError, serve
from llamabuild.runtime.tiny import write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from llamabuild.core.context import Context

pytestmark = pytest.mark.network

REFUSED = {
    "flag.unknown": "--seq-compact",
    "flag.value": "-sm sideways",
    "flag.removed": "--draft-max 5",
    "cache.flash-attention": "-fa off -ctv q8_0",
    "cache.block": "-ctv q8_0",
    "device.unknown": "-dev CUDA7",
}
TAKEN = ("-fa off -ctk q8_0", "-ctv bf16", "-np 2", "--ctx_size 512", "-fa 1", "--spec-type ngram-simple,ngram-mod")


def severities(words: list[str], bundle: Path, context: Context) -> dict[str, str]:
    report = check_command(["llama-server", *words], bundle, context)
    return {finding.name: finding.severity for finding in report.findings}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_an_error_is_refused(
    bundle: Path, models: dict[str, Path], context: Context, tmp_path: Path, name: str
) -> None:
    words = ["-m", str(models["dense"]), "-c", "512", "--fit", "off", *shlex.split(REFUSED[name])]
    assert severities(words, bundle, context) == {name: "error"}
    with pytest.raises(ServerError), serve(bundle, words, env=os.environ, log=tmp_path / "log"):
        pass


@pytest.mark.parametrize("text", TAKEN)
def test_what_is_no_error_is_taken(
    bundle: Path, models: dict[str, Path], context: Context, tmp_path: Path, text: str
) -> None:
    words = ["-m", str(models["dense"]), "--fit", "off", *shlex.split(text)]
    assert "error" not in severities(words, bundle, context).values()
    with serve(bundle, words, env=os.environ, log=tmp_path / "log") as server:
        assert server.get("/health").ok


def test_a_quantised_cache_whose_blocks_fit_the_heads(bundle: Path, context: Context, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", head_size=32)
    words = ["-m", str(model), "--fit", "off", "-c", "512", "-np", "1", "-ctk", "q4_0", "-ctv", "q8_0"]
    assert severities(words, bundle, context) == {}
    with serve(bundle, words, env=os.environ, log=tmp_path / "log") as server:
        assert server.post("/completion", {"prompt": "hello", "n_predict": 4}).ok


def test_a_divided_and_a_capped_context(
    bundle: Path, models: dict[str, Path], context: Context, tmp_path: Path
) -> None:
    words = ["-m", str(models["dense"]), "-c", "16384", "-np", "2", "--fit", "off"]
    report = check_command(["llama-server", *words], bundle, context)
    said = {finding.name: finding.message for finding in report.findings}
    assert "each slot has 8192 positions" in said["context.divided"]
    assert "capped at the 4096" in said["context.capped"]
    with serve(bundle, words, env=os.environ, log=tmp_path / "log") as server:
        assert [slot["n_ctx"] for slot in server.get("/slots").body] == [4096, 4096]


def test_a_draft_longer_than_the_block_is_clamped(
    bundle: Path, models: dict[str, Path], context: Context, tmp_path: Path
) -> None:
    words = ["-m", models["hybrid"], "-md", models["dflash2"], "--spec-type", "draft-dflash"]
    words += ["--spec-draft-n-max", "12", "-c", "512", "--fit", "off", "-np", "1"]
    text = [str(word) for word in words]
    assert severities(text, bundle, context) == {"draft.block-size": "warning"}
    with serve(bundle, text, env=os.environ, log=tmp_path / "log") as server:
        assert any("clamping to 7" in line for line in server.lines())


def test_features_are_seen_in_the_libraries(bundle: Path) -> None:
    assert "llama_model_dflash_selector_top_k" in probe_symbols(bundle)


def test_bench_is_judged_by_its_own_help(
    bundle: Path, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["serve-check", "--bundle", str(bundle), "--devices", "CUDA0,Vulkan1", "--json"]
    assert main([*argv, "--", "llama-bench", "-m", str(models["dense"]), "-dev", "CUDA0,Vulkan1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in document["findings"]] == ["bench.lists"]
    assert document["rules"][0]["disproof"]
    assert main([*argv, "--", "llama-bench", "-m", str(models["dense"]), "--ctx-size", "5"]) == 1


def test_a_unit_is_read(
    bundle: Path, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = tmp_path / "llama.service"
    unit.write_text(f"[Service]\nExecStart=/opt/llama-server -m {models['dense']} -c 4096 --fit off -np 3 --slotz\n")
    assert main(["serve-check", "--bundle", str(bundle), "--unit", str(unit)]) == 1
    out = capsys.readouterr().out
    assert "This build has no --slotz." in out
    assert "The nearest is --slots." in out
