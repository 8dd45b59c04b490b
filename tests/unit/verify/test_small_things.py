"""Archs, content patterns, severities, reports."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from llamabuild.verify.archs import Wanted, gfx_suits, parse_archs, runs_on, suits
from llamabuild.verify.findings import Finding, Report
from llamabuild.verify.output import render_annotations, render_junit, render_text
from llamabuild.verify.patterns import Patterns
from llamabuild.verify.policy import apply_policy
from llamabuild.verify.registry import all_kinds, docs_page, sections


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("86", Wanted(sass=("86",), ptx=("86",))),
        ("86-real", Wanted(sass=("86",))),
        ("80-virtual;86-real", Wanted(sass=("86",), ptx=("80",))),
        ("120a, 121a-real", Wanted(sass=("120a", "121a"), ptx=("120a",))),
        ("gfx1100;gfx90a:xnack-", Wanted(gfx=("gfx1100", "gfx90a:xnack-"))),
        ("all-major", Wanted(unknown=("all-major",))),
        ("", Wanted()),
    ],
)
def test_archs_are_parsed_as_cmake_takes_them(text, wanted):
    assert parse_archs(text) == wanted


@pytest.mark.parametrize(
    ("asked", "embedded", "holds"),
    [("86", "86", True), ("120", "120a", True), ("120a", "120", False), ("120a", "120a", True), ("86", "89", False)],
)
def test_a_suffix_that_was_asked_for_has_to_be_there(asked, embedded, holds):
    assert suits(asked, embedded) is holds


@pytest.mark.parametrize(
    ("embedded", "gpu", "runs"),
    [("80", "86", True), ("86", "80", False), ("80", "90", False), ("90a", "90", True), ("120a", "121", False)],
)
def test_machine_code_runs_within_its_major_version(embedded, gpu, runs):
    assert runs_on(embedded, gpu) is runs


@pytest.mark.parametrize(
    ("asked", "embedded", "holds"),
    [
        ("gfx90a", "gfx90a:xnack-", True),
        ("gfx90a:xnack+", "gfx90a:xnack-", False),
        ("gfx90a:xnack+", "gfx90a", True),
        ("gfx1100", "gfx1101", False),
        ("gfx1100", "gfx11-generic", True),
        ("gfx1030", "gfx11-generic", False),
        ("gfx942:xnack+", "gfx9-4-generic:xnack-", False),
        ("gfx90a", "gfx9-generic", False),
    ],
)
def test_gfx_features_may_be_open_but_not_opposite(asked, embedded, holds):
    assert gfx_suits(asked, embedded) is holds


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\0/home/me/llama.cpp/ggml/src/ggml.c\0", "/home/me/llama.cpp/ggml/src/ggml.c"),
        (b'include "/build/x y"\0/src/a.cu\0', "/src/a.cu"),
        (b"assert (/tmp/build/common/arg.cpp) failed", "/tmp/build/common/arg.cpp"),
        (b"\0ggml/src/ggml.c\0", None),
        (b"\0./ggml/src/ggml.c\0", None),
        (b"\0/usr/include/c++/12/vector.h\0", None),
        (b"see https://example.org/x.html /etc/foo.c", None),
        (b"\0//not/a/path.c\0", None),
    ],
)
def test_paths_of_the_build_machine_are_told_from_others(content, told):
    hits = [hit for hit in Patterns().search(content, base=0) if hit.pattern == "build-path"]
    assert [hit.text for hit in hits] == ([told] if told else [])


def test_own_folders_are_found_whatever_follows():
    hits = list(Patterns(folders=(b"/srv/cache",)).search(b"xx\0/srv/cache/ggml\0", base=100))
    assert [(hit.text, hit.offset) for hit in hits] == [("/srv/cache/ggml", 103)]


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"-----BEGIN PRIVATE KEY-----", False),  # the words are in every TLS library
        (b"-----BEGIN EC PRIVATE " + b"KEY-----\nMHcCAQEEI" + b"A" * 60, True),
        (b"token=hf_" + b"abcdefghijKLMNOPQRSTuvwxyzABCDefgh", True),
        (b"AKIA" + b"ABCDEFGHIJKLMNOP ", True),
        (b"ghp_short", False),
    ],
)
def test_secrets_are_keys_and_not_words_about_keys(content, secret):
    assert any(hit.pattern == "secret" for hit in Patterns().search(content, base=0)) is secret


REPORT = Report(
    "x",
    (
        Finding("link.dangling", "error", "lib/a:b,c", "It dangles.", "100%\nnow", "Copy it."),
        Finding("elf.no-relro", "warning", "lib/b", "No RELRO.", "", "Link."),
        Finding("program.not-run", "warning", "", "Not started \x01.", "", ""),
    ),
)


def test_strict_makes_warnings_fail_and_allow_needs_its_reason_told():
    quiet = Report("x", REPORT.findings[1:])
    assert quiet.ok
    assert not apply_policy(quiet, strict=True, allow={}).ok
    allowed = apply_policy(REPORT, strict=False, allow={"link.dangling": "a known stub", "elf.damaged": "old"})
    assert allowed.ok
    assert allowed.findings[0].severity == "note"
    assert "a known stub" in allowed.findings[0].message
    assert allowed.findings[-1].name == "verify.allow-unused"


def test_junit_has_a_case_for_every_kind_and_fails_those_with_errors():
    root = ET.fromstring(render_junit(REPORT))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert set(cases) == set(all_kinds())
    assert cases["link.dangling"].find("failure").get("message") == "It dangles."
    assert cases["program.not-run"].find("skipped") is not None
    assert cases["elf.no-relro"].find("failure") is None
    assert "No RELRO" in cases["elf.no-relro"].find("system-out").text
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == (str(len(cases)), "1", "1")


def test_annotations_escape_as_the_runner_reads_them():
    first = render_annotations(REPORT).splitlines()[0]
    assert first == "::error file=lib/a%3Ab%2Cc,title=link.dangling::It dangles. 100%25%0Anow. Copy it"


def test_text_groups_by_name_with_the_worst_first_and_json_is_complete():
    text = render_text(REPORT, everything=False)
    assert text.index("error: link.dangling") < text.index("warning: elf.no-relro")
    assert text.endswith("x: FAILED (1 error, 2 warnings, 0 notes)")
    document = json.loads(json.dumps(REPORT.to_json()))
    assert (document["schema"], document["ok"], len(document["findings"])) == (1, False, 3)
    assert set(document["findings"][0]) == {"name", "severity", "file", "message", "evidence", "hint"}


def test_the_page_explains_every_kind_once_and_names_are_of_one_form():
    page = docs_page()
    names = [kind.name for _, kinds in sections() for kind in kinds]
    assert len(names) == len(set(names)) == len(all_kinds())
    for name in names:
        assert page.count(f"### `{name}` (") == 1
        group, _, rest = name.partition(".")
        assert group.isalpha()
        assert rest.replace("-", "").isalpha()
    for kind in all_kinds().values():
        assert kind.meaning.endswith(".")
        assert kind.action.endswith(".")
