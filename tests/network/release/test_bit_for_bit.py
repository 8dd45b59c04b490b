"""The real runtime compiled twice without a cache, by other means each time: the same archives, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from llamabuild.release.diff_paths import diff_paths

# Not `network` as well: who asks for those means minutes.
pytestmark = pytest.mark.slow

OTHER_USER = ("unshare", "--user", "--map-user=1234", "--map-group=1234")


def _can_be_another_user():
    try:
        return subprocess.run([*OTHER_USER, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_two_builds_are_the_same(tmp_path, context):
    other_user = OTHER_USER if _can_be_another_user() else ()
    sides = {
        "one": ({"TZ": "UTC", "LANG": "C.UTF-8", "USER": "one"}, "022", "2", ()),
        "a/much/longer/path": ({"TZ": "Asia/Kathmandu", "LANG": "tr_TR.UTF-8", "USER": "two"}, "077", "3", other_user),
    }
    made = []
    for path, (env, umask, jobs, prefix) in sides.items():
        place = tmp_path / path
        place.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMABUILD_")}
        words = ["make", "--recipe", "dflash2-2026-09", "--target", "cpu", "--launcher", "none", "--jobs", jobs]
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "llamabuild", *words],
            cwd=place,
            env={**kept, **env, "HOME": str(place), "LLAMABUILD_HOME": str(place / "home")},
            umask=int(umask, 8),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-8000:]
        made.append(place / "dist")
    for form in ("tar.zst", "tar.gz"):
        one, two = (folder / f"llama-dflash2-2026-09-cpu.{form}" for folder in made)
        assert diff_paths(one, two, context) == ()
        assert one.read_bytes() == two.read_bytes()
