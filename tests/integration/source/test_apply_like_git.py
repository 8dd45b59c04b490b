"""Generated patches: ours and ``git apply`` come to the same tree, or both refuse."""

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

from llamabuild.core.errors import PatchError
from llamabuild.source.diff import parse_diff
from llamabuild.source.treepatch import Entry, MisfitError, apply_to_tree, write_edits, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = [
    b"a.txt",
    b"dir/b.c",
    b"dir/sub/c d.txt",
    "ü.md".encode(),
    b"lat\xefn",
    b"tab\there",
    b'quote".h',
    b"dir/b.x",
    b"dir",
    b"a.txt/x",
]
# Few different lines, so that a hunk often has more than one place.
LINES = [b"", b"one", b"two", b"}", b"\tint x = 1;", b"caf\xe9", b"-- ", b"+++ b/x", b"@@ -1 +1 @@", b"cr\r"]


def contents() -> st.SearchStrategy[bytes]:
    text = st.builds(
        lambda lines, end: b"\n".join(lines) + (b"\n" if end and lines else b""),
        st.lists(st.sampled_from(LINES), max_size=14),
        st.booleans(),
    )
    return st.one_of(text, text, text, st.binary(min_size=1, max_size=40).map(lambda data: b"\0" + data))


def entries() -> st.SearchStrategy[tuple[bytes, int]]:
    links = st.tuples(st.sampled_from([b"a.txt", b"dir", b"nowhere"]), st.just(0o120000))
    files = st.tuples(contents(), st.sampled_from([0o100644, 0o100644, 0o100755]))
    return st.one_of(files, files, files, files, links)


def trees() -> st.SearchStrategy[dict[bytes, tuple[bytes, int]]]:
    return st.dictionaries(st.sampled_from(NAMES), entries(), min_size=1, max_size=3).map(possible)


def possible(tree: dict[bytes, tuple[bytes, int]]) -> dict[bytes, tuple[bytes, int]]:
    """Without files that are where the tree has a folder."""
    return {name: entry for name, entry in tree.items() if not any(each.startswith(name + b"/") for each in tree)}


@st.composite
def changed(draw: st.DrawFn, tree: dict[bytes, tuple[bytes, int]]) -> dict[bytes, tuple[bytes, int]]:
    """A tree after some edits: lines put in, taken out and replaced, files moved, added, removed, modes changed."""
    result = dict(tree)
    for name in sorted(tree):
        data, mode = result[name]
        kind = draw(st.sampled_from(["keep", "edit", "edit", "edit", "mode", "move", "remove"]))
        if mode == 0o120000:
            kind = {"edit": "keep", "mode": "retarget"}.get(kind, kind)
        if kind == "retarget":
            data = b"elsewhere"
        if kind in {"edit", "move"} and b"\0" not in data and mode != 0o120000:
            lines = data.split(b"\n")
            for _ in range(draw(st.integers(0, 2))):
                at = draw(st.integers(0, len(lines)))
                gone = draw(st.integers(0, 2))
                lines[at : at + gone] = draw(st.lists(st.sampled_from(LINES), max_size=3))
            data = b"\n".join(lines)
        if (kind == "mode" or (kind == "move" and draw(st.booleans()))) and mode != 0o120000:
            mode ^= 0o111
        del result[name]
        if kind != "remove":
            target = draw(st.sampled_from(NAMES)) if kind == "move" else name
            result[name if target in result else target] = (data, mode)
    if draw(st.booleans()):
        result.setdefault(draw(st.sampled_from(NAMES)), draw(entries()))
    return possible(result)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[dict[bytes, tuple[bytes, int]]], list[str]]:
    before = draw(trees())
    after = draw(changed(before))
    if after == before:
        name, (data, mode) = min(before.items())
        after = before | {name: (draw(st.sampled_from([b"first\n", b"\0"])) + data, mode)}
    target = draw(st.one_of(st.just(before), changed(before), st.just(after)))
    options = [f"-U{draw(st.integers(0, 4))}" if draw(st.booleans()) else "-U3"]
    options += ["--binary", "--full-index"] if draw(st.booleans()) else []
    options += draw(st.sampled_from([[], ["-M"], ["-M", "-C", "--find-copies-harder"], ["-B"]]))
    return [before, after, target], options


class Bench:
    """A bare repository that both write to."""

    def __init__(self, path: Path) -> None:
        self.git = Git.new(path, bare=True)
        self.repository = pygit2.Repository(str(path))
        self.index = {"GIT_INDEX_FILE": str(path / "index.test")}

    def tree(self, files: dict[bytes, tuple[bytes, int]]) -> str:
        edits: dict[bytes, Entry | None] = {
            name: Entry(str(self.repository.create_blob(data)), mode) for name, (data, mode) in files.items()
        }
        return write_edits(self.repository, write_tree(self.repository, {}), edits)

    def gits(self, tree: str, patch: bytes, *options: str) -> str | None:
        """The tree that ``git apply`` makes; None where it refuses."""
        index = pygit2.Index(self.index["GIT_INDEX_FILE"])
        index.read_tree(self.repository[tree])
        index.write()
        done = self.git.run("apply", "--cached", *options, data=patch, env=self.index)
        index.read()
        return None if done.returncode else str(index.write_tree(self.repository))

    def ours(self, tree: str, patch: bytes) -> str | None:
        try:
            return apply_to_tree(self.repository, tree, parse_diff(patch, "p"), name="p").tree
        except (MisfitError, PatchError):
            return None


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    # On a memory file system where there is one: thousands of small files are written.
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        yield Bench(Path(folder) / "bench.git")


@settings(max_examples=520, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(case=cases())
def test_generated_patches_end_as_with_git_apply(bench: Bench, case: tuple[list[dict], list[str]]) -> None:
    before, after, target = (bench.tree(files) for files in case[0])
    patch = bench.git.run("diff-tree", "-p", *case[1], before, after).stdout
    assume(patch)
    assert bench.ours(target, patch) == bench.gits(target, patch)
