"""A CUDA toolkit of wheels that are few bytes long, brought by the real pip out of a folder."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llamabuild.build.cuda_wheels import assemble_toolkit
from llamabuild.core.errors import ToolError

if TYPE_CHECKING:
    from llamabuild.core.context import Context

CC = Path(shutil.which("cc") or "cc")
EXTRAS = {"nvcc": "nvcc", "crt": "crt", "nvvm": "nvvm", "cudart": "runtime", "cccl": "cccl", "cublas": "cublas"}


def wheel(folder: Path, name: str, version: str, metadata: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder of wheels that stands for the package index: CUDA 12.9.1, 13.0.1 and 13.0.2."""
    folder = tmp_path / "index"
    folder.mkdir()
    for version in ("12.9.1", "13.0.1", "13.0.2"):
        needs = "".join(
            f"Provides-Extra: {extra}\nRequires-Dist: nvidia-cuda-{part}=={version}; extra == '{extra}'\n"
            for extra, part in EXTRAS.items()
        )
        wheel(folder, "cuda_toolkit", version, needs, {})
        for part in EXTRAS.values():
            files = {f"nvidia/cu13/include/{part}.h": ""}
            if part == "runtime":
                files["nvidia/cu13/include/cuda.h"] = "CUresult cuInit(unsigned int flags);\n"
                files["nvidia/cu13/lib/libcudart.so.13"] = ""
            wheel(folder, f"nvidia_cuda_{part}", version, "", files)
    return folder


@pytest.fixture
def here(context: Context, index: Path) -> Context:
    """A context whose pip knows that folder alone."""
    return replace(context, env={**context.env, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)})


def versions(root: Path) -> set[str]:
    record = (root / "llamabuild-toolkit.json").read_text()
    return {version for version in ("13.0.1", "13.0.2") if f"-{version}-" in record}


def test_two_numbers_mean_the_newest_release_and_three_that_one(here: Context) -> None:
    newest = assemble_toolkit("13.0", CC, here)
    assert versions(newest.root) == {"13.0.2"}
    pinned = assemble_toolkit("13.0.1", CC, here)
    assert versions(pinned.root) == {"13.0.1"}
    assert len(pinned.checksums) == len(EXTRAS)
    assert (pinned.root / "lib/stubs/libcuda.so").is_file()


@pytest.mark.parametrize(
    ("version", "hint"), [("13.0.9", "Take wheels:13.0.1 or wheels:13.0.2."), ("99.9", "Take wheels:13.0.")]
)
def test_a_version_that_does_not_exist_is_told_with_those_that_do(version: str, hint: str, here: Context) -> None:
    with pytest.raises(ToolError, match=rf"have no CUDA {version}\.") as caught:
        assemble_toolkit(version, CC, here)
    assert caught.value.hint == hint


def test_without_an_index_it_is_the_index_that_is_told(here: Context) -> None:
    nowhere = replace(here, env={**here.env, "PIP_FIND_LINKS": ""})
    with pytest.raises(ToolError, match="pip could not bring") as caught:
        assemble_toolkit("13.0", CC, nowhere)
    assert "in reach" in (caught.value.hint or "")


def test_leftovers_of_an_interrupted_download_are_not_mixed_in(here: Context, index: Path) -> None:
    downloads = here.home.downloads
    downloads.mkdir(parents=True)
    for name in ("cuda-wheels-13.0", ".cuda-toolkit-13.0.x.part"):
        (downloads / name).mkdir()
        shutil.copy(index / "nvidia_cuda_nvcc-13.0.1-py3-none-any.whl", downloads / name)
    assert versions(assemble_toolkit("13.0", CC, here).root) == {"13.0.2"}


def test_a_finished_download_is_used_offline(here: Context) -> None:
    with pytest.raises(ToolError, match="offline"):
        assemble_toolkit("13.0", CC, replace(here, offline=True))
    # Interrupted between download and assembly: the stub cannot be made.
    with pytest.raises(ToolError, match="stub"):
        assemble_toolkit("13.0", Path("/bin/false"), here)
    offline = replace(here, offline=True, env={**here.env, "PIP_FIND_LINKS": ""})
    toolkit = assemble_toolkit("13.0", CC, offline)
    assert versions(toolkit.root) == {"13.0.2"}
    # Neither is needed once it is assembled.
    assert list(here.home.downloads.iterdir()) == []
    assert assemble_toolkit("13.0", CC, offline) == toolkit
