"""Putting a release together on a file system that is really too small."""

import subprocess
import sys

import pytest

from .conftest import COMMIT, TREE

RECIPE = f"""schema = 1
name = "small"
summary = "A small program"
[source]
repository = "https://github.com/ggml-org/llama.cpp"
ref = "v0.5.0"
commit = "{COMMIT}"
tree = "{TREE}"
build-number = 11146
[targets.cpu]
backends = ["cpu"]
"""


@pytest.mark.parametrize(("size", "code"), [("300k", 2), ("20m", 0)])
def test_nothing_is_left_under_the_releases_name(release, tmp_path, size, code):
    (tmp_path / "small.toml").write_text(RECIPE)
    small = tmp_path / "small"
    small.mkdir()
    words = ["release", "--recipe", tmp_path / "small.toml", "--flavour", "cpu", "--from", release]
    mount = f'mount -t tmpfs -o size={size} tmpfs "$1"'
    inside = mount + ' && small=$1 && shift && "$@" >&2; code=$?; ls -A "$small"; exit $code'
    alone = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "-", small)
    done = subprocess.run(
        [*alone, sys.executable, "-m", "llamabuild", *words, "--out", small / "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == code, done.stderr
    assert done.stdout == ("" if code else "out\n")
    assert "Traceback" not in done.stderr
    if code:
        assert "No space left on device" in done.stderr
        assert done.stderr.count("error: ") == 1
