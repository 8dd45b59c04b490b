"""The scripts inside the workflows, run by the shell that GitHub runs them with."""

import json
import re
import subprocess
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]


def _script(workflow, step):
    text = (ROOT / "ci" / workflow).read_text()
    found = re.search(rf"- name: {re.escape(step)}\n(?: {{8}}.*\n)*? {{8}}run: \|\n((?: {{10}}.*\n|\n)+)", text)
    assert found, f"{workflow} has no step {step!r} with a script"
    return textwrap.dedent(found[1])


def _run(workflow, step, folder, **env):
    outputs = {"GITHUB_OUTPUT": folder / "output", "GITHUB_STEP_SUMMARY": folder / "summary.md"}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", _script(workflow, step)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **{name: str(value) for name, value in {**outputs, **env}.items()}},
        capture_output=True,
        text=True,
        check=False,
    )


def _stub(folder, body):
    program = folder / ".venv/bin/llamabuild"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/bash\n{body}\n")
    program.chmod(0o755)


def test_the_newest_tag_of_upstream(tmp_path):
    git = ["git", "-c", "user.name=u", "-c", "user.email=u@example.org", "-C", tmp_path]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    for tag in ("v0.9.0", "v0.10.0", "v0.4.0", "b11146", "gguf-v0.20.0"):
        subprocess.run([*git, "tag", "-a", tag, "-m", tag], check=True)
    done = _run("nightly.yml", "Find upstream's newest tag", tmp_path, UPSTREAM=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_text() == "ref=v0.10.0\n"


def test_no_tag_is_an_error(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert _run("nightly.yml", "Find upstream's newest tag", tmp_path, UPSTREAM=tmp_path).returncode != 0


def test_a_series_that_breaks_is_told_ready_for_an_issue(tmp_path):
    _stub(tmp_path, '[ "$3" = good ] && echo "fits $3" || { echo "conflict in llama-graph.cpp" >&2; exit 4; }')
    done = _run("nightly.yml", "Check the series", tmp_path, REF="v1", SERIES="good bad")
    assert done.returncode == 1
    issue = (tmp_path / "summary/issue.md").read_text()
    assert issue == "### Series `bad` onto upstream `v1`\n\n```\nconflict in llama-graph.cpp\n```\n\n"
    assert "fits good" in (tmp_path / "summary.md").read_text()
    assert [path.name for path in (tmp_path / "summary").iterdir()] == ["issue.md"]


def test_series_that_fit_leave_no_issue(tmp_path):
    _stub(tmp_path, "exit 0")
    assert _run("nightly.yml", "Check the series", tmp_path, REF="v1", SERIES="good").returncode == 0
    assert list((tmp_path / "summary").iterdir()) == []


def test_a_tag_names_the_recipe(tmp_path):
    _stub(tmp_path, 'printf \'{"asked":"%s"}\\n\' "$*"')
    done = _run("release.yml", "Plan the jobs", tmp_path, ASKED="", GITHUB_REF_NAME="release/r-1")
    assert done.returncode == 0, done.stderr
    recipe, matrix = (tmp_path / "output").read_text().splitlines()
    assert recipe == "recipe=r-1"
    assert json.loads(matrix.removeprefix("matrix="))["asked"] == (
        "matrix --recipe r-1 --flavour ci/flavours.toml --format github"
    )


def test_a_recipe_that_is_not_known_ends_the_run(tmp_path):
    _stub(tmp_path, "exit 2")
    done = _run("release.yml", "Plan the jobs", tmp_path, ASKED="unknown", GITHUB_REF_NAME="main")
    assert done.returncode == 2
    assert not (tmp_path / "output").exists()


def test_a_part_is_asked_for_with_and_without_arch_and_toolkit(tmp_path):
    _stub(tmp_path, 'printf "%s|" "$@"')
    step = "Make this flavour's part, with the unpatched baseline (they share one compile cache)"
    plain = _run("release.yml", step, tmp_path, RECIPE="r", TARGET="cpu", ARCH="", TOOLKIT="")
    assert plain.stdout == "release|--recipe|r|--flavour|cpu|--with-baseline|--smoke|--out|part|"
    full = _run("release.yml", step, tmp_path, RECIPE="r", TARGET="cuda", ARCH="86", TOOLKIT="wheels:13.0")
    assert "|--flavour|cuda:86|--cuda-toolkit|wheels:13.0|--with-baseline|" in full.stdout


def test_packages_are_words_and_never_options_or_commands(tmp_path):
    calls = tmp_path / "bin"
    calls.mkdir()
    (calls / "sudo").write_text('#!/bin/bash\nprintf "%s|" "$@"; echo\n')
    (calls / "sudo").chmod(0o755)
    done = _run(
        "release.yml",
        "Install the target's packages",
        tmp_path,
        PACKAGES="glslc $(id) a;b",
        PATH=f"{calls}:/usr/bin:/bin",
    )
    assert done.stdout.splitlines()[1].endswith("--no-install-recommends|glslc|$(id)|a;b|")
