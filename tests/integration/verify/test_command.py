"""``verify`` and ``docs`` as a user runs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def llamabuild(*words, env=None, cwd=None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "GITHUB_ACTIONS"}}
    environment |= {"PYTHONPATH": str(REPOSITORY), **(env or {})}
    command = [sys.executable, "-m", "llamabuild", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)


def test_a_good_bundle_exits_0_and_prints_one_document(cpu_bundle):
    done = llamabuild("verify", cpu_bundle.root, "--json", "--no-run", "--allow", "program.not-run=tested elsewhere")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"], document["ok"]) == (0, 1, True)
    told = {each["name"]: each["severity"] for each in document["findings"]}
    # What a program's help would show was not looked at either, and that is told on its own.
    assert told == {"program.not-run": "note", "feature.not-checked": "warning"}


def test_strict_fails_on_a_warning(cpu_bundle):
    assert llamabuild("verify", cpu_bundle.root, "--no-run").returncode == 0
    assert llamabuild("verify", cpu_bundle.root, "--no-run", "--strict").returncode == 1


def test_errors_exit_1_in_words_xml_and_annotations(cpu_bundle, copy_of, tmp_path):
    made = copy_of(cpu_bundle)
    (made.root / "lib/libggml.so.0").unlink()
    xml = tmp_path / "report.xml"
    done = llamabuild("verify", made.root, "--no-run", "--junit", xml, "--annotations")
    assert done.returncode == 1
    assert "error: closure.not-bundled" in done.stdout
    assert "hint: " in done.stdout
    assert "::error file=" in done.stderr
    assert "title=closure.not-bundled::" in done.stderr
    failed = {case.get("name") for case in ET.parse(xml).iter("testcase") if case.find("failure") is not None}
    assert {"closure.not-bundled", "metadata.link", "link.dangling"} <= failed
    assert "Traceback" not in done.stderr


def test_actions_get_annotations_unasked_and_stdout_stays_one_document(cpu_bundle):
    done = llamabuild("verify", cpu_bundle.root, "--no-run", "--json", env={"GITHUB_ACTIONS": "true"})
    json.loads(done.stdout)
    assert "::warning title=program.not-run::" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-folder"], "There is no"),
        (["--allow", "link.dangling"], "gives no reason"),
        (["--allow", "link.danglin=x"], "Did you mean link.dangling?"),
        (["--target", "cpu"], "without --recipe"),
        (["--recipe", "no-such-recipe"], "no recipe"),
    ],
)
def test_usage_is_told_in_a_sentence_with_a_hint_and_exits_2(words, says, cpu_bundle):
    path = [] if words[0] == "no-such-folder" else [cpu_bundle.root]
    done = llamabuild("verify", *path, *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_text_file_is_no_bundle(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    done = llamabuild("verify", path)
    assert (done.returncode, "neither a folder nor" in done.stderr) == (2, True)


def test_docs_explains_one_finding_or_all_and_names_the_nearest():
    one = llamabuild("docs", "link.dangling")
    assert (one.returncode, one.stdout.startswith("link.dangling (error)")) == (0, True)
    listed = json.loads(llamabuild("docs", "--json").stdout)["findings"]
    assert len(listed) > 60
    wrong = llamabuild("docs", "glibc.above-flor")
    assert (wrong.returncode, "Did you mean glibc.above-floor?" in wrong.stderr) == (2, True)


def test_the_page_in_the_repository_is_the_one_that_the_code_makes():
    assert (REPOSITORY / "docs/findings.md").read_text() == llamabuild("docs").stdout


def test_inspect_tells_a_bundle_and_a_library(cpu_bundle):
    bundle = json.loads(llamabuild("inspect", cpu_bundle.root, "--json").stdout)
    assert (bundle["kind"], bundle["backends"]["cpu"]["state"]) == ("bundle", "on")
    assert bundle["commit"].startswith("7fe450e19")
    assert bundle["disagreements"] == []
    one = json.loads(llamabuild("inspect", cpu_bundle.root / "bin/libggml-cpu.so", "--json").stdout)
    assert (one["kind"], one["rpath"]) == ("elf", "$ORIGIN/../lib")


def test_inspect_tells_where_metadata_and_binaries_disagree(cpu_bundle, copy_of):
    made = copy_of(cpu_bundle)
    (made.root / "bin/libggml-cpu.so").unlink()
    bundle = json.loads(llamabuild("inspect", made.root, "--json").stdout)
    assert any("backend cpu" in each for each in bundle["disagreements"])


def test_inspect_of_nothing_it_knows_is_a_usage_error(tmp_path):
    (tmp_path / "x").write_text("x")
    for path in (tmp_path / "x", tmp_path / "y"):
        done = llamabuild("inspect", path)
        assert (done.returncode, "Traceback" in done.stderr, "hint: " in done.stderr) == (2, False, True)
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"\x7fELF" + bytes(30))
    assert llamabuild("inspect", damaged).returncode == 2


def test_names_and_values_that_are_no_text_are_printed_with_escapes(cpu_bundle, copy_of, tmp_path):
    made = copy_of(cpu_bundle)
    plugin = made.root / "bin/libggml-cpu.so"
    plugin.rename(os.fsdecode(os.fsencode(plugin.with_name("libggml-cpu-")) + b"caf\xe9.so"))
    (tmp_path / "CMakeCache.txt").write_bytes(b"GGML_CPU:BOOL=ON\nGGML_FANCY:UNINITIALIZED=caf\xe9\n")
    for path in (made.root, tmp_path / "CMakeCache.txt"):
        for option in ([], ["--json"]):
            done = llamabuild("inspect", path, *option)
            assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    document = json.loads(llamabuild("verify", made.root, "--no-run", "--json").stdout)
    assert any(finding["name"] == "file.name" for finding in document["findings"])


def test_programs_are_started_elsewhere_with_nothing_in_their_environment(cpu_bundle, copy_of, monkeypatch):
    """A program that writes where it stands, or wants HOME, fails here and not at a user's."""
    made = copy_of(cpu_bundle)
    code = b"""
    #include <stdio.h>
    #include <stdlib.h>
    extern char ** environ;
    int main(int argc, char ** argv) {
        if (environ[0]) { printf("environment: %s", environ[0]); return 3; }
        char path[4096]; snprintf(path, sizeof path, "%s.log", argv[0]);
        if (fopen(path, "w")) { puts("wrote beside itself"); return 4; }
        return 0;
    }"""
    subprocess.run(["gcc", "-x", "c", "-", "-s", "-o", made.root / "bin/llama-cli"], input=code, check=True)
    from llamabuild.verify.check import verify_path

    # Below /tmp, where another user can reach it: pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        monkeypatch.setattr("tempfile.tempdir", scratch)
        report = verify_path(made.root, context=made.context)
        assert [finding.evidence for finding in report.findings if finding.name == "program.fails"] == []
        assert list(Path(scratch).iterdir()) == []
    assert not list(made.root.glob("bin/*.log"))


