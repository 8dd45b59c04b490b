"""The harness against the real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llamabuild.runtime.server import RunningServer, ServerError, serve, stop

pytestmark = pytest.mark.network


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("kind", ["dense", "moe", "hybrid"])
def test_tiny_models_complete_on_the_real_server(
    bundle: Path, models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    with serve(
        bundle, ["-m", str(models[kind]), "-c", "512", "-t", "1"], env=os.environ, log=tmp_path / "log"
    ) as server:
        answer = server.post("/completion", {"prompt": "hello", "n_predict": 8, "ignore_eos": True})
        assert answer.ok
        assert answer.body["tokens_predicted"] == 8
        assert stop(server) == 0


def test_a_dflash2_drafter_drafts_for_the_hybrid(bundle: Path, models: dict[str, Path], tmp_path: Path) -> None:
    arguments = ["-m", models["hybrid"], "-md", models["dflash2"], "--spec-type", "draft-dflash"]
    arguments += ["--spec-draft-n-max", "7", "-c", "1024", "-lv", "4", "-t", "1"]
    with serve(bundle, [str(word) for word in arguments], env=os.environ, log=tmp_path / "log") as server:
        request = {"prompt": "hello there", "n_predict": 24, "temperature": 0, "ignore_eos": True}
        timings = server.post("/completion", request).body["timings"]
        log = "\n".join(server.lines())
    assert timings["draft_n"] > 0
    # The loader's own line: this is DFlash2, not the first DFlash.
    assert "DFlash2 conv kernel = 2, group = 16, selector rank = 16, top-k = 4" in log


def test_the_environment_of_the_caller_stays_out(bundle: Path, models: dict[str, Path], tmp_path: Path) -> None:
    env = {**os.environ, "LLAMA_ARG_CTX_SIZE": "128", "LD_LIBRARY_PATH": "/nowhere"}
    with serve(bundle, ["-m", str(models["dense"]), "-np", "1"], env=env, log=tmp_path / "log") as server:
        assert server.get("/slots").body[0]["n_ctx"] == 4096
        environ = Path(f"/proc/{server.pid}/environ").read_text()
    assert "LD_LIBRARY_PATH" not in environ


def test_an_error_in_the_block_ends_the_server(bundle: Path, models: dict[str, Path], tmp_path: Path) -> None:
    seen: list[RunningServer] = []
    with (
        pytest.raises(KeyboardInterrupt),
        serve(bundle, ["-m", str(models["dense"])], env=os.environ, log=tmp_path / "log") as server,
    ):
        seen.append(server)
        raise KeyboardInterrupt
    assert not is_alive(seen[0].pid)


def test_a_killed_starter_takes_the_server_with_it(bundle: Path, models: dict[str, Path], tmp_path: Path) -> None:
    script = (
        "import os,sys,time; from pathlib import Path; from llamabuild.runtime.server import serve\n"
        "with serve(Path(sys.argv[1]), ['-m', sys.argv[2]], env=os.environ, log=Path(sys.argv[3])) as s:\n"
        "    print(s.pid, flush=True); time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", script, bundle, models["dense"], tmp_path / "log"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert is_alive(pid)
        starter.send_signal(signal.SIGKILL)
        starter.wait(60)
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)


def test_a_refused_model_is_told_in_the_servers_own_words(bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(20))
    with (
        pytest.raises(ServerError) as caught,
        serve(bundle, ["-m", str(broken)], env=os.environ, log=tmp_path / "log"),
    ):
        pass
    assert "did not start" in caught.value.message
    assert any("broken.gguf" in line for line in caught.value.details)
