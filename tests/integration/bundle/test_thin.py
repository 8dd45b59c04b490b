"""Thinning takes other archs' code and nothing else."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from llamabuild.bundle.archive import make_archives
from llamabuild.bundle.model import BundlePlan, Entry
from llamabuild.bundle.stage import stage
from llamabuild.bundle.thin import apply_thinning, plan_thinning, prove_thinned, read_bundles, serves
from llamabuild.bundle.unpack import open_archive
from llamabuild.core.errors import BundleError

from .hip import code, hip_library, offload_bundle

THREE = offload_bundle({"gfx1030": code(1), "gfx1100": code(2), "gfx90a:xnack-": code(3)})
OTHERS_ONLY = offload_bundle({"gfx1030": code(4), "gfx90a:xnack-": code(5)})
GENERIC = offload_bundle({"gfx11-generic": code(6), "gfx9-generic": code(7), "gfx1030": code(8)})


def thinned(source: Path, keep: tuple[str, ...] = ("gfx1100",)) -> Path:
    target = source.with_name("thin.so")
    target.write_bytes(source.read_bytes())
    apply_thinning(target, plan_thinning(target, keep))
    return target


def test_other_archs_become_zeros_at_the_same_offsets(tmp_path):
    source = hip_library(tmp_path / "libx.so", THREE, THREE)
    plan = plan_thinning(source, ("gfx1100",))
    assert (plan.kept, plan.zeroed) == (("gfx1100",), ("gfx1030", "gfx90a:xnack-"))
    target = thinned(source)
    before, after = source.read_bytes(), target.read_bytes()
    assert len(before) == len(after)
    assert after.count(code(2)) == 2
    assert code(1) not in after
    assert code(3) not in after
    changed = bytearray(before)
    for offset, size in plan.ranges:
        changed[offset : offset + size] = bytes(size)
    assert bytes(changed) == after
    assert target.stat().st_blocks < source.stat().st_blocks
    prove_thinned(source, target, ("gfx1100",))


def test_a_bundle_without_code_for_the_arch_keeps_all(tmp_path):
    source = hip_library(tmp_path / "libx.so", THREE, OTHERS_ONLY)
    after = thinned(source).read_bytes()
    assert code(4) in after
    assert code(5) in after
    assert code(1) not in after


def test_generic_archs_that_may_serve_stay(tmp_path):
    source = hip_library(tmp_path / "libx.so", GENERIC)
    after = thinned(source).read_bytes()
    assert code(6) in after
    assert code(7) not in after
    assert code(8) not in after


@pytest.mark.parametrize(
    ("candidate", "arch", "expected"),
    [
        ("gfx1100", "gfx1100", True),
        ("gfx90a:xnack-", "gfx90a", True),
        ("gfx90a:xnack+", "gfx90a:xnack-", True),  # Rather too much: the runtime chooses by the card's setting.
        ("gfx1101", "gfx1100", False),
        ("gfx11-generic", "gfx1151", True),
        ("gfx10-3-generic", "gfx1030", True),
        ("gfx10-1-generic", "gfx1030", False),
        ("gfx9-4-generic", "gfx942", True),
        ("gfx9-4-generic", "gfx950", True),
        ("gfx9-generic", "gfx906", True),
        ("gfx9-generic", "gfx90a", False),
        ("gfx9-generic", "gfx9-generic", True),
        ("amdgcnspirv", "gfx1100", True),
    ],
)
def test_what_serves(candidate, arch, expected):
    assert serves(candidate, arch) is expected


def test_more_archs_can_be_kept(tmp_path):
    source = hip_library(tmp_path / "libx.so", THREE)
    after = thinned(source, ("gfx1100", "gfx1030")).read_bytes()
    assert code(1) in after
    assert code(2) in after
    assert code(3) not in after


@pytest.mark.parametrize(
    ("bundles", "why"),
    [
        ((b"CCOB" + bytes(60), THREE), "compressed"),
        ((THREE, b"something else" + bytes(100)), "not understood"),
        ((THREE[:200],), "cut short"),
        ((b"__CLANG_OFFLOAD_BUNDLE__" + b"\xff" * 8 + bytes(100),), "claims"),
    ],
)
def test_what_is_not_understood_is_left_whole(tmp_path, bundles, why):
    source = hip_library(tmp_path / "libx.so", *bundles)
    plan = plan_thinning(source, ("gfx1100",))
    assert plan.ranges == ()
    assert why in plan.whole


def test_libraries_without_device_code(tmp_path):
    source = hip_library(tmp_path / "libx.so", THREE, section=".other")
    assert plan_thinning(source, ("gfx1100",)).whole == "no device code"
    assert list(read_bundles(source)) == []


@pytest.mark.parametrize("offset", [0, 39_000])
@pytest.mark.parametrize("arch", ["gfx1100", "gfx1030"])
def test_damage_is_found(tmp_path, arch, offset):
    """One byte of a kept object, or one byte left of a zeroed one."""
    source = hip_library(tmp_path / "libx.so", THREE)
    target = thinned(source)
    (bundle,) = read_bundles(source)
    place = next(one.offset for one in bundle.objects if one.arch == arch) + offset
    data = bytearray(target.read_bytes())
    data[place] ^= 0xFF
    target.write_bytes(data)
    with pytest.raises(BundleError, match=f"code for {arch}"):
        prove_thinned(source, target, ("gfx1100",))


@pytest.mark.parametrize("strip", [False, True])
def test_staged_thinned_stripped_and_given_an_rpath(tmp_path, context, strip):
    flags = ("-Wl,--spare-dynamic-tags=0",) if strip else ()
    source = hip_library(tmp_path / "libggml-hip.so", THREE, OTHERS_ONLY, flags=flags)
    entry = Entry(
        "bin/libggml-hip.so",
        source,
        None,
        "llama.cpp",
        edit=True,
        rpath="$ORIGIN/../lib",
        strip=strip,
        thin=("gfx1100",),
    )
    plan = BundlePlan(name="x", entries=(entry,), rpath="rpath")
    staged = stage(plan, tmp_path / "s", date=0, context=context, strip_tool=Path("/usr/bin/strip"))
    (change,) = staged.changes
    assert change.thinned.zeroed == ("gfx1030", "gfx90a:xnack-")
    assert change.thinned.sha256_before == hashlib.sha256(source.read_bytes()).hexdigest()
    made = staged.root / "bin/libggml-hip.so"
    assert change.thinned.sha256_after == hashlib.sha256(made.read_bytes()).hexdigest()
    printed = subprocess.run(["readelf", "-dW", made], capture_output=True, text=True, check=True).stdout
    assert "[$ORIGIN/../lib]" in printed
    assert made.read_bytes().count(code(2)) == 1
    (artifact,) = make_archives(staged, tmp_path / "d", context=context, formats=("tar.zst",))
    root = open_archive(artifact.path, tmp_path / "u")
    assert (root / "bin/libggml-hip.so").read_bytes() == made.read_bytes()
    assert (root / "bin/libggml-hip.so").stat().st_blocks < source.stat().st_blocks
