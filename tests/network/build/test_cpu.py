"""Real configures of v0.5.0 for the CPU targets: seconds each, nothing is compiled."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from llamabuild.build.cmake import build_folder
from llamabuild.core.errors import BuildError

pytestmark = pytest.mark.network


def test_the_baseline_is_named_and_nothing_is_native(real: Any) -> None:
    made = real.prepare("cpu", backends=("cpu",))
    assert "ggml-cpu" in real.configure(made)
    folder = build_folder(real.source, made[0])
    commands = (folder / "compile_commands.json").read_text()
    assert "-march=native" not in commands
    plugin = next(line for line in commands.splitlines() if "ggml-cpu.dir/ggml-cpu/ggml-cpu.c.o" in line)
    assert {"-msse4.2", "-mavx", "-mavx2", "-mbmi2", "-mfma", "-mf16c"} <= set(plugin.split())
    listing = subprocess.check_output([made[1].tool("cmake").path, "-L", "-N", folder], text=True)
    for line in (
        "GGML_NATIVE:BOOL=OFF",
        "LLAMA_BUILD_IS_DEV:BOOL=OFF",
        "LLAMA_OPENSSL:BOOL=OFF",
        "LLAMA_BUILD_UI:BOOL=OFF",
    ):
        assert line in listing
    assert "int LLAMA_BUILD_NUMBER = 11146;" in (folder / "common/build-info.cpp").read_text()
    assert '"7fe450e19"' in (folder / "ggml/src/ggml-version.h").read_text()


def test_every_cpu_variant_is_a_plugin_of_its_own(real: Any) -> None:
    made = real.prepare("cpu-all", backends=("cpu",), **{"cpu-variants": True})
    plugins = {name.removeprefix("ggml-cpu-") for name in real.configure(made) if name.startswith("ggml-cpu")}
    assert {"x64", "sandybridge", "haswell", "skylakex", "icelake", "zen4", "alderlake", "sapphirerapids"} <= plugins
    assert "ggml-cpu" not in plugins


@pytest.mark.parametrize(("option", "nearest"), [("GGML_HIPBLAS", "GGML_HIP"), ("GGML_VULCAN", "GGML_VULKAN")])
def test_a_renamed_or_misspelt_option_stops_the_configure(option: str, nearest: str, real: Any) -> None:
    made = real.prepare("cpu", backends=("cpu",), cmake={option: "ON"})
    with pytest.raises(BuildError, match=option) as caught:
        real.configure(made)
    assert caught.value.hint == f"The nearest that it knows is {nearest}."
