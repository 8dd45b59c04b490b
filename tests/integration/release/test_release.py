"""A whole release of a small bundle: every file held against the others, by our check and by other people's tools."""

import errno
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from dataclasses import replace

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from llamabuild.bundle.unpack import opened_tar
from llamabuild.core.errors import UsageError, VerificationError
from llamabuild.release import assemble
from llamabuild.release.assemble import write_release
from llamabuild.release.crosscheck import verify_provenance
from llamabuild.release.facts import read_facts
from llamabuild.release.part import find_statements, read_release, take_part, write_part
from llamabuild.release.schemas import schema_problems
from llamabuild.verify.provenance_kinds import KINDS

from .conftest import COMMIT, PATCH, TREE


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _json(path):
    return json.loads(path.read_text())


def _check(release, name="cpu", **options):
    return verify_provenance(release / f"provenance-{name}.intoto.json", release, **options)


def test_the_folder_holds_everything(release):
    flavours = {"cpu": "llama-small-cpu", "baseline-7fe450e-cpu": "llama-baseline-7fe450e-cpu"}
    expected = {"RELEASE_NOTES.md", "SHA256SUMS"}
    for name, archive in flavours.items():
        expected |= {f"{archive}.tar.gz", f"{archive}.tar.zst", f"BUILD_INFO-{name}.json", f"sbom-{name}.cdx.json"}
        expected |= {f"provenance-{name}.intoto.json", f"report-{name}.html"}
    assert {path.name for path in release.iterdir()} == expected
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=release, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": OK") == len(expected) - 1


def test_it_checks_out_without_a_finding(release):
    for name in ("cpu", "baseline-7fe450e-cpu"):
        assert _check(release, name).findings == ()


def test_the_statement_names_the_archives_and_what_they_were_made_from(release):
    statement = _json(release / "provenance-cpu.intoto.json")
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == {
        path.name: _digest(path) for path in release.glob("llama-small-cpu.*")
    }
    definition = statement["predicate"]["buildDefinition"]
    materials = {each["name"]: each for each in definition["resolvedDependencies"]}
    assert materials["source"]["digest"] == {"gitCommit": COMMIT, "gitTree": TREE}
    assert materials[f"patch {PATCH.series}/{PATCH.id}"]["digest"] == {"sha256": PATCH.digest}
    assert materials["wheel cmake"]["uri"].startswith("pkg:pypi/cmake@")
    assert definition["externalParameters"]["target"] == "cpu"
    assert statement["predicate"]["runDetails"]["metadata"]["startedOn"] == "2026-09-21T14:13:20Z"


def test_the_sbom_is_valid_cyclonedx(release):
    text = (release / "sbom-cpu.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    own, gomp = document["components"]
    assert own["purl"] == f"pkg:github/ggml-org/llama.cpp@{COMMIT}"
    assert [commit["uid"] for commit in own["pedigree"]["commits"]] == [COMMIT]
    patches = [each for each in own["components"] if each["bom-ref"].startswith("patch:")]
    assert [each["hashes"] for each in patches] == [[{"alg": "SHA-256", "content": PATCH.digest}]]
    assert gomp["name"].startswith("libgomp")
    if shutil.which("dpkg-query"):
        asked = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", gomp["name"]], capture_output=True, text=True, check=True
        )
        assert gomp["version"] == asked.stdout
        assert gomp["purl"].startswith("pkg:deb/")
    assert gomp["licenses"] == [{"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}]
    depends = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert depends["llama.cpp"] == [gomp["bom-ref"]]


def test_build_info_follows_the_schema_and_keeps_the_fields_names(release):
    info = _json(release / "BUILD_INFO-cpu.json")
    assert schema_problems(info, "build-info-1") == ()
    # What multigpu's releases publish, their own commit's keys aside.
    field = """project project_kind upstream_repo upstream_base_commit upstream_base_date upstream_base_resolved_via
    commits_ahead_of_upstream_base worktree_dirty build_date platform backend cuda_toolkit_version cuda_nvcc
    cuda_architectures cuda_sass cuda_ptx driver_floor compiler cmake ninja os kernel cmake_config validation
    benchmark_status target_model license patches"""
    assert set(field.split()) <= info.keys()
    assert {"tier_a_packaging", "tier_b_runtime", "tier_b_note"} <= info["validation"].keys()
    assert info["commits_ahead_of_upstream_base"] == 1
    assert info["version_floors"]["GLIBC"].startswith("2.")


def test_a_bundle_of_a_foreign_build_is_described_but_not_released(release):
    info = _json(release / "BUILD_INFO-cpu.json")
    for key in [key for key in info if key.startswith("upstream") or key in {"recipe", "commit", "tree", "features"}]:
        del info[key]
    assert "'recipe' is a required property" in str(schema_problems(info, "build-info-1"))
    info |= {"source": "unknown: the build folder was not made by this tool", "patches": []}
    assert schema_problems(info, "build-info-1") == ()
    with pytest.raises(UsageError, match="does not say what source it was built from"):
        read_facts(info, where="it")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"upstream_tree": "fd570ef"}, "upstream_tree"),
        ({"worktree_dirty": True}, "worktree_dirty"),
        ({"backends": ["cpu", "metal"]}, "backends.1"),
        ({"files": [{"path": "../x", "origin": "o", "link": "y"}]}, "files.0.path"),
        ({"files": [{"path": "x", "origin": "o"}]}, "files.0"),
        ({"patches": [{"id": "a"}]}, "patches.0"),
    ],
)
def test_the_schema_refuses(release, change, where):
    info = _json(release / "BUILD_INFO-cpu.json") | change
    assert where in {".".join(map(str, problem.where)) for problem in schema_problems(info, "build-info-1")}


