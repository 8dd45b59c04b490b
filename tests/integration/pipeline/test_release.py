"""``release`` as a user runs it, on the small repository: everything is built, described, checked and published."""

import json
import subprocess


def test_release_with_baseline(workshop):
    done = workshop.run("release", "--recipe", "small", "--flavour", "cpu", "--with-baseline", "--out", "release")
    assert done.returncode == 0, done.stderr
    out = workshop.folder / "release"
    sums = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=out, capture_output=True, text=True, check=False)
    assert sums.returncode == 0, sums.stdout
    commit = json.loads((out / "BUILD_INFO-cpu.json").read_text())["upstream_base_commit"]
    baseline = f"baseline-{commit[:7]}"
    for name in ("llama-small-cpu.tar.zst", f"llama-{baseline}-cpu.tar.zst", "llama-small-patches-greeting.tar.gz"):
        assert (out / name).is_file()
    for name in ("cpu", f"{baseline}-cpu"):
        checked = workshop.run("verify", "release", "--provenance", f"release/provenance-{name}.intoto.json")
        assert checked.returncode == 0, checked.stdout
