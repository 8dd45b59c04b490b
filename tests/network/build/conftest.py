"""A real v0.5.0 tree, NVIDIA's wheels and a recent glslc for the tests of real toolchains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llamabuild.build.cmake import configure, configure_and_build
from llamabuild.build.host import Host
from llamabuild.build.targets import machine_of, make_target
from llamabuild.build.toolchain import preflight
from llamabuild.core.context import Context, Home
from llamabuild.recipe.model import TargetSpec
from llamabuild.source.lock import PatchedSource

from ...pinned import V050
from ..debian import download

if TYPE_CHECKING:
    from llamabuild.build.model import BuildOptions, BuildTree, Target, Toolchain

RECIPE = "dflash2-2026-09"


@dataclass(frozen=True)
class Real:
    """The real tree in a home, with the stages of the build to run on it."""

    context: Context
    source: Path

    def prepare(
        self, name: str, *, arch: str = "", options: BuildOptions | None = None, **spec: object
    ) -> tuple[Target, Toolchain]:
        """A target and its toolchain, as ``make`` would have them."""
        host = Host.of(self.context)
        target = make_target(name, TargetSpec.model_validate(spec), V050, arch=arch, machine=machine_of(host))
        return target, preflight(target, host=host, context=self.context, options=options)

    @property
    def patched(self) -> PatchedSource:
        """A patched source; the driver reads its lock alone."""
        git = self.context.home.git
        return PatchedSource(V050, git, provider="cache", base="0" * 40, commit="1" * 40, tree=V050.tree, outcomes=())

    def configure(self, made: tuple[Target, Toolchain]) -> tuple[str, ...]:
        """Configure alone."""
        return configure(self.patched, self.source, *made, self.context)

    def build(self, made: tuple[Target, Toolchain]) -> BuildTree:
        """Configure and build."""
        return configure_and_build(self.patched, self.source, *made, self.context)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    """The pinned and patched tree of the README's recipe, fetched by its own verb."""
    home = Home(Path(os.environ.get("LLAMABUILD_TEST_HOME") or tmp_path_factory.mktemp("home")))
    source = home.src / "real-toolchains"
    shutil.rmtree(source, ignore_errors=True)
    env = {**os.environ, "LLAMABUILD_HOME": str(home.root)}
    argv = [sys.executable, "-m", "llamabuild", "source", "--recipe", RECIPE, "--to", str(source)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the source could not be fetched: {done.stderr[-300:]}")
    return Real(Context(home=home, env=env), source)


@pytest.fixture(scope="session")
def vulkan_sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """glslc 2025.2 and its time's headers, out of Debian 13's packages, beside whatever the machine has."""
    folder = tmp_path_factory.mktemp("trixie")
    packages = download(folder / "apt", "trixie", ("glslc", "libshaderc1", "libc6", "libstdc++6", "libgcc-s1"))
    sdk_packages = download(folder / "apt-sdk", "trixie", ("libvulkan-dev", "libvulkan1", "spirv-headers"))
    for name, files in (("run", packages), ("sdk", sdk_packages)):
        for file in files:
            subprocess.run(["dpkg", "-x", file, folder / name], check=True)
    sdk, libraries = folder / "sdk/usr", folder / "run/usr/lib/x86_64-linux-gnu"
    (sdk / "bin").mkdir()
    # It needs a newer libc than the machine may have, so it runs through its own loader.
    loader = f"{libraries}/ld-linux-x86-64.so.2 --library-path {libraries} {folder}/run/usr/bin/glslc"
    (sdk / "bin/glslc").write_text(f'#!/bin/sh\nexec {loader} "$@"\n')
    (sdk / "bin/glslc").chmod(0o755)
    system = re.search(r"libvulkan\.so\.1 .*=> (\S+)", subprocess.check_output(["/sbin/ldconfig", "-p"], text=True))
    if system:
        # The one that this machine can also load; the build's run path leads here.
        for newer in (sdk / "lib/x86_64-linux-gnu").glob("libvulkan.so*"):
            newer.unlink()
        (sdk / "lib/x86_64-linux-gnu/libvulkan.so").symlink_to(system[1])
    return sdk
