"""The end-to-end claim on real llama.cpp v0.5.0: what ``make`` publishes is what it says, wherever it is unpacked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.network

UPSTREAM = "7fe450e19"


def programs(bundle):
    return sorted(path for path in (bundle / "bin").iterdir() if path.name.startswith("llama-"))


def elf_files(bundle):
    for path in sorted(bundle.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            yield path


def test_the_sums_cover_what_was_published(real_make):
    assert sorted(path.name for path in real_make.dist.iterdir()) == [
        "BUILD_INFO.json",
        "BUILD_INFO.txt",
        "SHA256SUMS",
        "llama-dflash2-2026-09-cpu.tar.gz",
        "llama-dflash2-2026-09-cpu.tar.zst",
    ]
    done = subprocess.run(
        ["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=real_make.dist, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": OK") == 4


def test_the_version_is_the_pinned_one_with_an_empty_environment(real_bundle):
    done = subprocess.run(
        [real_bundle / "bin" / "llama-server", "--version"], env={}, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"version: 0\.5\.0 \(build 11146, commit " + UPSTREAM, said), said


def test_devices_are_listed(real_bundle):
    done = subprocess.run(
        [real_bundle / "bin" / "llama-server", "--list-devices"], env={}, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert b"Available devices" in done.stdout + done.stderr


def test_readelf_sees_origin_relative_entries_alone(real_bundle):
    seen = 0
    for path in elf_files(real_bundle):
        told = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
        entries = re.findall(r"\((RPATH|RUNPATH)\).*\[(.*)\]", told)
        assert len(entries) <= 1, path
        for tag, value in entries:
            seen += 1
            assert tag == "RPATH"
            assert set(value.split(":")) <= {"$ORIGIN", "$ORIGIN/../lib"}, (path, value)
    assert seen > 10


def test_the_loader_takes_every_library_but_the_systems_from_the_bundle(real_bundle):
    for path in (*programs(real_bundle), *(real_bundle / "bin").glob("libggml-*.so")):
        told = subprocess.run(["ldd", path], env={}, capture_output=True, text=True, check=True).stdout
        assert "not found" not in told, (path, told)
        for name, found in re.findall(r"^\s*(\S+) => (.+) \(0x", told, re.MULTILINE):
            if name.startswith(("libllama", "libggml", "libmtmd", "libgomp")):
                assert found.startswith(str(real_bundle)), (path, name, found)


def test_the_patch_and_its_commit_are_named(real_make, real_bundle):
    info = json.loads((real_bundle / "BUILD_INFO.json").read_text())
    assert info == json.loads((real_make.dist / "BUILD_INFO.json").read_text())
    text = json.dumps(info)
    assert "7fe450e19305b828c199d602c23a8337aaa1f03b" in text
    assert "fd570ef54b10ec5fecb739e7e04c8ce44a6f415a" in text
    assert "recurrent-state-fill" in text


def test_verify_agrees(real_make, real_archive):
    done = subprocess.run(
        [sys.executable, "-m", "llamabuild", "verify", real_archive, "--recipe", "dflash2-2026-09", "--json"],
        env=real_make.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True), report["findings"]


def test_a_second_make_changes_nothing_and_a_fresh_one_gives_the_same_bytes(real_make, tmp_path):
    make = [sys.executable, "-m", "llamabuild", "make", "--recipe", "dflash2-2026-09", "--target", "cpu", "--offline"]
    before = {path.name: path.stat().st_mtime_ns for path in real_make.dist.iterdir()}
    again = subprocess.run(
        [*make, "--out", real_make.dist], env=real_make.env, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert "nothing changed" in again.stderr
    assert before == {path.name: path.stat().st_mtime_ns for path in real_make.dist.iterdir()}
    # The stage records gone, everything after the fetch is made again (the compile cache answers).
    shutil.rmtree(f"{real_make.env['LLAMABUILD_HOME']}/stages")
    fresh = subprocess.run(
        [*make, "--out", tmp_path / "dist"], env=real_make.env, capture_output=True, text=True, check=False
    )
    assert fresh.returncode == 0, fresh.stderr
    assert (tmp_path / "dist" / "SHA256SUMS").read_text() == (real_make.dist / "SHA256SUMS").read_text()


def test_the_unpacked_server_answers(real_bundle, tmp_path):
    import requests

    from llamabuild.runtime.server import serve
    from llamabuild.runtime.tiny import write_tiny_model

    model = write_tiny_model(tmp_path / "tiny.gguf")
    with serve(real_bundle, ["--model", str(model)], env={}, log=tmp_path / "server.log") as server:
        url = f"http://127.0.0.1:{server.port}"
        assert requests.get(f"{url}/health", timeout=10).json() == {"status": "ok"}
        answer = requests.post(f"{url}/completion", json={"prompt": "Hello", "n_predict": 8}, timeout=60).json()
        assert answer["tokens_predicted"] == 8, answer
