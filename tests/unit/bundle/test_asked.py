"""Options that do not fit a foreign build."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamabuild.build.model import BuildTree, Target
from llamabuild.bundle.asked import check_asked, date_asked
from llamabuild.cli import main
from llamabuild.core.errors import UsageError

TREE = Path("tree")


def check(*backends: str, arch: str = "", keep: tuple[str, ...] = (), rocm=None, cuda=None) -> None:
    target = Target("t", backends, arch, (), (), "rpath", None, rccl=False, nccl=False)
    here = Path("build")
    build = BuildTree(here, here, target, (), (), (), 0, "", "unknown", here)
    check_asked(build, arch=arch, keep=keep, rocm=rocm, cuda=cuda)


def test_what_fits():
    check("cpu")
    check("cpu", "cuda", cuda=TREE)
    check("cpu", "cuda", arch="86,89-real")
    check("cpu", "hip", arch="gfx1100", keep=("gfx90a-xnack+", "gfx1030"), rocm=TREE)
    check("hip", arch="gfx90a:sramecc+:xnack-")


@pytest.mark.parametrize(
    ("backends", "options", "message", "hint"),
    [
        (("cpu",), {"rocm": TREE}, "--rocm: build is a build for cpu, and only one for hip", "Leave --rocm out"),
        (("cpu", "hip"), {"cuda": TREE, "arch": "gfx1100"}, "--cuda: build is a build for cpu and hip", "Leave --cuda"),
        (("cpu", "cuda"), {"rocm": TREE}, "--rocm: ", "Leave --rocm out"),
        (("cpu", "hip"), {"rocm": TREE, "cuda": TREE}, "--rocm and --cuda are both given", "name one"),
        (("cpu", "cuda"), {"keep": ("gfx1100",)}, "--keep-archs: ", "Leave --keep-archs out"),
        (("cpu", "vulkan"), {"arch": "gfx1100"}, "--arch: build is a build for cpu and vulkan", "Leave --arch out"),
        (("cpu", "cuda"), {"arch": "gfx1100"}, "is not a CUDA arch", "AMD arch"),
        (("hip",), {}, "bundled for one arch", "--arch"),
        (("hip",), {"arch": "gfx1100,gfx1030"}, "is a list", "gfx1100, and the others with --keep-archs gfx1030"),
        (("hip",), {"arch": "auto"}, "names none", "such as 86 or gfx1100"),
        (("hip",), {"arch": "1100"}, "is not an AMD arch", "Write it gfx1100."),
        (("hip",), {"arch": "gfx110X"}, "is a family", "gfx1100, gfx1101"),
        (("hip",), {"arch": "gfx90a:fast"}, "is not an AMD arch", "gfx90a:xnack-"),
        (("hip",), {"arch": "gfx1100", "keep": ("90a",)}, "--keep-archs: '90a' is not an AMD arch", "gfx90a"),
    ],
)  # fmt: skip
def test_what_does_not_fit(backends, options, message, hint):
    with pytest.raises(UsageError) as caught:
        check(*backends, **options)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("given", ["abc", "-1", "1.5", "8589934592", "9" * 5000, "\u0663"])
def test_dates_that_are_none(given):
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        date_asked({"SOURCE_DATE_EPOCH": given})


def test_dates():
    assert date_asked({}) is None
    assert date_asked({"SOURCE_DATE_EPOCH": ""}) is None
    assert date_asked({"SOURCE_DATE_EPOCH": "1758600000"}) == 1_758_600_000


@pytest.mark.parametrize("verb", ["bundle", "pack"])
@pytest.mark.parametrize(
    ("option", "value", "mode"),
    [
        *((option, "cpu", "--build") for option in ("--target", "--cuda-toolkit", "--vulkan-sdk", "--remote-cache")),
        *(("--jobs", "2", "--build"), ("--launcher", "none", "--build"), ("--keep-conflict", "x", "--build")),
        *(("--name", "x", "--recipe"), ("--cuda", "x", "--recipe")),
    ],
)
def test_options_of_the_other_kind(verb, option, value, mode, capsys):
    assert main([verb, mode, "nothing", option, value]) == 2
    assert f"{option} has no meaning with {mode}." in capsys.readouterr().err
