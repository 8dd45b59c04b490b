"""The HIP target in a small Debian sid that has a HIP compiler: configured, and made whole for one card."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.core.context import Home
from llamabuild.elf.device_code import read_device_code
from llamabuild.elf.read import read_elf
from llamabuild.runtime.tiny import write_tiny_model

from ..debian import bootstrap, bound

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.network, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[3]
RECIPE = "dflash2-2026-09"
ARCH = "gfx1100"
PACKAGES = ("hipcc", "libamdhip64-dev", "librocblas-dev", "libhipblas-dev", "libhipblaslt1", "g++", "git")
TEN = "gfx803, gfx900, gfx906, gfx908, gfx90a, gfx1010, gfx1030, gfx1100, gfx1101, gfx1102"
INSIDE_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "PYTHONPATH": str(REPOSITORY)}
CONFIGURE = """
from pathlib import Path
from llamabuild.core.context import Context, Home
from tests.network.build.conftest import Real
home = Home(Path("/tmp/home"))
real = Real(Context(home=home, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}), home.src / "v050")
made = real.prepare("hip", arch="gfx1100", backends=("hip",))
print(*real.configure(made))
"""
SERVE = """
"$1/bin/llama-server" -m /tmp/tiny.gguf --host 127.0.0.1 --port 8080 -c 256 > /tmp/log 2>&1 & server=$!
answer=
for _ in $(seq 300); do
    exec 3<>/dev/tcp/127.0.0.1/8080 && { printf '%s' "$REQUEST" >&3; answer=$(cat <&3); exec 3>&-; }
    case $answer in *tokens_predicted*) break ;; esac
    kill -0 $server || break
    sleep 0.2
done 2>/dev/null
kill $server
wait $server
cat /tmp/log >&2
printf '%s' "$answer"
"""


@pytest.fixture(scope="module")
def sid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root folder of sid with this Python and repository inside; ``LLAMABUILD_TEST_SID`` names one that is kept."""
    kept = os.environ.get("LLAMABUILD_TEST_SID")
    root = Path(kept) if kept else tmp_path_factory.mktemp("sid")
    if not (root / "usr/bin/hipcc").exists():
        bootstrap(root, "sid", packages=PACKAGES)
    with bound(root, [Path(sys.base_prefix), Path(sys.prefix), REPOSITORY]):
        yield root


