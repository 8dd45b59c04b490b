"""Hold a provenance statement against its files: archive, sums, SBOM and BUILD_INFO must tell one story."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.bundle.unpack import opened_tar
from llamabuild.core.errors import BundleError
from llamabuild.core.files import sha256_file
from llamabuild.release.schemas import schema_problems
from llamabuild.release.statement import digests_of, read_statement
from llamabuild.verify.findings import Report
from llamabuild.verify.provenance_kinds import CHANGED, DAMAGED, INFO, MATERIAL, NO_SUBJECT, NOT_HERE, SBOM, SUMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from llamabuild.verify.findings import Finding
    from llamabuild.verify.kinds import Kind


@dataclass(frozen=True)
class _Contents:
    """An archive as it was read once: digests of its files, its links, and its BUILD_INFO."""

    files: Mapping[str, str]
    links: Mapping[str, str]
    info: Mapping[str, Any] | None


def verify_provenance(statement: Path, folder: Path, *, archive: Path | None = None) -> Report:
    """Check everything that a statement says about the files in ``folder``, and those files against each other.

    ``archive``: the one archive that matters; others of the statement may then be absent without a word.
    Raises UsageError for a file that is no statement of the kind and version that this program writes.
    """
    document = read_statement(statement)
    return Report(subject=str(archive or folder), findings=tuple(_check(document, folder, archive)))


def _check(document: Mapping[str, Any], folder: Path, archive: Path | None) -> Iterator[Finding]:
    subjects = digests_of(document["subject"])
    byproducts = digests_of(document["predicate"]["runDetails"].get("byproducts", ()))
    wanted = {archive.name: subjects.get(archive.name)} if archive else subjects
    here = [name for name, digest in wanted.items() if digest and (folder / name).is_file()]
    if not here:
        yield NO_SUBJECT.at(
            "", f"The statement speaks of {', '.join(sorted(subjects))}; none of the archives asked for is that."
        )
        return
    for name in wanted.keys() - set(here):
        yield NOT_HERE.at(name, f"{name} is not here.")
    good = []
    for name, digest in [(name, subjects[name]) for name in here] + sorted(byproducts.items()):
        found = list(_check_digest(folder / name, digest))
        yield from found
        good += [] if found else [name]
    yield from _check_sums(folder, {name: {**subjects, **byproducts}[name] for name in good})
    info, sbom = _Loaded(), _Loaded()
    yield from info.load(folder, byproducts, good=good, prefix="BUILD_INFO-", schema="build-info-1", kind=INFO)
    yield from sbom.load(folder, byproducts, good=good, prefix="sbom-", schema="sbom-1", kind=SBOM)
    contents: dict[str, _Contents] = {}
    for name in here:
        if name in good:
            try:
                contents[name] = _read(folder / name)
            except (BundleError, OSError, ValueError, RecursionError) as exc:
                yield DAMAGED.at(name, f"{name} cannot be read: {exc}")
    complete = contents.keys() == subjects.keys()
    yield from _check_contents(contents, info=info.document, sbom=sbom.document, complete=complete)
    if info.document is not None:
        yield from _check_info(info.document, document)
        if sbom.document is not None:
            yield from _check_sbom(sbom.document, info.document, subjects)


@dataclass
class _Loaded:
    """A byproduct that can be relied on to have its keys; None where there is none."""

    document: Mapping[str, Any] | None = None

    def load(
        self, folder: Path, byproducts: Mapping[str, str], *, good: list[str], prefix: str, schema: str, kind: Kind
    ) -> Iterator[Finding]:
        """Read the one whose name starts with ``prefix``; one that is not here has its finding already."""
        name = next((name for name in byproducts if name.startswith(prefix) and name.endswith(".json")), None)
        if name is None:
            yield kind.at("", f"The statement speaks of no {prefix}*.json, so the archives cannot be held against it.")
        elif name in good:
            try:
                document = json.loads((folder / name).read_bytes())
            except (ValueError, RecursionError) as exc:
                yield kind.at(name, f"{name} is not JSON: {exc}.")
                return
            problems = schema_problems(document, schema)
            for problem in problems:
                yield kind.at(name, f"{name} does not follow its schema: {problem}")
            if not problems:
                self.document = document


def _check_digest(path: Path, digest: str) -> Iterator[Finding]:
    if not path.is_file():
        yield NOT_HERE.at(path.name, f"{path.name} is not here.")
    elif (found := sha256_file(path)) != digest:
        yield CHANGED.at(
            path.name, f"{path.name} is not the file that was released.", evidence=f"{found}, stated {digest}"
        )


def _check_sums(folder: Path, stated: Mapping[str, str]) -> Iterator[Finding]:
    try:
        lines = (folder / "SHA256SUMS").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        yield NOT_HERE.at("SHA256SUMS", "SHA256SUMS is not here.")
        return
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    sums = {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2}
    for name, digest in sorted(stated.items()):
        if name not in sums:
            yield SUMS.at(name, f"SHA256SUMS does not list {name}.")
        elif sums[name] != digest:
            yield SUMS.at(name, f"SHA256SUMS has another digest for {name}.", evidence=f"{sums[name]}, stated {digest}")


def _check_contents(
    contents: Mapping[str, _Contents],
    *,
    info: Mapping[str, Any] | None,
    sbom: Mapping[str, Any] | None,
    complete: bool,
) -> Iterator[Finding]:
    """Archives against BUILD_INFO and SBOM; ``complete``: together they have to hold everything that those list."""
    for name, held in sorted(contents.items()):
        inner = info if held.info is None else held.info
        if inner is None:
            yield NOT_HERE.at(name, f"No BUILD_INFO is here to hold {name} against.")
            continue
        if problems := schema_problems(inner, "build-info-1"):
            yield INFO.at(name, f"BUILD_INFO.json in {name} does not follow its schema: {problems[0]}")
            continue
        if info is not None:
            for key in sorted(key for key in inner if info.get(key) != inner[key]):
                yield INFO.at(name, f"{key} differs between BUILD_INFO in {name} and the one beside it.")
        yield from _check_files(name, held, inner)
        if sbom is not None:
            listed = _components(sbom, "file:")
            for path, digest in sorted(held.files.items()):
                if listed.get(path) != digest:
                    yield SBOM.at(name, f"The SBOM has no {path} with that digest.", evidence=digest)
    if complete:
        held_paths = {path for held in contents.values() for path in (*held.files, *held.links)}
        for path in sorted({file["path"] for file in (info or {}).get("files", ())} - held_paths):
            yield INFO.at(path, f"{path} is in BUILD_INFO and in no archive.")
        for path in sorted(_components(sbom or {}, "file:").keys() - held_paths):
            yield SBOM.at(path, f"{path} is in the SBOM and in no archive.")


def _read(path: Path) -> _Contents:
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    info = None
    with opened_tar(path) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            if member.issym():
                links[name] = member.linkname
            elif member.islnk():
                files[name] = files.get(member.linkname.partition("/")[2], "")
            elif member.isfile() and (handle := tar.extractfile(member)):
                if name == "BUILD_INFO.json":
                    data = handle.read()
                    info, files[name] = json.loads(data), hashlib.sha256(data).hexdigest()
                else:
                    digest = hashlib.sha256()
                    while block := handle.read(1 << 20):
                        digest.update(block)
                    files[name] = digest.hexdigest()
    return _Contents(files=files, links=links, info=info)


def _check_files(archive: str, held: _Contents, info: Mapping[str, Any]) -> Iterator[Finding]:
    listed = {file["path"]: file for file in info.get("files", ())}
    for path, digest in sorted(held.files.items()):
        if path.startswith("BUILD_INFO."):
            continue
        if path not in listed:
            yield INFO.at(archive, f"BUILD_INFO does not know {path}.", evidence=digest)
        elif listed[path].get("sha256") != digest:
            yield INFO.at(archive, f"{path} is not the file that BUILD_INFO describes.", evidence=digest)
    for path, target in sorted(held.links.items()):
        if listed.get(path, {}).get("link") != target:
            yield INFO.at(archive, f"The link {path} is not the one that BUILD_INFO describes.", evidence=target)


def _components(document: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Name → SHA-256 of every component, nested ones too, whose bom-ref starts with ``kind``."""
    found: dict[str, str] = {}
    for component in document.get("components", ()):
        if component.get("bom-ref", "").startswith(kind):
            found[component["name"]] = next((each["content"] for each in component.get("hashes", ())), "")
        found |= _components(component, kind)
    return found


