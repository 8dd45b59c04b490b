"""Bundles that nobody here made, fetched by the registries' ordinary clients."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

NODE = "@node-llama-cpp/linux-x64{}"
NODE_VERSION = "3.22.1"


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where packages are kept: between runs with ``LLAMABUILD_TEST_HOME``, else for this one."""
    home = os.environ.get("LLAMABUILD_TEST_HOME")
    folder = Path(home) / "test-packages" if home else tmp_path_factory.mktemp("packages")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def npm_package(fetched: Path) -> Callable[[str], Path]:
    """The archive of one of node-llama-cpp's binary packages: ``''``, ``'-cuda'``, ``'-vulkan'``."""

    def fetch(flavour: str) -> Path:
        path = fetched / f"node-llama-cpp-linux-x64{flavour}-{NODE_VERSION}.tgz"
        if not path.exists():
            if shutil.which("npm") is None:
                pytest.skip("npm is not installed, so node-llama-cpp's package cannot be fetched")
            words = ["npm", "pack", f"{NODE.format(flavour)}@{NODE_VERSION}", "--pack-destination", str(fetched)]
            done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=fetched)
            if done.returncode:
                pytest.skip(f"node-llama-cpp{flavour} could not be fetched: {done.stderr.strip()[-300:]}")
        return path

    return fetch


def pip_wheel(folder: Path, requirement: str, pattern: str) -> Path:
    """A wheel for CPython 3.11 on Linux, by pip."""
    if not list(folder.glob(pattern)):
        words = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", requirement]
        words += ["--python-version", "3.11", "--dest", str(folder), "--quiet"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{requirement} could not be fetched: {done.stderr.strip()[-300:]}")
    return next(folder.glob(pattern))


@pytest.fixture(scope="session")
def hip_wheel(fetched: Path) -> Path:
    """A wheel with llama.cpp's HIP backend in it."""
    return pip_wheel(fetched, "cyllama-rocm==0.2.18", "cyllama_rocm-0.2.18-cp311-*.whl")


@pytest.fixture(scope="session")
def cuda_plugin(npm_package: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libggml-cuda.so of node-llama-cpp, 159 MB."""
    folder = tmp_path_factory.mktemp("cuda-plugin")
    with tarfile.open(npm_package("-cuda")) as tar:
        tar.extract("package/bins/linux-x64-cuda/libggml-cuda.so", folder, filter="data")
    return folder / "package/bins/linux-x64-cuda/libggml-cuda.so"


@pytest.fixture(scope="session")
def hip_plugin(hip_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libggml-hip of the wheel, 169 MB."""
    folder = tmp_path_factory.mktemp("hip-plugin")
    with zipfile.ZipFile(hip_wheel) as wheel:
        name = next(name for name in wheel.namelist() if "/libggml-hip-" in name)
        return Path(wheel.extract(name, folder))


@pytest.fixture(scope="session")
def cuobjdump(fetched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's own reader."""
    installed = shutil.which("cuobjdump")
    if installed:
        return Path(installed)
    wheel = pip_wheel(fetched, "nvidia-cuda-cuobjdump", "nvidia_cuda_cuobjdump-*.whl")
    folder = tmp_path_factory.mktemp("cuobjdump")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/bin/cuobjdump"))
        path = Path(archive.extract(name, folder))
    path.chmod(0o755)
    return path
