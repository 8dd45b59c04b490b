"""Generated merges: ours and git's come to the same tree, or both see a conflict."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pygit2
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from realgit import Git

from llamabuild.source.merge import merge_trees
from llamabuild.source.treepatch import Entry, write_edits, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

Tree = dict[bytes, tuple[bytes, int]]
NAMES = [b"a.cpp", b"dir/b.cpp", b"dir/c.h"]


@st.composite
def bases(draw: st.DrawFn) -> Tree:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return {name: (_text(draw(st.integers(8, 30)), name), 0o100644) for name in names}


def _text(length: int, name: bytes) -> bytes:
    # Braces and empty lines repeat, as they do in sources: what lines up with what is then a matter of the algorithm.
    return b"".join(
        b"}\n" if number % 4 == 2 else b"\n" if number % 4 == 3 else b"%s line %d\n" % (name, number)
        for number in range(length)
    )


@st.composite
def edited(draw: st.DrawFn, tree: Tree, mark: bytes) -> Tree:
    result = dict(tree)
    for name in sorted(tree):
        data, mode = tree[name]
        lines = data.splitlines(keepends=True)
        kind = draw(st.sampled_from(["keep"] * 6 + ["mode", "move", "remove"]))
        # How alike two files are is estimated by either in its own way, so a file that moves changes little.
        most = 1 if kind == "move" else 2
        for step in range(draw(st.integers(0, most))):
            at = draw(st.integers(0, len(lines)))
            gone = draw(st.integers(0, most))
            word = draw(st.sampled_from([mark, mark, b"same", b"}"]))
            lines[at : at + gone] = [b"%s %d\n" % (word, step)] * draw(st.integers(0, most))
        del result[name]
        if kind != "remove":
            place = name + b"." + mark if kind == "move" else name
            result[place] = (b"".join(lines), mode ^ (0o111 if kind == "mode" else 0))
    if draw(st.integers(0, 4)) == 0:
        result[draw(st.sampled_from([b"new.txt", b"dir/" + mark]))] = (
            draw(st.sampled_from([mark, b"same"])) + b"\n",
            0o100644,
        )
    return result


class Bench:
    def __init__(self, path: Path) -> None:
        self.git = Git.new(path, bare=True)
        self.repository = pygit2.Repository(str(path))
        self.who = pygit2.Signature("a", "a@b", 0, 0)

    def tree(self, files: Tree) -> str:
        edits: dict[bytes, Entry | None] = {
            name: Entry(str(self.repository.create_blob(data)), mode) for name, (data, mode) in files.items()
        }
        return write_edits(self.repository, write_tree(self.repository, {}), edits)

    def commit(self, tree: str, *parents: str) -> str:
        return str(self.repository.create_commit(None, self.who, self.who, "m", tree, list(parents)))

    def gits(self, base: str, ours: str, theirs: str) -> str | None:
        """The tree of git's merge of two commits on one base, which is what a cherry-pick does; None in a conflict."""
        root = self.commit(base)
        done = self.git.run("merge-tree", "--write-tree", self.commit(ours, root), self.commit(theirs, root))
        assert done.returncode in {0, 1}, done.stderr
        return None if done.returncode else done.stdout.decode().strip()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        yield Bench(Path(folder) / "bench.git")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tree, Tree, Tree]:
    base = draw(bases())
    return base, draw(edited(base, b"ours")), draw(edited(base, b"theirs"))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(case=cases())
def test_generated_merges_end_as_gits(bench: Bench, case: tuple[Tree, Tree, Tree]) -> None:
    base, ours, theirs = (bench.tree(files) for files in case)
    assume(base not in {ours, theirs})
    merged = merge_trees(bench.repository, base, ours, theirs)
    assert (None if merged.conflicts else merged.tree) == bench.gits(base, ours, theirs)
