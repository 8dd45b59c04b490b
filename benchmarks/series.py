"""How long a series of 94 commits takes on the real llama.cpp v0.5.0 tree: here, with ``git am -3``, with cherry-pick.

A synthetic fork is made over the real tree: commits that edit one to three sources each, move, add and remove files;
and a target that upstream changed since. Run with ``python benchmarks/series.py``; v0.5.0 comes as the recipe
``dflash2-2026-09`` says, into ``$LLAMABUILD_HOME`` when that is set; prints one JSON line a target. Wanted: not longer
than ``git am`` in the same run, and every tree equal to git's.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pygit2

from llamabuild.core.console import Console
from llamabuild.core.context import Context, Home
from llamabuild.recipe.load import load_recipe
from llamabuild.source.fetch import fetch
from llamabuild.source.lock import LockedPatch
from llamabuild.source.mail import parse_patch
from llamabuild.source.patch import Patch, TextChange, TreeChange
from llamabuild.source.resolve import resolve
from llamabuild.source.stack import Step, apply_stack

COMMITS = 94
UPSTREAM_COMMITS = 30
RECIPE = "dflash2-2026-09"
WHO = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "2026-09-23T00:00:00Z",
    "GIT_COMMITTER_NAME": "C",
    "GIT_COMMITTER_EMAIL": "c@example.org",
    "GIT_COMMITTER_DATE": "2026-09-23T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


@dataclass(frozen=True)
class Fork:
    """A work tree with the branches ``base``, ``fork`` and ``target``, and the fork's commits as mail patches."""

    path: Path
    commits: tuple[str, ...]
    mails: tuple[Path, ...]

    def git(self, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        options = ["-c", "gc.auto=0", "-c", "advice.detachedHead=false"]
        return subprocess.run(
            ["git", *options, *map(str, words)],
            cwd=self.path,
            env={**os.environ, **WHO},
            capture_output=True,
            text=True,
            check=check,
        )

    def tree(self, revision: str) -> str:
        return self.git("rev-parse", f"{revision}^{{tree}}").stdout.strip()


@dataclass(frozen=True)
class Timed:
    """The trees after each patch that went in, and the seconds it took."""

    trees: tuple[str, ...]
    seconds: float


def real_tree(home: Path) -> tuple[Path, str]:
    """The bare mirror that has v0.5.0, and the id of its tree.

    Raises SourceError when no provider can be reached.
    """
    context = Context(home=Home(home), console=Console(verbosity=-1))
    recipe = load_recipe(RECIPE, context)
    lock = resolve(recipe, context)
    return fetch(lock, recipe.source.mirror, context).repository, lock.tree


def make_fork(mirror: Path, tree: str, folder: Path) -> Fork:
    """The synthetic fork; always the same, byte for byte."""
    fork = Fork(folder, (), ())
    folder.mkdir(parents=True)
    fork.git("init", "--quiet", "--initial-branch", "base")
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{mirror / 'objects'}\n")
    root = fork.git("commit-tree", tree, "-m", "v0.5.0").stdout.strip()
    fork.git("reset", "--quiet", "--hard", root)
    dice = random.Random(94)
    listed = fork.git("ls-files", "src", "ggml/src", "common", "tools").stdout.splitlines()
    files = [name for name in listed if name.endswith((".cpp", ".h", ".c", ".cu"))]
    fork.git("checkout", "--quiet", "-b", "target")
    for number in range(UPSTREAM_COMMITS):
        for name in dice.sample(files, 3):
            _edit(folder / name, dice, f"// upstream {number}")
        fork.git("commit", "--quiet", "--all", "--message", f"upstream {number}")
    fork.git("checkout", "--quiet", "-b", "fork", "base")
    for number in range(COMMITS):
        _fork_commit(fork, files, dice, number)
    commits = fork.git("rev-list", "--reverse", "base..fork").stdout.split()
    fork.git("format-patch", "--quiet", "--full-index", "--output-directory", ".git/mails", "base..fork")
    return Fork(folder, tuple(commits), tuple(sorted((folder / ".git" / "mails").iterdir())))


def _fork_commit(fork: Fork, files: list[str], dice: random.Random, number: int) -> None:
    for name in dice.sample(files, dice.randrange(1, 4)):
        for _ in range(dice.randrange(1, 4)):
            _edit(fork.path / name, dice, f"// fork {number}")
    if number % 10 == 3:
        moved = dice.choice(files)
        files[files.index(moved)] = f"{moved}.moved"
        fork.git("mv", moved, f"{moved}.moved")
    if number % 10 == 5:
        (fork.path / f"new-{number}.txt").write_text("new\n" * number)
    if number % 20 == 7:
        fork.git("rm", "--quiet", files.pop(dice.randrange(len(files))))
    fork.git("add", "--all")
    fork.git("commit", "--quiet", "--message", f"fork {number}")


def _edit(path: Path, dice: random.Random, text: str) -> None:
    lines = path.read_bytes().split(b"\n")
    at = dice.randrange(len(lines))
    lines[at : at + dice.randrange(2)] = [text.encode()] * dice.randrange(1, 4)
    path.write_bytes(b"\n".join(lines))


def ours_from_commits(fork: Fork, target: str) -> tuple[Timed, tuple[Step, ...]]:
    """The fork's commits, as a range of a fork is applied."""
    began = time.perf_counter()
    repository = pygit2.Repository(str(fork.path))
    patches = []
    for number, each in enumerate(fork.commits, start=1):
        commit = repository[each]
        change = TreeChange(str(commit.parents[0].tree_id), str(commit.tree_id))
        patches.append(_patch(number, each, commit.message, change))
    return _timed(repository, fork.tree(target), patches, began)


def ours_from_mails(fork: Fork, target: str) -> tuple[Timed, tuple[Step, ...]]:
    """The same as mail patches."""
    began = time.perf_counter()
    repository = pygit2.Repository(str(fork.path))
    patches = []
    for number, each in enumerate(fork.mails, start=1):
        data = each.read_bytes()
        file = parse_patch(data, each.name)
        patches.append(_patch(number, each.name, file.message, TextChange(file.files, data)))
    return _timed(repository, fork.tree(target), patches, began)


def _patch(number: int, name: str, message: str, change: TextChange | TreeChange) -> Patch:
    # Each its own part: what is measured is every patch by itself.
    locked = LockedPatch(id=name, series="fork", group="", subject=message, switches=(), digest="")
    return Patch(locked=locked, number=number, part=number, message=message, author=None, change=change)


def _timed(
    repository: pygit2.Repository, tree: str, patches: list[Patch], began: float
) -> tuple[Timed, tuple[Step, ...]]:
    steps = apply_stack(repository, tree, patches, features={}, stop=False)
    trees = tuple(each.attempt.tree for each in steps if each.attempt.state in {"applied", "merged"})
    return Timed(trees, time.perf_counter() - began), steps


def git_am(fork: Fork, target: str) -> Timed:
    """``git am -3``, past every conflict."""
    return _git(fork, target, "am", ["-3", "--quiet", *map(str, fork.mails)])


def git_cherry_pick(fork: Fork, target: str) -> Timed:
    """``git cherry-pick``, past every conflict."""
    return _git(fork, target, "cherry-pick", ["base..fork"])


def _git(fork: Fork, target: str, verb: str, words: list[str]) -> Timed:
    fork.git("checkout", "--quiet", "--force", "--detach", target)
    fork.git("clean", "--quiet", "-fd")
    began = time.perf_counter()
    done = fork.git(verb, *words, check=False)
    while done.returncode:
        done = fork.git(verb, "--skip", check=False)
    seconds = time.perf_counter() - began
    return Timed(tuple(fork.git("log", "--reverse", "--format=%T", f"{target}..HEAD").stdout.split()), seconds)


def measure(fork: Fork, target: str) -> dict[str, object]:
    """Both ways here against both ways of git; also whether the trees are the same."""
    (commits, steps), (mails, _) = ours_from_commits(fork, target), ours_from_mails(fork, target)
    am, pick = git_am(fork, target), git_cherry_pick(fork, target)
    states = [each.attempt.state for each in steps]
    return {
        "target": target,
        "commits": len(fork.commits),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "ours_commits_seconds": round(commits.seconds, 3),
        "ours_mails_seconds": round(mails.seconds, 3),
        "git_am_seconds": round(am.seconds, 3),
        "git_cherry_pick_seconds": round(pick.seconds, 3),
        "ratio_commits_to_am": round(commits.seconds / am.seconds, 3),
        "ratio_mails_to_am": round(mails.seconds / am.seconds, 3),
        "trees_equal_cherry_pick": commits.trees == pick.trees,
        "trees_equal_am": mails.trees == am.trees,
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        home = Path(os.environ.get("LLAMABUILD_HOME") or Path(name) / "home")
        fork = make_fork(*real_tree(home), Path(name) / "fork")
        figures = [measure(fork, target) for target in ("base", "target")]
    for each in figures:
        print(json.dumps(each))
    good = all(
        each["trees_equal_am"] and each["trees_equal_cherry_pick"] and each["ratio_mails_to_am"] <= 1
        for each in figures
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
