"""``--launcher``, ``--jobs`` and the toolkits' places, as ``make`` takes them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from llamabuild.build.model import BuildOptions
from llamabuild.commands.make import add_build_options, build_options
from llamabuild.core.errors import UsageError


def parse(*words: str) -> BuildOptions:
    parser = argparse.ArgumentParser()
    add_build_options(parser)
    return build_options(parser.parse_args(words))


def test_the_defaults_are_a_local_ccache_and_jobs_by_the_machine() -> None:
    assert parse() == BuildOptions()


def test_a_farm_composes_with_the_cache() -> None:
    assert parse("--launcher", "distcc") == BuildOptions(launcher="ccache", farm="distcc")
    assert parse("--launcher", "none", "--launcher", "icecc") == BuildOptions(launcher="none", farm="icecc")


@pytest.mark.parametrize("pair", [("ccache", "sccache"), ("distcc", "icecc"), ("none", "ccache")])
def test_two_of_a_kind_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        parse("--launcher", pair[0], "--launcher", pair[1])


def test_places_and_counts() -> None:
    options = parse("-j", "3", "--cuda-toolkit", "wheels:13.0", "--rocm", "/opt/rocm", "--vulkan-sdk", "/opt/vulkan")
    assert (options.jobs, options.cuda_toolkit) == (3, "wheels:13.0")
    assert (options.rocm, options.vulkan_sdk) == (Path("/opt/rocm"), Path("/opt/vulkan"))
    with pytest.raises(SystemExit):
        parse("-j", "0")