def test_the_same_inputs_give_the_same_sbom_and_build_info(maker, release):
    again = maker.release("again")
    for name in ("sbom-cpu.cdx.json", "BUILD_INFO-cpu.json", "RELEASE_NOTES.md", "llama-small-cpu.tar.zst"):
        assert _digest(release / name) == _digest(again / name), name


def test_notes_say_what_is_known_and_cannot_be_broken_by_a_subject(release):
    notes = (release / "RELEASE_NOTES.md").read_text()
    assert re.search(
        r"\| 1 \| recurrent-state-fill \| graph: clear the state \\\| with a \\<fill\\> \| `--seq-compact` \|", notes
    )
    for path in release.glob("llama-*"):
        assert f"`{path.name}`" in notes
        assert _digest(path) in notes
    assert "Compiled is not run" in notes
    tables = [block for block in notes.split("\n\n") if block.startswith("|")]
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


# What breaks, and the finding it has to give.


def _flip(path, at=-20):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _edit(path, change):
    document = _json(path)
    change(document)
    path.write_text(json.dumps(document))


def _restate(release, name, flavour="cpu"):
    """Make the statement and the sums agree with a changed file again: a forger's next step."""
    digest = _digest(release / name)

    def change(statement):
        for each in statement["subject"] + statement["predicate"]["runDetails"]["byproducts"]:
            if each["name"] == name:
                each["digest"]["sha256"] = digest

    _edit(release / f"provenance-{flavour}.intoto.json", change)
    sums = (release / "SHA256SUMS").read_text()
    (release / "SHA256SUMS").write_text(re.sub(rf"[0-9a-f]{{64}}  {re.escape(name)}\n", f"{digest}  {name}\n", sums))


def _repack(release, change, name="llama-small-cpu.tar.gz"):
    """Change an archive's members and make statement, sums and SBOM agree with its new digest."""
    out = io.BytesIO()
    with opened_tar(release / name) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in old:
            data = old.extractfile(member).read() if member.isfile() else b""
            change(new, member, data)
    old_digest = _digest(release / name)
    (release / name).write_bytes(gzip.compress(out.getvalue()))
    sbom = release / "sbom-cpu.cdx.json"
    sbom.write_text(sbom.read_text().replace(old_digest, _digest(release / name)))
    _restate(release, sbom.name)
    _restate(release, name)


def _add(new, member, data):
    member.size = len(data)
    new.addfile(member, io.BytesIO(data) if member.isfile() else None)


def archive_byte(release):
    _flip(release / "llama-small-cpu.tar.zst")


def archive_cut(release):
    path = release / "llama-small-cpu.tar.gz"
    path.write_bytes(path.read_bytes()[:-5000])
    _restate(release, path.name)


def archive_gone(release):
    (release / "llama-small-cpu.tar.gz").unlink()


def info_byte(release):
    _flip(release / "BUILD_INFO-cpu.json")


def info_other_commit(release):
    _edit(release / "BUILD_INFO-cpu.json", lambda info: info.update(upstream_base_commit="0" * 40))
    _restate(release, "BUILD_INFO-cpu.json")


def info_old_schema(release):
    _edit(release / "BUILD_INFO-cpu.json", lambda info: info.update(schema=0))
    _restate(release, "BUILD_INFO-cpu.json")


def sbom_gone(release):
    (release / "sbom-cpu.cdx.json").unlink()


def sbom_without_a_patch(release):
    def change(sbom):
        own = sbom["components"][0]
        own["components"] = [each for each in own["components"] if not each["bom-ref"].startswith("patch:")]

    _edit(release / "sbom-cpu.cdx.json", change)
    _restate(release, "sbom-cpu.cdx.json")


def sbom_other_library(release):
    _edit(release / "sbom-cpu.cdx.json", lambda sbom: sbom["components"][1].update(version="1"))
    _restate(release, "sbom-cpu.cdx.json")


