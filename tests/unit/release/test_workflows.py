"""The workflows in ci/: clean under actionlint and zizmor, pinned, and in step with our own command line."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from llamabuild.cli import build_parser
from llamabuild.recipe.load import load_recipe

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted(path for path in (ROOT / "ci").glob("*.yml") if path.name != "gitlab-ci.yml")
ALL = [*WORKFLOWS, ROOT / "ci/gitlab-ci.yml"]

# Read off the tags of each action's own repository.
PINS = {
    "actions/checkout": ("3d3c42e5aac5ba805825da76410c181273ba90b1", "v7.0.1"),
    "actions/setup-python": ("5fda3b95a4ea91299a34e894583c3862153e4b97", "v7.0.0"),
    "actions/cache/restore": ("27d5ce7f107fe9357f9df03efb73ab90386fccae", "v5.0.5"),
    "actions/cache/save": ("27d5ce7f107fe9357f9df03efb73ab90386fccae", "v5.0.5"),
    "actions/upload-artifact": ("bbbca2ddaa5d8feaa63e36b76fdaad77386f024f", "v7.0.0"),
    "actions/download-artifact": ("3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c", "v8.0.1"),
    "actions/attest": ("1e69f48acb82d1966a394da916b4c1698aa569d6", "v4.2.2"),
}


def _tool(name, *args):
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"{name} is not installed (pip install '.[test]')")
    return subprocess.run([path, *args], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_four_workflows_are_there():
    assert {path.stem for path in WORKFLOWS} == {"build", "release", "nightly", "smoke"}


def test_actionlint_is_clean():
    done = _tool("actionlint", "-config-file", "ci/actionlint.yaml", "-no-color", *WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_zizmor_is_clean_for_its_strictest_persona():
    done = _tool("zizmor", "--offline", "--no-progress", "--persona", "auditor", "--strict-collection", *WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_would_see_an_unpinned_action(tmp_path):
    text = (ROOT / "ci/build.yml").read_text()
    broken = tmp_path / "build.yml"
    broken.write_text(re.sub(r"actions/checkout@\S+ # \S+", "actions/checkout@v7", text))
    done = _tool("zizmor", "--offline", "--no-progress", broken)
    assert done.returncode != 0
    assert "unpinned-uses" in done.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(workflow):
    used = re.findall(r"uses: (\S+?)@(\S+) # (\S+)", workflow.read_text())
    assert len(used) == workflow.read_text().count("uses:")
    assert {(name, commit, tag) for name, commit, tag in used} <= {(name, *pin) for name, pin in PINS.items()}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_the_header_says_where_the_template_goes(workflow):
    head = workflow.read_text().splitlines()[:2]
    assert ".github/workflows/" in head[0]
    assert f"cp ci/{workflow.name} .github/workflows/" in head[1]


def _commands(path):
    """Every llamabuild command of a workflow as words, its variables replaced by what they stand for."""
    values = {"RECIPE": "r", "TARGET": "cpu", "statement": "s.json", "series": "s", "REF": "v1", "recipe": "r"}
    for line in re.findall(r"\.venv/bin/llamabuild ([^\n;)|]*)", path.read_text()):
        plain = re.sub(r"\$\{\w+:\+([^}]*)\}", r"\1", line).replace("${TAG#release/}", "r")
        plain = re.sub(r"\$(\w+)", lambda match: values.get(match.group(1), "x"), plain)
        words = shlex.split(plain.split(" && ")[0])
        yield [word for word in words if word not in {"<", ">"}]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_command_is_one_that_the_command_line_takes(path):
    commands = list(_commands(path))
    assert commands
    for words in commands:
        try:
            build_parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{path.name}: llamabuild {shlex.join(words)}")


def test_a_push_runs_the_readmes_commands():
    commands = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(), re.MULTILINE)[:2]
    assert len(commands) == 2
    text = (ROOT / "ci/build.yml").read_text()
    for command in commands:
        assert f"run: {command}\n" in text


def test_every_command_of_the_readme_is_one_that_the_command_line_takes():
    commands = re.findall(r"^llamabuild (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {words.split()[0] for words in commands} == {"doctor", "make", "bundle"}
    for words in commands:
        try:
            args = build_parser().parse_args(shlex.split(words))
        except SystemExit:
            pytest.fail(f"README.md: llamabuild {words}")
        if words.startswith("make "):
            recipe = (ROOT / "recipes" / f"{args.recipe}.toml").read_text()
            assert f"[targets.{args.target}]\n" in recipe


def test_builds_of_pull_requests_hold_no_secret_and_write_nothing():
    text = (ROOT / "ci/build.yml").read_text()
    assert "pull_request_target" not in text
    assert "secrets." not in text
    assert set(re.findall(r"^ {6}(\w[\w-]*: (?:read|write))", text, re.MULTILINE)) == {"contents: read"}


def test_only_publishing_may_write():
    jobs = re.split(r"\n  (?=\w+:\n    name:)", (ROOT / "ci/release.yml").read_text())
    writing = [job.split(":")[0] for job in jobs if ": write" in job]
    assert writing == ["publish"]
    assert "cache" not in "".join(line for line in jobs[2].splitlines() if "uses:" in line)


def test_the_nightly_recipe_is_one_that_resolve_can_pin(context, tmp_path):
    text = (ROOT / "ci/nightly.toml.in").read_text()
    assert text.count("@REF@") == 2
    (tmp_path / "nightly.toml").write_text(text.replace("@REF@", "v0.5.0"))
    recipe = load_recipe("nightly.toml", context)
    assert (recipe.source.ref, recipe.source.commit, tuple(recipe.targets)) == ("v0.5.0", None, ("cpu",))
