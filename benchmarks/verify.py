"""Throughput of ``llamabuild verify`` over that of ``sha256sum`` on the same files, both on one core.

    python benchmarks/verify.py [FOLDER] [--rounds 5]

Without FOLDER a bundle of 2 GB is made first: a library with a gigabyte of CUDA code in one file, a thousand kernel
files, a hundred libraries. Programs are not started: how long they take is theirs. The page cache is warm for both.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from llamabuild.core.console import Console
from llamabuild.core.context import Context, Home
from llamabuild.verify.check import Options, verify_path


def make_bundle(root: Path) -> None:
    (root / "bin").mkdir(parents=True)
    kernels = root / "lib" / "rocblas" / "library"
    kernels.mkdir(parents=True)
    with (root / "device.bin").open("wb") as handle:
        for _ in range(128):
            code = os.urandom(8 << 20)
            entry = struct.pack("<HHIQIIHHIQQQQ", 2, 0x101, 64, len(code), 0, 0, 8, 1, 86, 0, 0x8011, 0, 0)
            handle.write(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(code)) + entry + code)
    source = (
        '__asm__(".section .nv_fatbin,\\"a\\"\\n.incbin \\"device.bin\\"\\n.text\\n"); int plugin(void) { return 1; }'
    )
    compile_c(root, source, "bin/libggml-cuda.so", "-shared")
    (root / "device.bin").unlink()
    for index in range(100):
        text = "".join(f'const char * text_{index}_{i} = "a line of text of some length {i}";' for i in range(2000))
        compile_c(root, text, f"lib/libpart{index}.so.1", "-shared", f"-Wl,-soname,libpart{index}.so.1")
    for index in range(1000):
        (kernels / f"TensileLibrary_Type_SS_{index}_gfx1100.co").write_bytes(os.urandom(1 << 20))


def compile_c(root: Path, source: str, output: str, *flags: str) -> None:
    words = ["gcc", "-x", "c", "-", "-fPIC", "-o", output, *flags]
    subprocess.run(words, input=source, text=True, check=True, cwd=root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    scratch = None
    if args.folder is None:
        scratch = Path(tempfile.mkdtemp(prefix="llamabuild-benchmark-"))
        args.folder = scratch / "bundle"
        make_bundle(args.folder)
    try:
        measure(args.folder, rounds=args.rounds)
    finally:
        if scratch is not None:
            shutil.rmtree(scratch)


def measure(folder: Path, *, rounds: int) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    size = sum(path.stat().st_size for path in files)
    with tempfile.TemporaryDirectory() as home:
        context = Context(home=Home(Path(home)), console=Console(stream=io.StringIO()))
        rates: dict[str, list[float]] = {"sha256sum": [], "verify": []}
        for number in range(rounds + 1):
            for name, values in rates.items():
                began = time.perf_counter()
                if name == "sha256sum":
                    subprocess.run(["sha256sum", *files], stdout=subprocess.DEVNULL, check=True)
                else:
                    verify_path(folder, context=context, options=Options(run=False, workers=1))
                if number:  # the first round warms the page cache
                    values.append(size / (time.perf_counter() - began) / 1e6)
    print(f"{len(files)} files, {size / 1e9:.2f} GB, {rounds} rounds on one core")
    for name, values in rates.items():
        print(f"{name:<10} {statistics.median(values):8.0f} MB/s (from {min(values):.0f} to {max(values):.0f})")
    pairs = [mine / theirs for mine, theirs in zip(rates["verify"], rates["sha256sum"], strict=True)]
    print(f"verify over sha256sum: {statistics.median(pairs):.2f} (from {min(pairs):.2f} to {max(pairs):.2f})")


if __name__ == "__main__":
    main()
