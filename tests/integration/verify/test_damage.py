"""Bytes of a bundle changed at random: whatever it is, it is told, and never by a traceback."""

from __future__ import annotations

import contextlib
import random

import pytest

from llamabuild.core.errors import LlamabuildError
from llamabuild.verify.check import Options, verify_path
from llamabuild.verify.inspect.run import inspect_path


def damage(data: bytearray, rnd: random.Random) -> bytearray:
    start = rnd.randrange(len(data))
    how = rnd.choice(["bits", "cut", "zeros", "header", "noise"])
    if how == "cut":
        return data[:start]
    if how == "bits":
        for _ in range(rnd.randint(1, 20)):
            data[rnd.randrange(len(data))] ^= 1 << rnd.randrange(8)
    elif how == "header":
        for _ in range(rnd.randint(1, 6)):
            data[rnd.randrange(min(len(data), 1024))] = rnd.randrange(256)
    else:
        stop = min(len(data), start + rnd.randint(1, 2000))
        data[start:stop] = bytes(stop - start) if how == "zeros" else rnd.randbytes(stop - start)
    return data


@pytest.mark.parametrize("seed", range(8))
def test_any_damage_is_a_finding(seed, hip_bundle_gfx1100, copy_of):
    made = copy_of(hip_bundle_gfx1100)
    rnd = random.Random(seed)
    files = [path for path in sorted(made.root.rglob("*")) if path.is_file() and not path.is_symlink()]
    path = rnd.choice([each for each in files if 0 < each.stat().st_size < 300_000])
    before = path.read_bytes()
    path.write_bytes(damage(bytearray(before), rnd))
    report = verify_path(made.root, context=made.context, options=Options(run=False))
    if path.read_bytes() != before:
        assert not report.ok, path
    for each in (made.root, path):
        with contextlib.suppress(LlamabuildError):
            inspect_path(each)
