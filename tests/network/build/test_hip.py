"""The real configure of the HIP target, in a small Debian sid that has a HIP compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.network, pytest.mark.slow]

PACKAGES = ("hipcc", "libamdhip64-dev", "librocblas-dev", "libhipblas-dev", "g++", "git")
INSIDE = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
from conftest import Real
from llamabuild.core.context import Context, Home
home = Home(Path("/tmp/home"))
real = Real(Context(home=home, env={{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}}), home.src / "v050")
made = real.prepare("hip", arch="gfx1100", backends=("hip",))
print(*real.configure(made))
"""


@pytest.fixture(scope="module")
def sid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root folder of sid with this Python and repository inside; ``LLAMABUILD_TEST_SID`` names one that is kept."""
    kept = os.environ.get("LLAMABUILD_TEST_SID")
    root = Path(kept) if kept else tmp_path_factory.mktemp("sid")
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.skip("a Debian sid can only be made by root, with debootstrap")
    if not (root / "usr/bin/hipcc").exists():
        install(root)
    places = dict.fromkeys((Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[3]))
    with ExitStack() as stack:
        for place in places:
            inside = root / place.relative_to("/")
            inside.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--bind", place, inside], check=True)
            stack.callback(subprocess.run, ["umount", inside], check=True)
        yield root


def install(root: Path) -> None:
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    targets = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    archive = next((line for line in targets.splitlines() if line.rstrip("/").endswith("/debian")), None)
    if archive is None:
        pytest.skip("this machine has no Debian archive configured")
    subprocess.run(["debootstrap", "--variant=minbase", "sid", root, archive], check=True, stdout=subprocess.DEVNULL)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    options = ["-q", "-y", "--no-install-recommends", "-o", "Acquire::Check-Valid-Until=false"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    argv = ["chroot", str(root), "apt-get", *options, "install", *PACKAGES]
    subprocess.run(argv, check=True, env=env, stdout=subprocess.DEVNULL)


def test_hip_configures_for_one_card_with_collectives_off(sid: Path, real: Any) -> None:
    source = sid / "tmp/home/src/v050"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(
        real.source, source, symlinks=True, ignore=shutil.ignore_patterns(".git", "build-cuda*", "build-vulkan*")
    )
    argv = ["chroot", str(sid), sys.executable, "-c", INSIDE.format(tests=str(Path(__file__).parent))]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {"ggml-cpu", "ggml-hip", "llama-server"} <= set(done.stdout.split())
    folder = source / "build-hip-gfx1100"
    commands = (folder / "compile_commands.json").read_text()
    assert {part.split()[0] for part in commands.split("--offload-arch=")[1:]} == {"gfx1100"}
    assert "GGML_USE_NCCL" not in commands
    assert "GGML_HIP_RCCL:BOOL=OFF" in (folder / "CMakeCache.txt").read_text()
