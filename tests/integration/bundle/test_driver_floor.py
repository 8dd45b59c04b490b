"""The NVIDIA driver that a bundle needs stands in the bundle itself, arch by arch."""

from __future__ import annotations

import json

import pytest

from llamabuild.bundle.drivers import driver_floors
from llamabuild.bundle.run import bundle_folder
from llamabuild.release.schemas import load_schema, schema_problems

from ..verify.conftest import make_nv_fatbin
from .hip import hip_library
from .test_cuda import make_toolkit


@pytest.fixture
def plugin(tmp_path):
    """``libggml-cuda.so`` with SASS and PTX, linked with the runtime of CUDA 12."""

    def make(*images: tuple[str, str]):
        runtime = hip_library(tmp_path / "rt/libcudart.so.12", b"x", section=".other")
        made = tmp_path / "plugin/libggml-cuda.so"
        return hip_library(
            made, make_nv_fatbin(*images), section=".nv_fatbin", flags=("-Wl,--no-as-needed", str(runtime))
        )

    return make


IMAGES = (("sass", "86"), ("sass", "120a"), ("ptx", "86"))


@pytest.mark.parametrize(
    ("toolkit", "expected"),
    [
        ("13.1.80", {"sm_86": "580.65.06", "sm_120a": "580.65.06", "compute_86": "590.44.01"}),
        # Nobody said which toolkit: the runtime's major tells what machine code needs, and nothing of PTX.
        ("", {"sm_86": "525.60.13", "sm_120a": "570", "compute_86": "unknown"}),
    ],
)
def test_each_kind_of_code_has_its_floor(plugin, toolkit, expected):
    found = driver_floors([plugin(*IMAGES)], toolkit=toolkit)
    assert {arch: floor.removesuffix(".00") for arch, floor in found.items()} == expected


def test_files_without_code_need_no_driver(tmp_path):
    (tmp_path / "text").write_text("x")
    assert driver_floors([tmp_path / "text"], toolkit="13.0") == {}


def test_the_floors_are_in_build_info(small_build, tmp_path, context):
    toolkit = make_toolkit(tmp_path / "cuda-13.0", "lib64")
    needs = ("-Wl,--no-as-needed", str(toolkit / "lib64/libcudart.so.13"), f"-Wl,-rpath-link,{toolkit}/lib64")
    folder = small_build.tree.folder
    hip_library(folder / "bin/libggml-cuda.so", make_nv_fatbin(*IMAGES), section=".nv_fatbin", flags=needs)
    for extra in sorted((small_build.system / "usr/lib/x86_64-linux-gnu").iterdir()):
        (toolkit / "lib64" / extra.name).write_bytes(extra.read_bytes())
    staged, _ = bundle_folder(folder, tmp_path / "out", arch="86", cuda=toolkit, context=context, name="x")
    runtime = json.loads((staged.root / "BUILD_INFO.json").read_text())["runtime"]
    assert runtime["driver_floor"]["sm_86"] == "580.65.06"
    assert runtime["driver_floor"]["compute_86"] == "unknown"
    assert "sm_86 needs driver 580.65.06 or newer" in (staged.root / "BUILD_INFO.txt").read_text()
    schema = load_schema("build-info-1")["properties"]["runtime"]["properties"]
    assert set(runtime) <= set(schema)
    document = {"schema": 1, "runtime": runtime}
    assert not [problem for problem in schema_problems(document, "build-info-1") if "runtime" in problem.where]
    document["runtime"]["driver_floor"] = {"86": "new"}
    assert [problem for problem in schema_problems(document, "build-info-1") if "runtime" in problem.where]