def inside(root: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run this Python inside of the root folder."""
    argv = ["chroot", str(root), sys.executable, *words]
    return subprocess.run(argv, env={**INSIDE_ENV, **env}, capture_output=True, text=True, check=False)


def test_hip_configures_for_one_card_with_collectives_off(sid: Path, real: Any) -> None:
    source = sid / "tmp/home/src/v050"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(
        real.source, source, symlinks=True, ignore=shutil.ignore_patterns(".git", "build-cuda*", "build-vulkan*")
    )
    done = inside(sid, "-c", CONFIGURE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {"ggml-cpu", "ggml-hip", "llama-server"} <= set(done.stdout.split())
    folder = source / "build-hip-gfx1100"
    commands = (folder / "compile_commands.json").read_text()
    assert {part.split()[0] for part in commands.split("--offload-arch=")[1:]} == {ARCH}
    assert "GGML_USE_NCCL" not in commands
    assert "GGML_HIP_RCCL:BOOL=OFF" in (folder / "CMakeCache.txt").read_text()


def make(root: Path, arch: str, out: str) -> subprocess.CompletedProcess[str]:
    """``llamabuild make`` inside, without a network: the source is fetched from outside, into the home inside."""
    home = Home(root / "tmp/home")
    argv = [sys.executable, "-m", "llamabuild", "source", "--recipe", RECIPE]
    fetched = subprocess.run(
        argv, env={**os.environ, "LLAMABUILD_HOME": str(home.root)}, capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(f"the source could not be fetched: {fetched.stderr[-300:]}")
    words = ["-m", "llamabuild", "make", "--recipe", RECIPE, "--target", "hip", "--arch", arch, "--offline"]
    return inside(root, *words, "--out", out, LLAMABUILD_HOME="/tmp/home", CI="true")


def test_an_arch_that_rocblas_has_no_kernels_for_is_told_before_anything_is_compiled(sid: Path) -> None:
    done = make(sid, "gfx1201", "/tmp/dist-1201")
    assert done.returncode == 5
    assert f"no kernels for gfx1201; it has them for {TEN}" in done.stderr
    assert not [*(sid / "tmp/home/src").glob("*/build-hip-gfx1201")]
    assert not (sid / "tmp/dist-1201").exists()


@pytest.fixture(scope="module")
def dist(sid: Path) -> Path:
    """The archives of the HIP target for gfx1100: half an hour of compiling."""
    done = make(sid, ARCH, "/tmp/dist")
    assert done.returncode == 0, done.stderr[-8000:]
    return sid / "tmp/dist"


@pytest.fixture(scope="module")
def moved(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A minimal sid without any ROCm, and the path inside of it where the archive was unpacked."""
    kept = os.environ.get("LLAMABUILD_TEST_SID_MINIMAL")
    root = Path(kept) if kept else tmp_path_factory.mktemp("minimal")
    if not (root / "usr/bin/env").exists():
        bootstrap(root, "sid")
    assert not [*root.glob("usr/lib/*/libamdhip64*"), *root.glob("usr/lib/*/librocblas*")]
    place = root / "opt/some where"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    name = f"llama-{RECIPE}-hip-{ARCH}"
    subprocess.run(["tar", "xzf", dist / f"{name}.tar.gz", "-C", place], check=True)
    return root, f"/opt/some where/{name}"


def test_the_whole_archive_is_one_with_its_device_files(moved: tuple[Path, str]) -> None:
    root, place = moved
    bundle = root / place.lstrip("/")
    code = read_device_code(read_elf(bundle / "bin/libggml-hip.so"))
    assert code is not None
    assert [arch for arch, _ in code.gfx] == [ARCH]
    needed = subprocess.check_output(["readelf", "-d", bundle / "bin/libggml-hip.so"], text=True)
    assert {"libhipblas.so.2", "librocblas.so.4", "libamdhip64.so.6"} <= set(re.findall(r"\[(\S+\.so\S*)\]", needed))
    assert [*bundle.glob(f"lib/rocblas/*/library/TensileLibrary_lazy_{ARCH}.dat")]
    assert (bundle / f"lib/hipblaslt/library/TensileLibrary_lazy_{ARCH}.dat").is_file()
    done = subprocess.run(
        [sys.executable, "-m", "llamabuild", "verify", str(bundle)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def started(root: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program inside, with mounts, processes and a network of its own and nothing of this environment."""
    # The loader finds $ORIGIN by /proc.
    outside = 'ip link set lo up && mount -t proc proc "$1/proc" && exec chroot "$1" /usr/bin/env -i "${@:2}"'
    alone = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", outside, "-", str(root)]
    pairs = [f"{name}={value}" for name, value in env.items()]
    return subprocess.run([*alone, *pairs, *words], capture_output=True, text=True, check=False, timeout=180)


def test_its_programs_start_where_no_rocm_is_installed(moved: tuple[Path, str]) -> None:
    root, place = moved
    done = started(root, f"{place}/bin/llama-server", "--list-devices", LD_DEBUG="libs")
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {match.strip() for match in re.findall(r"calling init: (.*)", done.stderr)}
    assert f"{place}/bin/libggml-hip.so" in loaded
    names = {Path(path).name for path in loaded if path.startswith(f"{place}/")}
    assert {"librocblas.so.4", "libhipblas.so.2", "libamdhip64.so.6"} <= names
    outside = {Path(path).name for path in loaded if not path.startswith(f"{place}/")}
    assert outside <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}


def test_it_answers_where_no_rocm_is_installed(moved: tuple[Path, str]) -> None:
    """On the CPU, the HIP plugin loaded: there is no such card here."""
    root, place = moved
    write_tiny_model(root / "tmp/tiny.gguf")
    body = json.dumps({"prompt": "hello", "n_predict": 4})
    request = f"POST /completion HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    done = started(root, "/bin/bash", "-c", SERVE, "-", place, PATH="/usr/bin:/bin", REQUEST=request)
    assert '"tokens_predicted":4' in done.stdout, done.stderr[-2000:]
    assert "failed to initialize ROCm: no ROCm-capable device" in done.stderr