def test_a_program_of_others_need_not_know_our_options_but_has_to_be_loaded(tmp_path):
    from llamabuild.core.console import Console
    from llamabuild.core.context import Context, Home
    from llamabuild.verify.check import verify_path

    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/tool"
    subprocess.run(["gcc", "-x", "c", "-", "-o", tool], input=b"int main(void) { return 2; }", check=True)
    context = Context(home=Home(tmp_path / "home"), console=Console(verbosity=-1), cwd=tmp_path)

    def severities() -> set[str]:
        report = verify_path(tmp_path / "bin", context=context)
        return {finding.severity for finding in report.findings if finding.name == "program.fails"}

    assert severities() == {"note"}
    library = tmp_path / "libgone.so"
    subprocess.run(["gcc", "-x", "c", "-", "-shared", "-o", library], input=b"int f(void) { return 0; }", check=True)
    code = b"int f(void); int main(void) { return f(); }"
    subprocess.run(["gcc", "-x", "c", "-", "-o", tool, "-x", "none", library], input=code, check=True)
    library.unlink()
    assert severities() == {"error"}


def test_a_program_for_another_machine_is_told_as_not_started(cpu_bundle, copy_of):
    made = copy_of(cpu_bundle)
    for path in [*made.root.glob("bin/*"), *made.root.glob("lib/*.so*")]:
        if path.is_file() and not path.is_symlink():
            data = bytearray(path.read_bytes())
            data[18:20] = (183).to_bytes(2, "little")
            path.write_bytes(data)
    from llamabuild.verify.check import verify_path

    report = verify_path(made.root, context=made.context)
    names = {finding.name for finding in report.findings}
    assert "program.not-run" in names
    assert "program.fails" not in names


def test_a_bundle_that_needs_a_newer_glibc_than_here_is_not_started(cpu_bundle, copy_of):
    made = copy_of(cpu_bundle)
    path = made.root / "lib/libggml.so.0.25.1"
    path.write_bytes(path.read_bytes().replace(b"GLIBC_2.34\0", b"GLIBC_2.99\0"))
    from llamabuild.verify.check import verify_path

    report = verify_path(made.root, context=made.context)
    told = [finding.message for finding in report.findings if finding.name == "program.not-run"]
    assert told
    assert "needs 2.99" in told[0]


def test_interrupted_verification_leaves_nothing_behind(cpu_bundle, tmp_path):
    import signal
    import time

    archive = shutil.make_archive(str(tmp_path / "bundle"), "gztar", cpu_bundle.root.parent, cpu_bundle.root.name)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(scratch)}
    child = subprocess.Popen([sys.executable, "-m", "llamabuild", "verify", archive], env=environment)
    deadline = time.monotonic() + 20
    # In the midst of its work, not while Python itself looks for a temporary folder.
    while not list(scratch.glob("verify-*/unpacked/*")) and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) in {0, 130}
    assert list(scratch.iterdir()) == []
