"""Bundles of a program of a few lines with the system's real libgomp, as the stages before a release leave them."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from llamabuild.build.model import BuildTree, BuiltFile, Target, Tool
from llamabuild.bundle.archive import make_archives
from llamabuild.bundle.manifest import write_build_info
from llamabuild.bundle.model import StagedBundle
from llamabuild.bundle.plan import plan_bundle
from llamabuild.bundle.stage import stage
from llamabuild.core.console import Console
from llamabuild.core.context import Context, Home
from llamabuild.release.assemble import write_release
from llamabuild.release.part import Built, archives_in, write_part
from llamabuild.source.lock import Lock, LockedPatch, PatchedSource, PatchOutcome
from llamabuild.verify.findings import Finding, Report

COMMIT = "7fe450e19305b828c199d602c23a8337aaa1f03b"
TREE = "fd570ef54b10ec5fecb739e7e04c8ce44a6f415a"
DATE = 1790121600
PATCH = LockedPatch(
    id="0001-graph-fill.patch",
    series="recurrent-state-fill",
    group="",
    subject="graph: clear the state | with a <fill>",
    switches=("--seq-compact",),
    digest="ab" * 32,
)
BASE = "#include <omp.h>\nint base(void) { return omp_get_max_threads() > 0; }\n"
PLUGIN = "int base(void); int cpu(void) { return base(); }\n"
PROGRAM = """
#include <stdio.h>
#include <string.h>
int base(void);
int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--version")) printf("version: 0.5.0 (build 11146, commit 7fe450e19)\\n");
    return base() ? 0 : 1;
}
"""


def _gcc(target: Path, source: str, *flags: str | Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-x", "c", "-", "-o", target, "-x", "none", *flags], input=source, text=True, check=True)
    return target


@dataclass
class Maker:
    """Makes bundles and releases below ``folder``."""

    context: Context
    folder: Path

    def archives(self, recipe: str = "small", *, patched: bool = True, number: int = 11146) -> tuple[Path, ...]:
        """Build, plan, stage and archive; the same arguments give the same bytes."""
        place = self.folder / f"{recipe}-{number}"
        if (place / "archives").exists():
            return self._listed(place / "archives", recipe)
        source, out = place / "src", place / "src/build/bin"
        (source).mkdir(parents=True)
        (source / "LICENSE").write_text("MIT\n")
        base = _gcc(out / "libggml-base.so.0", BASE, "-shared", "-fPIC", "-fopenmp", "-Wl,-soname,libggml-base.so.0")
        plugin = _gcc(out / "libggml-cpu.so", PLUGIN, "-shared", "-fPIC", base, f"-Wl,-rpath,{out}")
        program = _gcc(out / "llama-server", PROGRAM, base, f"-Wl,-rpath,{out}")
        tree = BuildTree(
            folder=source / "build",
            source=source,
            target=Target("cpu", ("cpu",), "", (), ("llama-server",), "rpath", None, rccl=False, nccl=False),
            files=(
                BuiltFile("ggml-base", "shared", base, plugin=False),
                BuiltFile("ggml-cpu", "module", plugin, plugin=True),
                BuiltFile("llama-server", "executable", program, plugin=False),
            ),
            tools=(Tool("cmake", Path("/opt/cmake"), "4.4.5"), Tool("c++", Path("/usr/bin/c++"), "12.2.0")),
            cache_entries=(("GGML_NATIVE", "OFF"),),
            build_number=number,
            build_commit=COMMIT[:9],
            network="namespace",
            log=source / "build/log",
        )
        name = f"llama-{recipe}-cpu"
        plan = plan_bundle(tree, name=name, context=self.context)
        staged = stage(plan, place / "staged", date=DATE, context=self.context, strip_tool=None)
        write_build_info(staged, build=tree, plan=plan, patched=_patched(recipe, patched=patched, number=number))
        make_archives(staged, place / "archives", context=self.context)
        return self._listed(place / "archives", recipe)

    def split(self) -> tuple[Path, ...]:
        """The small bundle in two parts, as a vendor's runtime is split off."""
        place = self.folder / "small-11146"
        root = next((place / "staged").glob("llama-*"))
        staged = StagedBundle(name=root.name, root=root, date=DATE)
        paths = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_symlink() or path.is_file()]
        parts = {
            "bin": [path for path in paths if "libgomp" not in path],
            "runtime": [path for path in paths if "libgomp" in path],
        }
        made = [
            artifact.path
            for part, members in parts.items()
            for artifact in make_archives(
                staged, place / "split", context=self.context, name=f"{root.name}-{part}", members=members
            )
        ]
        return archives_in(place / "split", made[0].name.partition("-bin.")[0])

    def _listed(self, folder: Path, recipe: str) -> tuple[Path, ...]:
        return tuple(folder / f"llama-{recipe}-cpu.{form}" for form in ("tar.zst", "tar.gz"))

    def built(self, recipe: str = "small", *, patched: bool = True, number: int = 11146) -> Built:
        """A finished build as the pipeline hands it over."""
        archives = self.archives(recipe, patched=patched, number=number)
        note = Finding("glibc.floor", "note", "bin/llama-server", "Needs <GLIBC> & more.", evidence="GLIBC_2.34")
        return Built(archives=archives, report=Report(str(archives[0]), (note,)), started=1790000000.0)

    def release(self, name: str = "release", *built: Built) -> Path:
        """A whole release folder."""
        given = built or (self.built(), self.built(f"baseline-{COMMIT[:7]}", patched=False))
        out = self.folder / name
        write_release(out, fill=lambda folder: [write_part(each, folder, context=self.context) for each in given])
        return out


def _patched(recipe: str, *, patched: bool, number: int) -> PatchedSource:
    patches = (PATCH,) if patched else ()
    lock = Lock(
        recipe=recipe,
        summary="A small program",
        release=True,
        repository="https://github.com/ggml-org/llama.cpp",
        ref="v0.5.0",
        commit=COMMIT,
        tree=TREE,
        build_number=number,
        date=DATE,
        features=("dflash2",),
        patches=patches,
    )
    return PatchedSource(
        lock=lock,
        repository=Path("/nowhere"),
        provider="cache",
        base="1" * 40,
        commit=("2" if patched else "1") * 40,
        tree="3" * 40 if patched else TREE,
        outcomes=tuple(PatchOutcome(patch, "applied", "offset 12") for patch in patches),
    )


@pytest.fixture(scope="session")
def first_maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Builds once for the whole session; what it made is copied, never changed."""
    folder = tmp_path_factory.mktemp("made")
    console = Console(stream=io.StringIO())
    maker = Maker(Context(home=Home(folder / "home"), console=console, env=dict(os.environ), cwd=folder), folder)
    maker.release()
    return maker


@pytest.fixture
def maker(first_maker: Maker, context: Context, tmp_path: Path) -> Maker:
    shutil.copytree(first_maker.folder, tmp_path / "made", symlinks=True)
    return Maker(context, tmp_path / "made")


@pytest.fixture
def release(maker: Maker) -> Path:
    """A release of a small program and its baseline, to be used and broken."""
    return maker.folder / "release"
