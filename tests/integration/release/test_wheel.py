"""A bundle as a wheel, installed by pip in a new environment without a network."""

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from llamabuild.core.errors import UsageError
from llamabuild.release.wheel import wheel_of_bundle


@pytest.fixture
def root(release, tmp_path):
    subprocess.run(["tar", "xzf", release / "llama-small-cpu.tar.gz", "-C", tmp_path], check=True)
    return tmp_path / "llama-small-cpu"


def _floor(root):
    """The highest GLIBC version that objdump sees in any file."""
    found = set()
    for path in root.rglob("*"):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            text = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
            found |= {
                tuple(map(int, word.strip("()").removeprefix("GLIBC_").split(".")))
                for word in text.split()
                if word.strip("()").startswith("GLIBC_2")
            }
    return max(found)


def test_it_installs_offline_and_runs(root, tmp_path):
    made = wheel_of_bundle(root, tmp_path)
    major, minor, *_ = _floor(root)
    assert made.path.name == f"llama_runtime_small-0.5.0+cpu-py3-none-manylinux_{major}_{minor}_x86_64.whl"
    place = tmp_path / "a new place"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", place / "bin/python"]
    subprocess.run([*pip, "install", "--no-index", "--quiet", made.path], check=True)
    said = subprocess.run([place / "bin/llama-server", "--version"], env={}, capture_output=True, text=True, check=True)
    assert said.stdout == "version: 0.5.0 (build 11146, commit 7fe450e19)\n"
    shown = subprocess.run([*pip, "show", "--files", "llama-runtime-small"], capture_output=True, text=True, check=True)
    assert "bundle/licenses/llama.cpp/LICENSE" in shown.stdout
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_every_library_is_there_once_by_the_name_that_is_needed(root, tmp_path):
    with zipfile.ZipFile(wheel_of_bundle(root, tmp_path).path) as wheel:
        assert wheel.testzip() is None
        libraries = sorted(Path(name).name for name in wheel.namelist() if "/bundle/lib/" in name)
        scripts = configparser.ConfigParser()
        name = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        scripts.read_string(wheel.read(name).decode())
    assert "libggml-base.so.0" in libraries
    assert "libgomp.so.1" in libraries
    assert len({name.split(".so")[0] for name in libraries}) == len(libraries)
    assert dict(scripts["console_scripts"]) == {"llama-server": "llama_runtime_small.launch:llama_server"}


def test_the_same_bundle_gives_the_same_bytes(root, tmp_path):
    one, two = (wheel_of_bundle(root, tmp_path / name) for name in "ab")
    assert one.sha256 == two.sha256


def test_a_folder_that_is_no_bundle(tmp_path):
    with pytest.raises(UsageError, match=r"BUILD_INFO\.json cannot be read"):
        wheel_of_bundle(tmp_path, tmp_path)
