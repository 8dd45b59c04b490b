"""``series check`` and ``series export``, from the command line to git's own judgement."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest
from makers import write_series
from realgit import Git

from llamabuild import cli

if TYPE_CHECKING:
    from pathlib import Path

    from gitserver import GitServer

TEXT = "".join(f"line {number}\n" for number in range(40))


@pytest.fixture
def upstream(server: GitServer) -> Git:
    repository = Git.new(server.root / "llama.cpp")
    repository.commit({"a.cpp": TEXT, "b.cpp": TEXT, "c.cpp": TEXT}, "base")
    repository("tag", "v1")
    return repository


@pytest.fixture
def run(context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command line in the test's folder: exit code, standard output, standard error."""
    monkeypatch.setenv("LLAMABUILD_HOME", str(context.home.root))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(context.cwd)

    def call(*words: str | Path) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def diffs(upstream: Git, changes: list[tuple[str, str, str]], *, stat: str = "diff") -> dict[str, bytes]:
    """One commit a change on a branch from v1, as mail patches."""
    upstream("checkout", "--quiet", "-b", "topic", "v1")
    for name, old, new in changes:
        text = (upstream.path / name).read_text()
        upstream.commit({name: text.replace(old, new)}, f"{name}: {old.strip()} is {new.strip()}")
    mails = upstream("format-patch", "--output-directory", upstream.path / ".git" / stat, "v1..topic").splitlines()
    upstream("checkout", "--quiet", "master")
    return {each.rsplit("/", 1)[1]: (upstream.path / ".git" / stat / each).read_bytes() for each in mails}


def series_of(context, upstream_url: str, files: dict[str, bytes]) -> None:
    listed = ", ".join(f'"{name}"' for name in files)
    write_series(
        context, "s", f'upstream = "{upstream_url}"\n[[part]]\nkind = "files"\nfiles = [{listed}]', files=files
    )


def test_a_check_goes_on_past_a_conflict_and_says_what_hangs_on_it(context, server, upstream, run, tmp_path) -> None:
    changes = [("a.cpp", "line 5\n", "FIVE\n"), ("b.cpp", "line 9\n", "NINE\n"), ("a.cpp", "FIVE\n", "FIVE!\n")]
    series_of(context, server.of(upstream.path), diffs(upstream, [*changes, ("c.cpp", "line 20\n", "TWENTY\n")]))
    upstream.commit(
        {"a.cpp": TEXT.replace("line 5\n", "fifth\n"), "c.cpp": "// new\n" + TEXT}, "upstream has it otherwise"
    )
    code, out, _ = run("series", "check", "s", "--onto", "master", "--json", "--keep-conflict", tmp_path / "kept")
    assert code == 4
    document = json.loads(out)
    assert document["schema"] == 1
    assert document["ok"] is False
    assert document["onto"]["commit"] == upstream("rev-parse", "master")
    assert [each["state"] for each in document["patches"]] == ["conflict", "applied", "conflict", "merged"]
    first, _, third, fourth = document["patches"]
    conflict = first["conflicts"][0]
    assert (conflict["file"], conflict["hunk"], conflict["line"]) == ("a.cpp", 1, 3)
    assert "fifth" in conflict["ours"]
    assert "-line 5" in conflict["theirs"]
    assert "+FIVE" in conflict["theirs"]
    assert third["needs"] == [1]
    assert fourth["note"] == "offset 1"
    kept = (tmp_path / "kept" / "a.cpp").read_text()
    assert "<<<<<<<" in kept
    assert "fifth\n" in kept
    assert "FIVE\n" in kept
    code, out, _ = run("series", "check", "s", "--onto", "master")
    assert code == 4
    assert "a.cpp, hunk 1, line 3" in out
    assert "may be because of patch 1" in out
    assert out.rstrip().endswith("2 conflict, 1 applied, 1 merged")


def test_upstream_commits_that_touched_the_lines_are_named_where_history_is(context, server, upstream, run) -> None:
    series_of(context, server.of(upstream.path), diffs(upstream, [("a.cpp", "line 5\n", "FIVE\n")]))
    guilty = upstream.commit({"a.cpp": TEXT.replace("line 5\n", "fifth\n")}, "rewrite the fifth")
    upstream.commit({"b.cpp": "other\n"}, "something else")
    # A first look fetches the present commit alone; then the history comes by way of a pin further back.
    _, out, _ = run("series", "check", "s", "--onto", "master", "--json")
    assert json.loads(out)["patches"][0]["conflicts"][0]["upstream"] == []
    code, out, _ = run("series", "check", "s", "--onto", "master", "--history", "--json")
    assert code == 4
    named = json.loads(out)["patches"][0]["conflicts"][0]["upstream"]
    assert named == [f"{guilty[:9]} rewrite the fifth"]