def sbom_other_file(release):
    def change(sbom):
        sbom["components"][1]["components"][0]["hashes"][0]["content"] = "0" * 64

    _edit(release / "sbom-cpu.cdx.json", change)
    _restate(release, "sbom-cpu.cdx.json")


def sbom_of_the_baseline(release):
    shutil.copy(release / "sbom-baseline-7fe450e-cpu.cdx.json", release / "sbom-cpu.cdx.json")
    _restate(release, "sbom-cpu.cdx.json")


def sums_other(release):
    sums = (release / "SHA256SUMS").read_text()
    (release / "SHA256SUMS").write_text(sums.replace(_digest(release / "llama-small-cpu.tar.zst"), "0" * 64))


def sums_short(release):
    lines = (release / "SHA256SUMS").read_text().splitlines(keepends=True)
    (release / "SHA256SUMS").write_text("".join(line for line in lines if "small-cpu.tar.zst" not in line))


def sums_gone(release):
    (release / "SHA256SUMS").unlink()


def statement_other_tree(release):
    def change(statement):
        statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitTree"] = "0" * 40

    _edit(release / "provenance-cpu.intoto.json", change)


def statement_more_patches(release):
    def change(statement):
        statement["predicate"]["buildDefinition"]["resolvedDependencies"].append({"name": "patch x/y", "digest": {}})

    _edit(release / "provenance-cpu.intoto.json", change)


def statement_other_target(release):
    def change(statement):
        statement["predicate"]["buildDefinition"]["externalParameters"]["target"] = "cuda"

    _edit(release / "provenance-cpu.intoto.json", change)


def statement_other_subject(release):
    def change(statement):
        statement["subject"] = [{"name": "other.tar.zst", "digest": {"sha256": "0" * 64}}]

    _edit(release / "provenance-cpu.intoto.json", change)


def member_changed(release):
    def change(new, member, data):
        _add(new, member, data + b"\0" if member.name.endswith("bin/llama-server") else data)

    _repack(release, change)


def member_added(release):
    def change(new, member, data):
        _add(new, member, data)
        if member.name.endswith("bin/llama-server"):
            member.name += "-2"
            _add(new, member, data)

    _repack(release, change)


def inner_info_changed(release):
    def change(new, member, data):
        _add(
            new,
            member,
            data.replace(b'"DFlash', b'"X').replace(b"11146", b"11147") if "INFO.json" in member.name else data,
        )

    _repack(release, change)


def link_changed(release):
    def change(new, member, data):
        if member.issym():
            member.linkname = "elsewhere"
        _add(new, member, data)

    _repack(release, change)


def info_no_json(release):
    (release / "BUILD_INFO-cpu.json").write_text("{")
    _restate(release, "BUILD_INFO-cpu.json")


def sbom_no_sbom(release):
    (release / "sbom-cpu.cdx.json").write_text('{"components": [7]}')
    _restate(release, "sbom-cpu.cdx.json")


def statement_without_byproducts(release):
    _edit(release / "provenance-cpu.intoto.json", lambda each: each["predicate"]["runDetails"].pop("byproducts"))


def inner_info_of_another_schema(release):
    def change(new, member, data):
        _add(new, member, b'{"schema": 9}' if "INFO.json" in member.name else data)

    _repack(release, change)


MUTATIONS = {
    info_no_json: "provenance.build-info-disagrees",
    sbom_no_sbom: "provenance.sbom-disagrees",
    statement_without_byproducts: "provenance.build-info-disagrees",
    inner_info_of_another_schema: "provenance.build-info-disagrees",
    archive_byte: "provenance.digest-mismatch",
    archive_cut: "provenance.archive-damaged",
    archive_gone: "provenance.not-here",
    info_byte: "provenance.digest-mismatch",
    info_other_commit: "provenance.build-info-disagrees",
    info_old_schema: "provenance.build-info-disagrees",
    sbom_gone: "provenance.not-here",
    sbom_without_a_patch: "provenance.sbom-disagrees",
    sbom_other_library: "provenance.sbom-disagrees",
    sbom_other_file: "provenance.sbom-disagrees",
    sbom_of_the_baseline: "provenance.sbom-disagrees",
    sums_other: "provenance.sums-disagree",
    sums_short: "provenance.sums-disagree",
    sums_gone: "provenance.not-here",
    statement_other_tree: "provenance.material-disagrees",
    statement_more_patches: "provenance.material-disagrees",
    statement_other_target: "provenance.material-disagrees",
    statement_other_subject: "provenance.no-subject",
    member_changed: "provenance.build-info-disagrees",
    member_added: "provenance.build-info-disagrees",
    inner_info_changed: "provenance.build-info-disagrees",
    link_changed: "provenance.build-info-disagrees",
}


