"""Containerfiles: clean under hadolint, and chosen from what the bundle needs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llamabuild.bundle.model import Artifact
from llamabuild.core.errors import UsageError
from llamabuild.release.container import base_image, containerfile, packages_for
from llamabuild.release.facts import read_facts
from llamabuild.release.info import owners_of
from llamabuild.release.part import Extras, write_part
from llamabuild.release.view import BundleView, Needed, view_bundle


@pytest.fixture
def seen(release, tmp_path):
    """Facts and view of the small bundle."""
    subprocess.run(["tar", "xzf", release / "llama-small-cpu.tar.gz", "-C", tmp_path], check=True)
    info = json.loads((release / "BUILD_INFO-cpu.json").read_text())
    return read_facts(info, where="it"), view_bundle(tmp_path / "llama-small-cpu", owners_of(info))


ARCHIVE = Artifact(Path("llama-small-cpu.tar.gz"), "ab" * 32, 1)


def _hadolint(text, tmp_path):
    tool = Path(sys.executable).parent / "hadolint"
    if not tool.exists():
        pytest.skip("hadolint is not installed (pip install '.[test]')")
    path = tmp_path / "Containerfile"
    path.write_text(text)
    return subprocess.run([tool, "--no-color", path], capture_output=True, text=True, check=False)


def test_hadolint_is_clean_for_every_kind(seen, tmp_path):
    facts, view = seen
    vulkan = replace(view, needed=(*view.needed, Needed("bin/x", "libvulkan.so.1", "system", "")))
    for given, shown in (
        (facts, view),
        (replace(facts, backends=("cuda",)), view),
        (replace(facts, backends=("cuda", "vulkan"), summary='quote " dollar $HOME \\ and\nline'), vulkan),
    ):
        text = containerfile(given, shown, archives=[ARCHIVE])
        done = _hadolint(text, tmp_path)
        assert (done.returncode, done.stdout) == (0, ""), text


def test_hadolint_would_see_a_bad_one(seen, tmp_path):
    text = (
        containerfile(*seen, archives=[ARCHIVE])
        .replace("ARG BASE=debian:bookworm-slim\n", "")
        .replace("${BASE}", "debian")
    )
    assert _hadolint(text, tmp_path).returncode != 0


def test_what_a_cpu_image_is(seen):
    text = containerfile(*seen, archives=[ARCHIVE])
    lines = text.splitlines()
    assert "USER 10001:10001" in lines
    assert 'ENTRYPOINT ["/opt/llama-small-cpu/bin/llama-server"]' in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    assert not any(line.startswith("RUN") for line in lines)  # It needs nothing that the base image lacks.
    assert f"llama-small-cpu.tar.gz sha256:{'ab' * 32}" in text
    assert "7fe450e19305b828c199d602c23a8337aaa1f03b" in text


def test_cuda_compat_is_purged_and_the_driver_asked_for(seen):
    facts, view = seen
    text = containerfile(replace(facts, backends=("cuda",)), view, archives=[ARCHIVE])
    assert "cuda-compat-*" in text
    assert "rm -rf /usr/local/cuda*/compat" in text
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in text


@pytest.mark.parametrize(
    ("floor", "image"), [("2.34", "bookworm"), ("2.36", "bookworm"), ("2.37", "trixie"), ("2.4", "bookworm")]
)
def test_the_base_has_the_glibc(floor, image):
    assert image in base_image({"GLIBC": floor})


def test_a_floor_that_no_base_meets():
    with pytest.raises(UsageError, match=r"needs glibc 2\.99"):
        base_image({"GLIBC": "2.99"})


def _view(*names, origin="system"):
    needed = tuple(Needed("bin/x", name, origin, "") for name in names)
    return BundleView(Path("/"), files=(), links={}, needed=needed, programs=(), plugins=(), floors={})


def test_packages_come_from_the_closure():
    assert packages_for(_view("libc.so.6", "ld-linux-x86-64.so.2", "libvulkan.so.1", "libgcc_s.so.1")) == (
        "libgcc-s1",
        "libvulkan1",
    )
    assert packages_for(_view("libcuda.so.1", origin="driver")) == ()
    with pytest.raises(UsageError, match=r"libodd\.so\.3"):
        packages_for(_view("libodd.so.3"))


def test_only_an_archive_that_every_builder_unpacks(seen):
    with pytest.raises(UsageError, match="not every builder unpacks zstd"):
        containerfile(*seen, archives=[replace(ARCHIVE, path=Path("x.tar.zst"))])


def test_it_is_part_of_a_release_when_asked_for(maker, tmp_path):
    (tmp_path / "part").mkdir()
    write_part(maker.built(), tmp_path / "part", context=maker.context, extras=Extras(container=True))
    text = (tmp_path / "part/Containerfile-cpu").read_text()
    assert "ADD llama-small-cpu.tar.gz /opt/" in text
