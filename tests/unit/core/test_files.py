from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from llamabuild.core.files import (
    atomic_folder,
    atomic_write,
    canonical_json,
    key_of,
    locked,
    remove_tree,
    scratch_folder,
    sha256_file,
)
from llamabuild.core.stages import StageStore


def test_digest_equals_sha256sum(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 9000)
    told = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]
    assert sha256_file(path) == told


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as handle:
        handle.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_folder_leaves_the_old_one_and_no_other(tmp_path):
    path = tmp_path / "folder"
    with atomic_folder(path) as part:
        (part / "a").write_text("old")
    with pytest.raises(OSError, match="full"), atomic_folder(path) as part:
        (part / "a").write_text("half")
        raise OSError("full")
    assert (path / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_a_kill_left_is_swept_by_the_next_run(tmp_path):
    script = textwrap.dedent("""
        import os, signal, sys, pathlib
        from llamabuild.core.files import atomic_folder
        with atomic_folder(pathlib.Path(sys.argv[1])) as part:
            (part / "a").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    path = tmp_path / "folder"
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -9
    assert not path.exists()
    with atomic_folder(path) as part:
        (part / "a").write_text("new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_read_only_trees_can_be_removed(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "f").write_text("x")
    folder.chmod(0o555)
    remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_keys_depend_on_the_value_alone():
    assert canonical_json({"b": [1, "ü"], "a": None}) == '{"a":null,"b":[1,"ü"]}'
    expected = hashlib.sha256(b'{"a":1,"b":2}').hexdigest()
    assert key_of({"b": 2, "a": 1}) == key_of({"a": 1, "b": 2}) == expected


def test_a_second_process_waits_for_the_lock_and_says_so(tmp_path):
    holder = "import sys,pathlib; from llamabuild.core.files import locked\n" + textwrap.dedent("""
        with locked(pathlib.Path(sys.argv[1])):
            print("held", flush=True); sys.stdin.read()
            pathlib.Path(sys.argv[2]).write_text("released")
    """)
    said = []
    with subprocess.Popen(
        [sys.executable, "-c", holder, tmp_path / "lock", tmp_path / "mark"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        other.stdout.readline()
        with locked(
            tmp_path / "lock", on_wait="another run holds it", say=lambda text: (said.append(text), other.stdin.close())
        ):
            assert (tmp_path / "mark").read_text() == "released"
    assert said == ["another run holds it"]


def test_a_stage_counts_only_while_its_files_are_as_it_left_them(tmp_path):
    made = tmp_path / "made"
    made.write_text("one")
    store = StageStore(tmp_path / "stages")
    key = store.key("build", {"a": 1})
    assert key != store.key("stage", {"a": 1})
    assert store.load(key) is None
    store.save(key, {"files": ["made"]}, files=[made])
    assert store.load(key) == {"files": ["made"]}
    made.write_text("two!")
    assert store.load(key) is None


def test_a_torn_record_counts_as_absent(tmp_path):
    store = StageStore(tmp_path)
    (tmp_path / "k.json").write_text('{"result": ')
    assert store.load("k") is None


KILLED = """
import os, signal, sys
from pathlib import Path
from llamabuild.core.files import scratch_folder
with scratch_folder(Path(sys.argv[1]), prefix="bundle-") as folder:
    (folder / "big").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_run_left_is_swept_and_what_a_live_one_uses_is_not(tmp_path):
    own = tmp_path / "bundle-of-mine"
    own.mkdir()
    words = [sys.executable, "-c", KILLED, tmp_path]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        folder = Path(run.stdout.readline().strip())
        with scratch_folder(tmp_path, prefix="bundle-") as mine, scratch_folder(tmp_path, prefix="bundle-") as nested:
            assert {folder, mine, nested, own} == set(tmp_path.iterdir())
        run.kill()
    assert (folder / "big").exists()
    with scratch_folder(tmp_path, prefix="bundle-") as mine:
        assert {mine, own} == set(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == [own]
