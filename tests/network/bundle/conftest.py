"""A real Debian tree with rocBLAS, hipBLASLt, a ten-arch HIP backend and llama.cpp, and a build made of it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..debian import download

PACKAGES = ("llama.cpp-tools", "libggml0-backend-hip", "librocblas4", "libhipblaslt1", "libhipblas2")
FREE_BYTES = 15 << 30


@dataclass(frozen=True)
class Debian:
    """Unpacked packages of sid, everything they depend on included."""

    root: Path

    @property
    def lib(self) -> Path:
        return self.root / "usr/lib/x86_64-linux-gnu"

    @property
    def loader(self) -> Path:
        return self.lib / "ld-linux-x86-64.so.2"


@pytest.fixture(scope="session")
def sid(tmp_path_factory: pytest.TempPathFactory) -> Debian:
    """620 MB of packages, 6 GB unpacked; ``LLAMABUILD_TEST_ROCM`` names a folder that keeps them between runs."""
    kept = os.environ.get("LLAMABUILD_TEST_ROCM")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("rocm")
    if (folder / "sid/.complete").exists():
        return Debian(folder / "sid")
    if platform.machine() != "x86_64":
        pytest.skip("Debian has ROCm for amd64 alone")
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < FREE_BYTES:
        pytest.skip(f"{folder} has not the 15 GB that unpacking and bundling a real ROCm takes")
    for package in download(folder, "sid", PACKAGES, with_needs=True):
        subprocess.run(["dpkg", "-x", package, folder / "sid"], check=True)
    (folder / "sid/.complete").touch()
    return Debian(folder / "sid")


@pytest.fixture(scope="session")
def hip_build(sid: Debian, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build folder as CMake would have left it, out of Debian's llama.cpp: everything in ``bin``."""
    folder = tmp_path_factory.mktemp("build")
    out = folder / "bin"
    out.mkdir()
    sources = [
        *(sid.root / "usr/bin").glob("llama-*"),
        *(sid.lib / "llama").glob("libllama-*-impl.so"),
        *sid.lib.glob("libllama*.so*"),
        *sid.lib.glob("libggml*.so*"),
        *sid.lib.glob("libmtmd.so*"),
        sid.lib / "ggml/backends0/libggml-hip.so",
        sid.lib / "ggml/backends0/libggml-cpu-x64.so",
    ]
    for source in sources:
        target = out / source.name
        if source.is_symlink():
            target.symlink_to(source.readlink().name)
        else:
            subprocess.run(["cp", "--reflink=auto", source, target], check=True)
    return folder
