"""``release`` as a user runs it, on the small repository: everything is built, described, checked and published."""

import json
import shutil
import subprocess

import pytest

from llamabuild.cli import main
from llamabuild.release.diff_paths import diff_paths

RELEASE = ("release", "--recipe", "small", "--flavour", "cpu")


def _sums_hold(folder):
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout


def test_release_with_baseline_then_put_together_again(workshop, monkeypatch, capsys):
    done = workshop.run(*RELEASE, "--with-baseline", "--out", "part/cpu")
    assert done.returncode == 0, done.stderr
    out = workshop.folder / "part/cpu"
    assert _sums_hold(out)[0]
    baseline = f"baseline-{workshop.pin[0][:7]}"
    info = {name: json.loads((out / f"BUILD_INFO-{name}.json").read_text()) for name in ("cpu", f"{baseline}-cpu")}
    assert [patch["outcome"] for patch in info["cpu"]["patches"]] == ["applied"]
    assert info[f"{baseline}-cpu"]["patches"] == []
    assert info["cpu"]["upstream_tree"] == info[f"{baseline}-cpu"]["tree"] == workshop.pin[1]
    names = {"llama-small-cpu.tar.zst", f"llama-{baseline}-cpu.tar.zst", "llama-small-patches-greeting.tar.gz"}
    assert names <= {path.name for path in out.iterdir()}

    # What the program of each archive says is the patch's doing.
    for archive, greeting in (("llama-small-cpu", "hello, fork"), (f"llama-{baseline}-cpu", "hello")):
        shutil.unpack_archive(out / f"{archive}.tar.gz", workshop.folder / "unpacked", filter="data")
        program = workshop.folder / "unpacked" / archive / "bin/llama-cli"
        said = subprocess.run([program, "--greet"], capture_output=True, text=True, check=True, env={})
        assert said.stdout.strip() == greeting

    joined = workshop.run(*RELEASE, "--from", "part", "--out", "joined")
    assert joined.returncode == 0, joined.stderr
    assert _sums_hold(workshop.folder / "joined")[0]
    same = {path.name for path in out.iterdir()}
    assert {path.name for path in (workshop.folder / "joined").iterdir()} == same
    statement = f"joined/provenance-{baseline}-cpu.intoto.json"
    assert workshop.run("verify", "joined", "--provenance", statement).returncode == 0

    # What is wrong ends in one sentence, the contract's exit code, and no folder.
    monkeypatch.chdir(workshop.folder)
    monkeypatch.setenv("LLAMABUILD_HOME", workshop.env["LLAMABUILD_HOME"])
    data = bytearray((out / "llama-small-cpu.tar.zst").read_bytes())
    data[100] ^= 1
    shutil.copytree(out, workshop.folder / "damaged/cpu")
    (workshop.folder / "damaged/cpu/llama-small-cpu.tar.zst").write_bytes(data)
    for words, code, said in (
        ((*RELEASE, "--flavour", "cuda:86", "--from", "part", "--out", "no"), 2, "has no target 'cuda'"),
        (("release", "--recipe", "small", "--from", "part/none", "--out", "no"), 2, "There is no folder"),
        ((*RELEASE, "--from", "recipes", "--out", "no"), 2, "holds no finished part for small cpu"),
        ((*RELEASE, "--from", "part", "--out", "joined"), 2, "is there already and not empty"),
        ((*RELEASE, "--since", "recipes", "--out", "no"), 2, "holds no BUILD_INFO"),
        (("release", "--recipe", "small", "--out", "no"), 2, "No flavour of recipe small is named"),
        (("release", "--recipe", "smal", "--flavour", "cpu", "--out", "no"), 2, "smal"),
        (
            (*RELEASE, "--from", "damaged", "--out", "no"),
            1,
            "llama-small-cpu.tar.zst is not the file that was released",
        ),
    ):
        capsys.readouterr()
        assert main([str(word) for word in words]) == code, words
        told = capsys.readouterr().err
        assert said in told
        assert told.count("error: ") == 1
        assert list(workshop.folder.glob("*no")) + list(workshop.folder.glob(".no*")) == []


_OTHER_USER = ("unshare", "--user", "--map-user=1234", "--map-group=1234")
"""Another user and group to everything that asks, without the rights that this one may have."""


def _can_be_another_user():
    try:
        return subprocess.run([*_OTHER_USER, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_another_user_takes_part():
    if not _can_be_another_user():
        pytest.skip("no user namespace can be made here: bit for bit is shown for one user alone")


def test_bit_for_bit(workshop, context):
    """Other paths, umask, locale, time zone, number of jobs and user: the same archives, compiled anew each time."""
    other_user = _OTHER_USER if _can_be_another_user() else ()
    sides = {
        "one": ({"TZ": "UTC", "LANG": "C", "LC_ALL": "C", "USER": "one"}, "022", "1"),
        "a/much/longer/path": ({"TZ": "Asia/Kathmandu", "LANG": "tr_TR.UTF-8", "USER": "two"}, "077", "3"),
    }
    made = []
    for path, (env, umask, jobs) in sides.items():
        place = workshop.folder / path
        place.mkdir(parents=True)
        prefix = () if path == "one" else other_user
        words = workshop.argv(
            "make", "--recipe", workshop.folder / "recipes/small.toml", "--target", "cpu", "--jobs", jobs
        )
        done = subprocess.run(
            [*prefix, *words],
            cwd=place,
            env={**workshop.env, **env, "HOME": str(place), "LLAMABUILD_HOME": str(place / "home")},
            umask=int(umask, 8),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made.append(place / "dist")
    for form in ("tar.zst", "tar.gz"):
        one, two = (folder / f"llama-small-cpu.{form}" for folder in made)
        assert diff_paths(one, two, context) == ()
        assert one.read_bytes() == two.read_bytes()
