"""Series of every kind, from a real fork on a real server; what is compared with is what git makes of the same."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest
from makers import pin, use, write_recipe, write_series
from realgit import Git

from llamabuild.core.errors import PatchError, RecipeError, SourceError
from llamabuild.source.apply import patched_source
from llamabuild.source.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from gitserver import GitServer
    from pytest_httpserver import HTTPServer

    from llamabuild.core.context import Context
    from llamabuild.source.lock import PatchedSource

TEXT = "".join(f"line {number}\n" for number in range(60))


class Forked:
    """Upstream with two commits on master, and a fork with three on the first of them."""

    def __init__(self, server: GitServer) -> None:
        self.git = Git.new(server.root / "llama.cpp")
        self.base = self.git.commit({"a.cpp": TEXT, "b.cpp": TEXT, "old.h": TEXT}, "base")
        self.target = self.git.commit({"a.cpp": "top\n" + TEXT}, "upstream goes on")
        self.url = server.of(self.git.path)
        self.git("checkout", "--quiet", "-b", "multigpu", self.base)
        self.commits = [
            self.git.commit({"a.cpp": TEXT.replace("line 30\n", "line 30\nfirst\n")}, "first: a line"),
            self.git.commit({"new.cpp": "new\n", "bin.dat": b"\0\1\2"}, "second: new files"),
            self.git.commit({"b.cpp": TEXT.replace("line 9\n", "nine\n")}, "third: another line"),
        ]
        self.git("checkout", "--quiet", "master")

    def picked(self, *commits: str) -> str:
        """The tree that ``git cherry-pick`` comes to on the target."""
        self.git("checkout", "--quiet", "--detach", self.target)
        self.git("cherry-pick", *commits)
        tree = self.git.tree()
        self.git("checkout", "--quiet", "master")
        return tree

    def range(self, *, short: int = 40, more: str = "") -> str:
        notes = "".join(
            f'[[part.commit]]\nid = "{commit[:short]}"\nsubject = "{self.subject(commit)}"\ngroup = "g{number % 2}"\n'
            for number, commit in enumerate(self.commits)
        )
        return (
            f'groups = ["g0", "g1"]\n[[part]]\nkind = "range"\nrepository = "{self.url}"\nref = "multigpu"\n'
            f'base = "{self.base}"\ntip = "{self.commits[-1][:short]}"\n{more}\n{notes}'
        )

    def subject(self, commit: str) -> str:
        return self.git("log", "-1", "--format=%s", commit)

    def patched(self, context: Context, series: str, *, commit: str | None = None) -> PatchedSource:
        commit = commit or self.target
        recipe = write_recipe(context, "r", pin(self.url, commit, self.git.tree(commit)), series=series)
        return patched_source(recipe, resolve(recipe, context), context)


@pytest.fixture
def forked(server: GitServer) -> Forked:
    return Forked(server)


def states(patched: PatchedSource) -> list[str]:
    return [f"{each.state} {each.note}".strip() for each in patched.outcomes]


@pytest.mark.parametrize("short", [40, 9])
def test_a_range_of_a_fork_is_what_cherry_pick_makes_of_it(forked: Forked, context: Context, short: int) -> None:
    write_series(context, "multigpu", forked.range(short=short))
    patched = forked.patched(context, use("multigpu"))
    assert patched.tree == forked.picked(*forked.commits)
    assert states(patched) == ["merged three-way", "applied", "applied"]
    # The lock has the whole ids, whatever the manifest has.
    assert [each.id for each in patched.lock.patches] == forked.commits
    repository = Git(patched.repository)
    subjects = repository("log", "--format=%s", patched.commit).splitlines()
    assert subjects == ["third: another line", "second: new files", "first: a line", "master"]
    assert repository("log", "-1", "--format=%an %ae %ad %cn", patched.commit).startswith("Ada ada@example.org")


def test_on_its_own_base_a_range_gives_the_forks_own_tree(forked: Forked, context: Context) -> None:
    write_series(context, "multigpu", forked.range())
    patched = forked.patched(context, use("multigpu"), commit=forked.base)
    assert patched.tree == forked.git.tree("multigpu")
    assert states(patched) == ["applied"] * 3


def test_groups_and_single_patches_can_be_left_out(forked: Forked, context: Context) -> None:
    write_series(context, "multigpu", forked.range())
    first, second, third = forked.commits
    one = forked.patched(context, use("multigpu", 'groups = ["g0"]'))
    assert one.tree == forked.picked(first, third)
    for without in (second[:9], second, "2"):
        other = forked.patched(context, use("multigpu", f'without = ["{without}"]'))
        assert other.tree == one.tree


def test_what_compiles_only_together_is_not_torn_apart(forked: Forked, context: Context) -> None:
    together = f'together = [["{forked.commits[0]}", "{forked.commits[1]}"]]'
    write_series(context, "multigpu", forked.range(more=together))
    with pytest.raises(RecipeError, match="compiles only with it") as caught:
        forked.patched(context, use("multigpu", 'groups = ["g0"]'))
    assert caught.value.exit_code == 2
    both = forked.patched(context, use("multigpu", 'without = ["1", "2"]'))
    assert both.tree == forked.picked(forked.commits[2])


def test_commits_out_of_order_are_refused(forked: Forked, context: Context) -> None:
    forked.commits[:2] = reversed(forked.commits[:2])
    write_series(context, "multigpu", forked.range())
    with pytest.raises(SourceError, match="not where it is in the fork's history"):
        forked.patched(context, use("multigpu"))


def test_a_series_that_upstream_took_commit_by_commit_is_already_there(forked: Forked, context: Context) -> None:
    write_series(context, "multigpu", forked.range())
    forked.picked(*forked.commits)
    forked.git("reset", "--quiet", "--hard", "HEAD@{1}")
    patched = forked.patched(context, use("multigpu"), commit=forked.git("rev-parse", "master"))
    assert patched.tree == forked.git.tree("master")
    assert set(states(patched)) == {"already-upstream"}
    assert patched.commit == patched.base


def test_a_series_that_upstream_squashed_is_already_there(forked: Forked, context: Context) -> None:
    """The second commit rewrites what the first wrote, so the first conflicts with the squashed result."""
    forked.git("checkout", "--quiet", "multigpu")
    again = forked.git.commit({"a.cpp": TEXT.replace("line 30\n", "line 30\nsecond thoughts\n")}, "rewrites the first")
    forked.commits.append(again)
    write_series(context, "multigpu", forked.range())
    forked.git("checkout", "--quiet", "master")
    forked.git("merge", "--squash", "--quiet", "multigpu")
    squashed = forked.git.commit({}, "the fork, squashed")
    assert forked.git.run("cherry-pick", forked.commits[0]).returncode != 0
    forked.git("cherry-pick", "--abort")
    patched = forked.patched(context, use("multigpu"), commit=squashed)
    assert set(states(patched)) == {"already-upstream"}
    assert patched.tree == forked.git.tree(squashed)


def test_a_single_commit_and_an_empty_one(forked: Forked, context: Context) -> None:
    forked.git("checkout", "--quiet", "multigpu")
    empty = forked.git.commit({}, "nothing")
    parts = "".join(
        f'[[part]]\nkind = "commit"\nrepository = "{forked.url}"\nref = "multigpu"\nid = "{commit}"\nsubject = "x"\n'
        for commit in (forked.commits[2], empty)
    )
    write_series(context, "s", parts)
    patched = forked.patched(context, use("s"))
    assert patched.tree == forked.picked(forked.commits[2])
    assert states(patched) == ["applied", "empty"]


def pull(forked: Forked, head: str, more: str = "") -> str:
    return f'[[part]]\nkind = "pr"\nrepository = "{forked.url}"\npr = 9\ncommit = "{head}"\nsubject = "nine"\n{more}\n'


def test_a_pull_request_is_one_patch_from_where_it_left_upstream(forked: Forked, context: Context) -> None:
    forked.git("update-ref", "refs/pull/9/head", forked.commits[-1])
    write_series(context, "s", pull(forked, forked.commits[-1]))
    patched = forked.patched(context, use("s"))
    assert patched.tree == forked.picked(*forked.commits)
    assert states(patched) == ["merged three-way"]
    assert patched.lock.patches[0].base == forked.base


def test_a_pull_request_that_was_force_pushed_ends_with_both_heads(forked: Forked, context: Context) -> None:
    old = forked.commits[-1]
    forked.git("branch", "--quiet", "-D", "multigpu")
    forked.git("update-ref", "refs/pull/9/head", forked.commits[0])
    forked.git("reflog", "expire", "--expire=now", "--all")
    forked.git("gc", "--quiet", "--prune=now")
    write_series(context, "s", pull(forked, old))
    with pytest.raises(SourceError, match="force-pushed") as caught:
        forked.patched(context, use("s"))
    assert caught.value.exit_code == 3
    assert old in caught.value.message
    assert forked.commits[0] in caught.value.message


def mails(forked: Forked, tmp_path: Path, *options: str) -> dict[str, bytes]:
    forked.git("format-patch", "--quiet", "--output-directory", tmp_path / "mail", *options, f"{forked.base}..multigpu")
    return {each.name: each.read_bytes() for each in sorted((tmp_path / "mail").iterdir())}


def listed(files: dict[str, bytes]) -> str:
    return "files = [" + ", ".join(f'"{name}"' for name in files) + "]"


@pytest.mark.parametrize("options", [["--binary", "--full-index"], ["-U1", "--binary"], ["--minimal", "--no-stat"]])
def test_mail_patches_are_what_git_am_makes_of_them(
    forked: Forked, context: Context, tmp_path: Path, options: list[str]
) -> None:
    files = mails(forked, tmp_path, *options)
    write_series(context, "s", f'[[part]]\nkind = "files"\n{listed(files)}', files=files)
    patched = forked.patched(context, use("s"))
    forked.git("checkout", "--quiet", "--detach", forked.target)
    forked.git("am", "--quiet", *(tmp_path / "mail" / name for name in files))
    assert patched.tree == forked.git.tree()
    assert states(patched)[0] == "merged offset 1"
    ours = Git(patched.repository)("log", "--format=%an%n%ae%n%aI%n%B", patched.commit, "--not", patched.base)
    assert ours == forked.git("log", "--format=%an%n%ae%n%aI%n%B", f"{forked.target}..HEAD")


def packed(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"patches/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_an_archive_by_url_and_digest(forked: Forked, context: Context, tmp_path: Path, httpserver: HTTPServer) -> None:
    data = packed(mails(forked, tmp_path))
    httpserver.expect_request("/s.tar.gz").respond_with_data(data)
    part = f'[[part]]\nkind = "archive"\nurl = "{httpserver.url_for("/s.tar.gz")}"\nsha256 = "{{}}"'
    write_series(context, "s", part.format(hashlib.sha256(data).hexdigest()))
    assert forked.patched(context, use("s")).tree == forked.picked(*forked.commits)
    write_series(context, "s", part.format("0" * 64))
    with pytest.raises(SourceError, match="not the file that was pinned") as caught:
        forked.patched(context, use("s"))
    assert hashlib.sha256(data).hexdigest() in caught.value.message


def test_a_series_can_take_in_another(forked: Forked, context: Context) -> None:
    diff = b"--- a/b.cpp\n+++ b/b.cpp\n@@ -60,1 +60,1 @@\n-line 59\n+end\n"
    write_series(context, "own", '[[part]]\nkind = "files"\nfiles = ["a.diff"]', files={"a.diff": diff})
    write_series(context, "both", f'{forked.range()}\n[[part]]\nkind = "series"\nname = "own"')
    patched = forked.patched(context, use("both"))
    assert [each.series for each in patched.lock.patches] == ["both"] * 4
    assert Git(patched.repository)("show", f"{patched.commit}:b.cpp").endswith("end")
    write_series(context, "loop", '[[part]]\nkind = "series"\nname = "loop"')
    with pytest.raises(RecipeError, match="takes in itself"):
        forked.patched(context, use("loop"))


@pytest.mark.parametrize(
    "name", ["../out.txt", "/etc/x", ".git/hooks/pre-commit", "sub/.GIT/config", "a/../../x", "link/inside"]
)
def test_a_path_that_leaves_the_tree_is_refused(forked: Forked, context: Context, name: str) -> None:
    (forked.git.path / "link").symlink_to("/tmp")
    commit = forked.git.commit({}, "a link")
    quoted = name.encode()
    diff = b"diff --git a/%b b/%b\nnew file mode 100644\n--- /dev/null\n+++ b/%b\n@@ -0,0 +1 @@\n+x\n" % ((quoted,) * 3)
    write_series(context, "s", '[[part]]\nkind = "files"\nfiles = ["a.diff"]', files={"a.diff": diff})
    assert forked.git.run("apply", "--cached", "--check", data=diff).returncode != 0
    with pytest.raises(PatchError) as caught:
        forked.patched(context, use("s"), commit=commit)
    assert caught.value.exit_code == 4


def test_what_upstream_has_by_build_number_has_to_show(forked: Forked, context: Context) -> None:
    (context.cwd / "recipes").mkdir(exist_ok=True)
    features = context.cwd / "recipes" / "features.toml"
    text = 'schema = 1\n[feature.f]\nsummary = "f"\n[[feature.f.tree]]\npath = "a.cpp"\ntext = "{}"\n'
    part = '[[part]]\nkind = "commit"\nrepository = "http://127.0.0.1:9/"\nid = "4b2a0cdee"\nsubject = "x"\n'
    write_series(context, "s", part + 'upstream-since = 4\nfeature = "f"')
    features.write_text(text.format("line 3"))
    patched = forked.patched(context, use("s"))
    assert states(patched) == ["already-upstream since build 4"]
    features.write_text(text.format("not there"))
    with pytest.raises(PatchError, match="should be in upstream since build 4"):
        forked.patched(context, use("s"))


def test_a_feature_that_does_not_show_stops_before_the_build(forked: Forked, context: Context) -> None:
    write_series(context, "multigpu", forked.range().replace('groups = ["g0"', 'features = ["f"]\ngroups = ["g0"'))
    features = context.cwd / "recipes" / "features.toml"
    features.parent.mkdir(exist_ok=True)
    text = 'schema = 1\n[feature.f]\nsummary = "f"\n[[feature.f.tree]]\npath = "a.cpp"\n{}\n'
    features.write_text(text.format('text = "first"\nabsent = "second"'))
    assert states(forked.patched(context, use("multigpu")))[0] == "merged three-way"
    for probe, said in (
        ('text = "second"', "'second' is not in a.cpp"),
        ('absent = "first"', "'first' is still in a.cpp"),
    ):
        features.write_text(text.format(probe))
        with pytest.raises(SourceError, match="does not have: f") as caught:
            forked.patched(context, use("multigpu"))
        assert said in caught.value.details[0]
    # A part of the series promises nothing.
    forked.patched(context, use("multigpu", 'groups = ["g0"]'))
