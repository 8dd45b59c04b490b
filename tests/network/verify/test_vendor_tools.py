"""Device code as read here, against what the vendors' tools and the code objects themselves say."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from llamabuild.elf.device_code import read_device_code
from llamabuild.elf.read import read_elf

pytestmark = pytest.mark.network

KERNEL = """
__global__ void add(float * a) { a[threadIdx.x] += 1.0f; }
extern "C" int go() { add<<<1, 32>>>(0); return 0; }
"""


def listed(cuobjdump: Path, library: Path, option: str) -> dict[str, int]:
    out = subprocess.run([cuobjdump, option, library], capture_output=True, text=True, check=True).stdout
    return dict(Counter(re.findall(r"\.sm_(\d+[af]?)\.(?:cubin|ptx)$", out, flags=re.MULTILINE)))


def test_the_lists_of_a_plugin_made_by_others_are_those_of_cuobjdump(cuda_plugin, cuobjdump):
    code = read_device_code(read_elf(cuda_plugin))
    assert dict(code.sass) == listed(cuobjdump, cuda_plugin, "--list-elf")
    assert dict(code.ptx) == listed(cuobjdump, cuda_plugin, "--list-ptx")
    assert dict(code.sass) == {"86": 143, "89": 143, "120a": 143, "121a": 143}
    assert code.compressed == 7 * 143


@pytest.fixture(scope="session")
def nvcc() -> str:
    found = shutil.which("nvcc") or next(
        map(str, sorted(Path("/usr/local").glob("cuda*/bin/nvcc"), reverse=True)), None
    )
    if found is None:
        pytest.skip("nvcc is not installed, so no library is compiled for two archs")
    return found


@pytest.mark.parametrize("mode", ["none", "speed", "balance", "size"])
def test_a_library_of_two_archs_is_read_in_every_compression_mode(mode, nvcc, cuobjdump, tmp_path):
    (tmp_path / "k.cu").write_text(KERNEL)
    library = tmp_path / "k.so"
    words = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-Xfatbin", f"--compress-mode={mode}", "k.cu", "-o", library]
    words += ["-gencode", "arch=compute_86,code=sm_86", "-gencode", "arch=compute_90a,code=[sm_90a,compute_90a]"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    if done.returncode:
        pytest.skip(f"nvcc cannot compile here: {done.stderr.strip()[-200:]}")
    code = read_device_code(read_elf(library))
    assert dict(code.sass) == listed(cuobjdump, library, "--list-elf")
    assert set(dict(code.sass)) == {"86", "90a"}
    assert dict(code.ptx) == listed(cuobjdump, library, "--list-ptx") == {"90a": 1}


MACHINES = {
    "gfx803": 0x2A, "gfx900": 0x2C, "gfx906": 0x2F, "gfx908": 0x30, "gfx90a": 0x3F, "gfx942": 0x4C,
    "gfx1010": 0x33, "gfx1030": 0x36, "gfx1100": 0x41, "gfx1101": 0x46, "gfx1102": 0x47,
}  # fmt: skip
"""EF_AMDGPU_MACH of LLVM's AMDGPU usage guide: the processor in the ELF flags of a code object itself."""


def machines_in(library: Path) -> dict[str, int]:
    """The code objects in ``.hip_fatbin`` by their own ELF headers, found by their magic number alone."""
    section = read_elf(library).section(".hip_fatbin")
    seen: Counter[int] = Counter()
    with library.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = section.offset
        while (at := data.find(b"\x7fELF\x02\x01\x01\x40", place, section.offset + section.size)) >= 0:
            seen[int.from_bytes(data[at + 48 : at + 52], "little") & 0xFF] += 1
            place = at + 4
    return {arch: seen[flag] for arch, flag in MACHINES.items() if seen[flag]}


def test_a_plugin_of_three_gfx_archs_holds_the_machine_code_that_its_entries_name(hip_plugin):
    code = read_device_code(read_elf(hip_plugin))
    assert dict(code.gfx) == machines_in(hip_plugin) == {"gfx1100": 130, "gfx90a": 130, "gfx942": 130}
    assert code.emptied == ()


@pytest.mark.parametrize(("name", "bundles"), [("ggml/backends0/libggml-hip.so", 140), ("librocblas.so.4.4", 66)])
def test_debians_ten_arch_libraries_hold_what_their_entries_name(name, bundles):
    kept = os.environ.get("LLAMABUILD_TEST_ROCM")
    library = Path(kept or "/nowhere", "sid/usr/lib/x86_64-linux-gnu", name)
    if not library.exists():
        pytest.skip("LLAMABUILD_TEST_ROCM names no folder with Debian's ROCm packages (the bundle tests fill it)")
    code = read_device_code(read_elf(library))
    assert dict(code.gfx) == machines_in(library)
    assert set(dict(code.gfx).values()) == {bundles}
    assert len(code.gfx) == 10