def _check_info(info: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Finding]:
    definition = document["predicate"]["buildDefinition"]
    materials = {each.get("name", ""): each for each in definition.get("resolvedDependencies", ())}
    expected: dict[str, Mapping[str, str]] = {
        "source": {"gitCommit": info["upstream_base_commit"], "gitTree": info["upstream_tree"]},
        "patched source": {"gitCommit": info["commit"], "gitTree": info["tree"]},
        **{f"patch {patch['series']}/{patch['id']}": {"sha256": patch["sha256"]} for patch in info["patches"]},
    }
    for name, digest in expected.items():
        found = materials.get(name, {}).get("digest")
        if found != digest:
            yield MATERIAL.at(
                "", f"The statement's {name} is not BUILD_INFO's.", evidence=f"{found}, BUILD_INFO {digest}"
            )
    for name in sorted(materials.keys() - expected.keys()):
        if name.startswith("patch "):
            yield MATERIAL.at("", f"The statement has a {name} that BUILD_INFO does not know.")
    parameters = definition.get("externalParameters", {})
    for key in ("recipe", "target", "arch"):
        if parameters.get(key) != info[key]:
            yield MATERIAL.at(
                "", f"The statement's {key} is not BUILD_INFO's.", evidence=f"{parameters.get(key)}, {info[key]}"
            )


def _check_sbom(sbom: Mapping[str, Any], info: Mapping[str, Any], subjects: Mapping[str, str]) -> Iterator[Finding]:
    described = sbom["metadata"]["component"].get("properties", ())
    archives = {each["name"]: each["value"] for each in described}
    if archives != {f"llamabuild:archive:{name}": f"sha256:{digest}" for name, digest in subjects.items()}:
        yield SBOM.at("", "The SBOM is about other archives.", evidence=", ".join(sorted(archives)))
    top = sbom["components"]
    commits = [
        commit.get("uid")
        for each in top
        if each.get("bom-ref") == "llama.cpp"
        for commit in each.get("pedigree", {}).get("commits", ())
    ]
    if commits != [info["upstream_base_commit"]]:
        yield SBOM.at("", "The SBOM's upstream commit is not BUILD_INFO's.", evidence=f"{commits}")
    patches = _components(sbom, "patch:")
    if patches != {patch["id"]: patch["sha256"] for patch in info["patches"]}:
        yield SBOM.at("", "The SBOM's patches are not BUILD_INFO's.", evidence=", ".join(sorted(patches)))
    bundled = {
        (each["name"], each.get("version", "")) for each in top if each.get("bom-ref", "").startswith("component:")
    }
    stated = {(each["name"], each["version"]) for each in info.get("components", ())}
    for name, version in sorted(bundled ^ stated):
        yield SBOM.at("", f"{name} {version} is in only one of SBOM and BUILD_INFO.")