def test_every_mutation_is_found(release, tmp_path):
    for mutate, expected in MUTATIONS.items():
        copy = tmp_path / mutate.__name__
        shutil.copytree(release, copy)
        mutate(copy)
        found = {finding.name for finding in _check(copy).findings}
        assert expected in found, (mutate.__name__, found)
        assert _check(copy).ok == (expected == "provenance.not-here"), mutate.__name__
        assert _check(copy, "baseline-7fe450e-cpu").ok, mutate.__name__
    assert {kind.name for kind in KINDS} == set(MUTATIONS.values())


def test_one_archive_alone(release):
    (release / "llama-small-cpu.tar.gz").unlink()
    assert _check(release, archive=release / "llama-small-cpu.tar.zst").findings == ()
    (found,) = _check(release, archive=release / "llama-baseline-7fe450e-cpu.tar.zst").findings
    assert found.name == "provenance.no-subject"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not of type 'object'"),
        ('{"payload": "", "payloadType": ""}', "signed envelope"),
        ('{"_type": "https://in-toto.io/Statement/v0.1"}', "no provenance statement"),
        ("[" * 100000, "is not JSON"),
    ],
)
def test_a_file_that_is_no_statement(tmp_path, text, said):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        verify_provenance(tmp_path / "s.json", tmp_path)


def test_a_statement_that_leaves_its_folder_is_refused(release):
    _edit(release / "provenance-cpu.intoto.json", lambda statement: statement["subject"][0].update(name="../x"))
    with pytest.raises(UsageError, match=r"subject\.0\.name"):
        _check(release)


# Putting a release together.


def test_split_archives_are_one_flavour(maker):
    archives = maker.split()
    assert [path.name for path in archives] == [
        "llama-small-cpu-bin.tar.zst",
        "llama-small-cpu-runtime.tar.zst",
        "llama-small-cpu-bin.tar.gz",
        "llama-small-cpu-runtime.tar.gz",
    ]
    release = maker.release("split", replace(maker.built(), archives=archives))
    assert _check(release).findings == ()
    info = _json(release / "BUILD_INFO-cpu.json")
    assert any("libgomp" in file["path"] for file in info["files"])
    with tarfile.open(release / "llama-small-cpu-bin.tar.gz") as tar:
        assert not any("libgomp" in name for name in tar.getnames())
    (release / "llama-small-cpu-runtime.tar.zst").unlink()
    (found,) = _check(release).findings
    assert (found.name, found.file) == ("provenance.not-here", "llama-small-cpu-runtime.tar.zst")


def test_parts_of_other_runs_are_taken_over(maker, release, context):
    out = maker.folder / "joined"

    def fill(folder):
        return [take_part(statement, folder) for statement in find_statements(release.parent / "release")]

    write_release(out, fill=fill)
    for path in release.iterdir():
        assert _digest(out / path.name) == _digest(path)


def test_a_part_that_was_changed_ends_the_release(maker, release, tmp_path):
    _flip(release / "llama-small-cpu.tar.zst")
    out = tmp_path / "joined"
    with pytest.raises(VerificationError, match=r"llama-small-cpu\.tar\.zst is not the file that was released"):
        write_release(out, fill=lambda folder: [take_part(each, folder) for each in find_statements(release)])
    assert not out.exists()
    assert list(tmp_path.glob(".joined*")) == []


def test_a_full_disk_leaves_nothing(maker, tmp_path, monkeypatch):
    built = maker.built()

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(assemble, "write_sums", full)
    out = tmp_path / "out"
    with pytest.raises(OSError, match="No space left"):
        write_release(out, fill=lambda folder: [write_part(built, folder, context=maker.context)])
    assert list(tmp_path.glob("*out*")) == []


def test_a_release_replaces_nothing(maker, release):
    with pytest.raises(UsageError, match="not empty"):
        write_release(release, fill=lambda _: [])


def test_changes_since_the_release_before(maker, release, context):
    out = maker.folder / "next"
    since = read_release(release)
    built = maker.built(number=11200)

    def fill(folder):
        return [write_part(built, folder, context=context, since=since, since_name="v1")]

    write_release(out, fill=fill, since="v1")
    notes = (out / "RELEASE_NOTES.md").read_text()
    assert "## Since v1" in notes
    assert "| build number | 11146 | 11200 |" in notes
    assert "11200" in (out / "report-cpu.html").read_text().partition("Since v1")[2]


def test_an_earlier_release_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="holds no BUILD_INFO"):
        read_release(tmp_path)
    (tmp_path / "BUILD_INFO-cpu.json").write_text('{"schema": 0}')
    with pytest.raises(UsageError, match="schema 0 is there, and this program reads schema 1"):
        read_release(tmp_path)
