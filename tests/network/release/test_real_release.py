"""A complete release of the real runtime: cross-checked, installed as a wheel, started in a container's root tree."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from llamabuild.runtime.tiny import write_tiny_model

from ..debian import bootstrap
from .rootfs import Image, build

pytestmark = pytest.mark.network

RECIPE = "dflash2-2026-09"
NAME = f"llama-{RECIPE}-cpu"
BASELINE = "baseline-7fe450e"


@pytest.fixture(scope="session")
def real_release(real_make, tmp_path_factory) -> Path:
    """The release of the CPU target with everything; only the patched files are compiled again, for the baseline."""
    out = tmp_path_factory.mktemp("release") / "out"
    words = ["release", "--recipe", RECIPE, "--flavour", "cpu", "--smoke"]
    words += ["--with-baseline", "--with-container", "--with-wheel"]
    done = subprocess.run(
        [sys.executable, "-m", "llamabuild", *words, "--out", out],
        env=real_make.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]
    return out


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_everything_is_there_and_holds(real_release, real_make):
    expected = {"RELEASE_NOTES.md", "SHA256SUMS", f"llama-{RECIPE}-patches-recurrent-state-fill.tar.gz"}
    expected.add("llama_runtime_dflash2_2026_09-0.5.0+cpu-py3-none-manylinux_")
    for name, archive in (("cpu", NAME), (f"{BASELINE}-cpu", f"llama-{BASELINE}-cpu")):
        expected |= {f"{archive}.tar.gz", f"{archive}.tar.zst", f"Containerfile-{name}", f"report-{name}.html"}
        expected |= {f"BUILD_INFO-{name}.json", f"sbom-{name}.cdx.json", f"provenance-{name}.intoto.json"}
    found = {
        path.name.partition("manylinux_")[0] + "manylinux_" * path.name.endswith(".whl")
        for path in real_release.iterdir()
    }
    assert found == expected
    sums = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=real_release, check=False)
    assert sums.returncode == 0
    for name in ("cpu", f"{BASELINE}-cpu"):
        statement = real_release / f"provenance-{name}.intoto.json"
        done = subprocess.run(
            [sys.executable, "-m", "llamabuild", "verify", real_release, "--provenance", statement, "--json"],
            env=real_make.env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert json.loads(done.stdout) == {**json.loads(done.stdout), "ok": True, "findings": []}
        sbom = (real_release / f"sbom-{name}.cdx.json").read_text()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom) is None


def test_it_was_served_and_says_so(real_release):
    info = json.loads((real_release / "BUILD_INFO-cpu.json").read_text())
    assert info["validation"]["tier_b_runtime"].startswith("passed on the CPU")
    assert info["target_model"] == "tiny random"
    assert info["validation"]["tier_b_runtime"].partition(" (")[0] in (real_release / "RELEASE_NOTES.md").read_text()


def test_the_archive_is_the_one_that_make_gives(real_release, real_make):
    for form in ("tar.gz", "tar.zst"):
        assert _digest(real_release / f"{NAME}.{form}") == _digest(real_make.dist / f"{NAME}.{form}")


def test_the_baseline_differs_where_the_patch_is(real_release, real_make):
    archives = [real_release / f"{name}.tar.zst" for name in (f"llama-{BASELINE}-cpu", NAME)]
    done = subprocess.run(
        [sys.executable, "-m", "llamabuild", "diff-builds", *archives, "--json"],
        env=real_make.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)["differences"]
    assert {each["file"] for each in found if each["what"] == "section"} == {"lib/libllama.so.0.5.0"}
    names = next(each for each in found if each["where"].startswith(".dynstr"))
    assert (names["a"], names["b"]) == ("'ggml_scale_inplace'", "'ggml_fill_inplace'")


def test_the_patches_archive_holds_the_patch(real_release, tmp_path):
    subprocess.run(
        ["tar", "xzf", real_release / f"llama-{RECIPE}-patches-recurrent-state-fill.tar.gz", "-C", tmp_path], check=True
    )
    (patch,) = tmp_path.rglob("*.patch")
    info = json.loads((real_release / "BUILD_INFO-cpu.json").read_text())
    assert info["patches"][0]["subject"] in patch.read_text()


def test_the_wheel_installs_offline_and_runs(real_release, tmp_path):
    (wheel,) = real_release.glob("*.whl")
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", place / "bin/python"]
    subprocess.run([*pip, "install", "--no-index", "--quiet", wheel], check=True)
    done = subprocess.run([place / "bin/llama-server", "--version"], env={}, capture_output=True, text=True, check=True)
    assert "version: 0.5.0 (build 11146, commit 7fe450e19" in done.stdout + done.stderr


@pytest.fixture(scope="session")
def base_image(tmp_path_factory) -> Path:
    """A minimal Debian 12, the base that the Containerfile names."""
    return bootstrap(tmp_path_factory.mktemp("image") / "root", "bookworm")


SERVE = """
"$@" > /tmp/log 2>&1 & server=$!
for _ in $(seq 300); do
    if health; then
        echo healthy as "$(id -u)"
        exec 3<>/dev/tcp/127.0.0.1/8080
        body='{"prompt": "a", "n_predict": 4}'
        printf 'POST /completion HTTP/1.0\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n%s' \
            ${#body} "$body" >&3
        while IFS= read -r line || [ -n "$line" ]; do echo "$line"; done <&3
        break
    fi
    kill -0 $server || break
    read -t 0.2 <> <(:)
done 2> /dev/null
kill $server; wait $server
while IFS= read -r line; do echo "log: $line"; done < /tmp/log
"""


def test_the_server_starts_in_the_image(real_release, base_image):
    image = build(real_release / "Containerfile-cpu", Image(base_image))
    assert image.user == "10001:10001"
    info = json.loads((real_release / "BUILD_INFO-cpu.json").read_text())
    assert image.labels["org.opencontainers.image.revision"] == info["commit"]
    assert image.labels["llamabuild.archive.0"] == f"{NAME}.tar.gz sha256:{_digest(real_release / f'{NAME}.tar.gz')}"
    (base_image / "models").mkdir(exist_ok=True)
    write_tiny_model(base_image / "models/tiny.gguf")
    version = image.script('"$@"', arguments=("--version",))
    assert "build 11146" in version.stdout + version.stderr, version.stderr
    done = image.script(SERVE, arguments=("-m", "/models/tiny.gguf", "--ctx-size", "256"))
    assert "healthy as 10001" in done.stdout, done.stdout[-4000:] + done.stderr[-1000:]
    assert '"content"' in done.stdout