def test_a_folder_can_be_the_target(context, server, upstream, run, tmp_path) -> None:
    series_of(context, server.of(upstream.path), diffs(upstream, [("a.cpp", "line 5\n", "FIVE\n")]))
    target = tmp_path / "tree"
    target.mkdir()
    (target / "a.cpp").write_text("// two\n// more\n" + TEXT)
    code, out, _ = run("series", "check", "s", "--onto-tree", target, "--json")
    assert code == 0
    assert [(each["state"], each["note"]) for each in json.loads(out)["patches"]] == [("merged", "offset 2")]
    # What is tried leaves nothing behind.
    assert (target / "a.cpp").read_text().startswith("// two\n")
    assert [each.name for each in context.home.root.iterdir() if each.name.startswith(".scratch")] == []
    (target / "a.cpp").write_text(TEXT.replace("line 5\n", "FIVE\n"))
    code, out, _ = run("series", "check", "s", "--onto-tree", target, "--json")
    assert code == 0
    assert json.loads(out)["patches"][0]["state"] == "already-upstream"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("series", "check", "s"), 2, "--onto"),
        (("series", "check", "z", "--onto", "v1"), 2, "There is no series named 'z'"),
        (("series", "check", "s", "--onto", "v9"), 3, "has no v9"),
        (("series", "check", "s", "--onto-tree", "nowhere"), 3, "There is no folder"),
        (("series", "show"), 2, "needs a series"),
        (("series", "export", "s"), 2, "--out"),
    ],
)
def test_bad_input_is_one_sentence_and_its_code(context, server, upstream, run, words, code, text) -> None:
    series_of(context, server.of(upstream.path), diffs(upstream, [("a.cpp", "line 5\n", "FIVE\n")]))
    found, out, err = run(*words)
    assert found == code
    assert out == ""
    assert text in err
    assert "Traceback" not in err


SUBJECTS = [
    "plain",
    "[multigpu] in brackets: a subject",
    "umlauts: Größe → größer",
    'quotes " and \\ and `ticks` | pipes',
    "a very long subject " * 8 + "end",
    "re: not an answer",
]


def test_an_export_is_reproducible_and_git_am_takes_it(context, server, upstream, run, tmp_path) -> None:
    base = upstream("rev-parse", "v1")
    upstream("checkout", "--quiet", "-b", "fork")
    upstream("config", "user.useConfigOnly", "false")
    for number, subject in enumerate(SUBJECTS):
        who = {"GIT_AUTHOR_NAME": "Ünal, J. (x)", "GIT_AUTHOR_DATE": f"2026-09-0{number + 1}T12:00:00+0530"}
        upstream.write(
            {f"new{number}.dat": b"\0" + bytes(range(200)), "a.cpp": TEXT.replace(f"line {number}\n", "x\r\n")}
        )
        if number == 3:
            upstream("mv", "c.cpp", "d.cpp")
            (upstream.path / "d.cpp").chmod(0o755)
        if number == 4:
            upstream.write({"b.cpp": TEXT.rstrip("\n")})
        upstream("add", "--all")
        upstream("commit", "--quiet", "-m", subject.strip(), "-m", f"Body of {number}.\n\n- a list\n  more", env=who)
    commits = upstream("rev-list", "--reverse", "v1..fork").splitlines()
    notes = "".join(
        f'[[part.commit]]\nid = "{each}"\nsubject = {json.dumps(subject.strip(), ensure_ascii=False)}\ngroup = "g"\n'
        f'switches = ["--flag-{number}"]\n'
        for number, (each, subject) in enumerate(zip(commits, SUBJECTS, strict=True))
    )
    url = server.of(upstream.path)
    write_series(
        context,
        "s",
        f'upstream = "{url}"\ngroups = ["g"]\n[[part]]\nkind = "range"\nrepository = "{url}"\nref = "fork"\n'
        f'base = "{base}"\ntip = "{commits[-1]}"\n{notes}',
    )
    code, _, err = run("series", "export", "s", "--out", tmp_path / "s.tar.gz")
    assert code == 0, err
    first = (tmp_path / "s.tar.gz").read_bytes()
    run("series", "export", "s", "--out", tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == first
    with tarfile.open(tmp_path / "s.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "out", filter="data")
    assert "s/INDEX.md" in names
    index = (tmp_path / "out" / "s" / "INDEX.md").read_text()
    assert all(f"`--flag-{number}`" in index for number in range(len(SUBJECTS)))
    other = Git.new(tmp_path / "other")
    other("fetch", "--quiet", upstream.path, "fork")
    other("checkout", "--quiet", "--detach", base)
    other("am", "--quiet", "--keep-cr", *sorted((tmp_path / "out" / "s").glob("*.patch")))
    assert other("log", "--format=%T %an %ae %aI", f"{base}..HEAD") == upstream(
        "log", "--format=%T %an %ae %aI", "v1..fork"
    )
    # git itself strips what stands in brackets before a subject, and "re:": its own mails are the measure.
    own = Git.new(tmp_path / "own")
    own("fetch", "--quiet", upstream.path, "fork")
    own("checkout", "--quiet", "--detach", base)
    mails = upstream("format-patch", "--binary", "--output-directory", tmp_path / "mails", "v1..fork").splitlines()
    own("am", "--quiet", "--keep-cr", *mails)
    assert other("log", "--format=%B", f"{base}..HEAD") == own("log", "--format=%B", f"{base}..HEAD")
