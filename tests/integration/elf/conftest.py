"""ELF files made by the host's gcc, in each variant a linker makes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Gcc:
    folder: Path

    def shared(
        self, name: str, source: str = "int f(void) { return 1; }", *flags: str, folder: Path | None = None
    ) -> Path:
        return self._compile(name, source, ["-shared", "-fPIC", *flags], folder=folder)

    def program(self, name: str, source: str, *flags: str, folder: Path | None = None) -> Path:
        return self._compile(name, source, list(flags), folder=folder)

    def _compile(self, name: str, source: str, flags: list[str], *, folder: Path | None) -> Path:
        target = (folder or self.folder) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = self.folder / f".{target.name}.c"
        text.write_text(source)
        subprocess.run(["gcc", "-g", "-O1", "-o", target, text, *flags], check=True, capture_output=True)
        return target


@pytest.fixture
def gcc(tmp_path: Path) -> Gcc:
    if shutil.which("gcc") is None or shutil.which("readelf") is None:
        pytest.skip("gcc and readelf are needed to make and judge ELF files")
    return Gcc(tmp_path)


@pytest.fixture(scope="session")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that opens the library named on its command line and exits 0 when the loader takes it."""
    folder = tmp_path_factory.mktemp("loads")
    source = folder / "loads.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\n"
        "int main(int c, char **v) { void *h = dlopen(v[1], RTLD_NOW); if (!h) puts(dlerror()); return !h; }\n"
    )
    subprocess.run(["gcc", "-o", folder / "loads", source, "-ldl"], check=True)
    return folder / "loads"


def dynamic_of(path: Path) -> dict[str, list[str]]:
    """What ``readelf -d`` prints, by tag: the judge from outside."""
    output = subprocess.run(["readelf", "-dW", path], check=True, capture_output=True, text=True)
    assert "Warning" not in output.stderr, output.stderr
    found: dict[str, list[str]] = {}
    for line in output.stdout.splitlines():
        if "(" in line and ")" in line and line.lstrip().startswith("0x"):
            tag, _, rest = line.partition("(")[2].partition(")")
            value = rest.partition("[")[2].rpartition("]")[0] if "[" in rest else rest.strip()
            found.setdefault(tag, []).append(value)
    return found
