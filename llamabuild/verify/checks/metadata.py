"""BUILD_INFO: present, readable, and true to the last byte of every file it lists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from llamabuild.bundle.manifest import JSON_NAME, TEXT_NAME, render_text
from llamabuild.verify.build_info import SELF, claimed_by, cmake_entries, listed_files
from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llamabuild.verify.findings import Finding
    from llamabuild.verify.subject import Expected, Subject

MISSING = Kind(
    "metadata.missing",
    "error",
    "There is no BUILD_INFO.json, so nothing says what was built, from which commit, with which flags.",
    "Pack the bundle with llamabuild pack, which writes it.",
)
UNREADABLE = Kind(
    "metadata.not-read",
    "error",
    "BUILD_INFO.json is not a JSON object of the known schema, so nothing could be held against it.",
    "Pack the bundle again.",
)
KEY_MISSING = Kind(
    "metadata.key-missing",
    "error",
    "BUILD_INFO.json lacks a key that every bundle tells.",
    "Pack the bundle again with this version.",
)
DIGEST = Kind(
    "metadata.digest",
    "error",
    "A file is not the one that was packed: its digest differs from the one in BUILD_INFO.json.",
    "Unpack the archive again; if the archive's own sum is right, pack the bundle again.",
)
FILE_MISSING = Kind(
    "metadata.file-missing",
    "error",
    "BUILD_INFO.json lists a file that is not there.",
    "Unpack the archive again; a partial copy loses files.",
)
FILE_UNLISTED = Kind(
    "metadata.file-unlisted",
    "error",
    "A file is in the bundle that BUILD_INFO.json does not list: it was added after packing.",
    "Remove it, or pack the bundle again.",
)
DIFFERS = Kind(
    "metadata.recipe-differs",
    "error",
    "BUILD_INFO.json says otherwise than the recipe: the bundle is of another recipe, target, arch or pin.",
    "Name the recipe, target and arch that it was made from, or make it again.",
)
NAME = Kind(
    "metadata.name",
    "error",
    "The bundle's top folder has another name than recipe, target and arch give it.",
    "Unpack it under its own name.",
)
TEXT = Kind(
    "metadata.text",
    "error",
    "BUILD_INFO.txt is missing, or tells something else than BUILD_INFO.json.",
    "Pack the bundle again: both are written together.",
)

LINK = Kind(
    "metadata.link",
    "error",
    "A link that BUILD_INFO.json lists is missing, is a file, or leads elsewhere.",
    "Unpack the archive with a tool that keeps links.",
)
PART = Kind(
    "metadata.part-absent",
    "note",
    "The bundle is split, and this part of it (a vendor's runtime, in an archive of its own) is not unpacked here.",
    "Unpack the other archive over it, or have that runtime on the host.",
)
CONTRADICTION = Kind(
    "metadata.contradiction",
    "error",
    "Two statements of BUILD_INFO.json exclude each other: a backend that the CMake entries leave off, a build commit "
    "that is neither the upstream nor the patched one, a patch that was not applied.",
    "Make the bundle again; never edit BUILD_INFO by hand.",
)

NATIVE = Kind(
    "metadata.native",
    "warning",
    "GGML_NATIVE was on: the code is for the very processor of the building machine, and stops with an illegal "
    "instruction on an older one.",
    "Configure with GGML_NATIVE=OFF for a bundle that is given to others.",
)

KINDS = (
    NATIVE,
    MISSING,
    UNREADABLE,
    KEY_MISSING,
    DIGEST,
    FILE_MISSING,
    FILE_UNLISTED,
    DIFFERS,
    NAME,
    TEXT,
    LINK,
    PART,
    CONTRADICTION,
)

_ALWAYS = ("project", "target", "backends", "compiler", "files")
_WITH_SOURCE = (
    "recipe",
    "upstream_repo",
    "upstream_ref",
    "upstream_base_commit",
    "upstream_tree",
    "commit",
    "tree",
    "build_number",
    "build_commit",
    "cmake_config",
)
_SHAPES: dict[str, type] = {"build_number": int, "backends": list, "files": list, "cmake_config": list, "patches": list}
_DONE = frozenset({"applied", "merged", "already-upstream", "empty"})
_HEX = re.compile(r"^[0-9a-f]{40}$")
_ARCH_ENTRY = {"cuda": "CMAKE_CUDA_ARCHITECTURES", "hip": "CMAKE_HIP_ARCHITECTURES"}


def check(subject: Subject, *, from_recipe: Expected | None, series: Sequence[str] | None = None) -> Iterator[Finding]:
    """Hold BUILD_INFO against the files, itself, and the recipe where one was named.

    ``series``: the names of the recipe's patch series; None where no recipe is at hand.
    """
    if subject.build_info_error:
        yield UNREADABLE.at(JSON_NAME, "BUILD_INFO.json could not be read.", evidence=subject.build_info_error)
        return
    info = subject.build_info
    if info is None:
        yield MISSING.at("", "There is no BUILD_INFO.json.", severity=None if from_recipe else "note")
        return
    yield from _keys(info)
    yield from _files(subject, info)
    yield from _contradictions(info)
    if from_recipe is not None:
        yield from _recipe(info, claimed_by(info), from_recipe, series or ())
    project = info.get("project")
    if project and subject.name and subject.name != project:
        yield NAME.at("", f"The top folder is {subject.name}, and BUILD_INFO.json says {project}.")
    yield from _text(subject, info)


def _keys(info: Mapping[str, Any]) -> Iterator[Finding]:
    # A bundle of a build folder that somebody else made says so, and then claims nothing about its source and flags.
    names = _ALWAYS if str(info.get("source", "")).startswith("unknown") else (*_ALWAYS, *_WITH_SOURCE)
    for name in names:
        value = info.get(name)
        if not value or (name in _SHAPES and not isinstance(value, _SHAPES[name])):
            yield KEY_MISSING.at(JSON_NAME, f"BUILD_INFO.json does not tell {name}.", evidence=repr(value)[:100])
    for name in ("upstream_base_commit", "upstream_tree", "commit", "tree"):
        if info.get(name) and not _HEX.match(str(info[name])):
            yield KEY_MISSING.at(
                JSON_NAME, f"BUILD_INFO.json does not tell {name} as a full id.", evidence=repr(info[name])[:100]
            )


def _files(subject: Subject, info: Mapping[str, Any]) -> Iterator[Finding]:
    files, links = listed_files(info)
    for part, paths in subject.absent_parts.items():
        yield PART.at("", f"The part {part} is not unpacked here.", evidence=", ".join(paths[:10]))
        files = {path: digest for path, digest in files.items() if path not in paths}
        links = {path: target for path, target in links.items() if path not in paths}
    for path, digest in files.items():
        file = subject.files.get(path)
        if file is None:
            if path not in subject.unreadable:
                yield FILE_MISSING.at(path, f"BUILD_INFO.json lists {path}, which is not there.")
        elif file.sha256 != digest:
            yield DIGEST.at(
                path, f"{path} is not the file that was packed.", evidence=f"{file.sha256} instead of {digest}"
            )
    for path, target in links.items():
        if subject.links.get(path) != target:
            there = subject.links.get(path) or ("a file" if path in subject.files else "nothing")
            yield LINK.at(path, f"{path} is no link to {target}.", evidence=f"there: {there}")
    for path in (*subject.files, *subject.links):
        if path not in files and path not in links and path not in SELF:
            yield FILE_UNLISTED.at(path, f"{path} is not listed in BUILD_INFO.json.")


def _contradictions(info: Mapping[str, Any]) -> Iterator[Finding]:
    config = cmake_entries(info)
    if config.get("GGML_NATIVE", "OFF").upper() in {"ON", "TRUE", "YES", "Y", "1"}:
        yield NATIVE.at(JSON_NAME, "The bundle was compiled for the processor of the machine that built it.")
    for backend in info.get("backends") or ():
        option = f"GGML_{str(backend).upper()}"
        if config.get(option, "ON").upper() in {"OFF", "FALSE", "0", "NO"}:
            yield CONTRADICTION.at(JSON_NAME, f"BUILD_INFO.json tells the backend {backend}, and {option}=OFF.")
        entry = config.get(_ARCH_ENTRY.get(str(backend), ""))
        if entry is not None and info.get("arch") and entry.replace(";", ",") != str(info["arch"]).replace(";", ","):
            yield CONTRADICTION.at(
                JSON_NAME,
                f"BUILD_INFO.json tells the arch {info['arch']}, and {_ARCH_ENTRY[str(backend)]}={entry}.",
            )
    short = str(info.get("build_commit", ""))
    commits = [str(info.get(name, "")) for name in ("upstream_base_commit", "commit")]
    if short and any(commits) and not any(commit.startswith(short) for commit in commits):
        yield CONTRADICTION.at(
            JSON_NAME, f"The build commit {short} is neither the upstream nor the patched one.", evidence=str(commits)
        )
    for patch in info.get("patches") or ():
        if isinstance(patch, dict) and patch.get("outcome") not in _DONE:
            yield CONTRADICTION.at(
                JSON_NAME, f"The patch {patch.get('id')} was not applied.", evidence=str(patch.get("outcome"))
            )


def _recipe(info: Mapping[str, Any], claimed: Expected, asked: Expected, series: Sequence[str]) -> Iterator[Finding]:
    """What a recipe leaves open (a build number, a tree) is not compared."""
    pairs: list[tuple[str, object, object]] = [
        ("recipe", f"recipe {info.get('recipe')}", asked.source),
        ("commit", claimed.commit[: len(asked.commit)], asked.commit),
        ("arch", claimed.arch, asked.arch),
        ("backends", claimed.backends, asked.backends),
        ("features", tuple(sorted(claimed.features)), tuple(sorted(asked.features))),
        ("patch series", sorted({str(patch.get("series")) for patch in info.get("patches") or ()}), sorted(series)),
    ]
    if asked.build_number is not None:
        pairs.append(("build number", claimed.build_number, asked.build_number))
    if asked.tree:
        pairs.append(("tree", info.get("upstream_tree"), asked.tree))
    config = cmake_entries(info)
    pairs += [(f"CMake entry {name}", config.get(name), value) for name, value in asked.cmake]
    for what, told, wanted in pairs:
        if told != wanted:
            yield DIFFERS.at(JSON_NAME, f"BUILD_INFO.json tells the {what} {told}, {asked.source} {wanted}.")


def _text(subject: Subject, info: Mapping[str, Any]) -> Iterator[Finding]:
    file = subject.files.get(TEXT_NAME)
    if file is None:
        yield TEXT.at(TEXT_NAME, "There is no BUILD_INFO.txt.")
        return
    try:
        # The JSON file's keys are sorted, so the lines' order is no part of the comparison.
        wanted = sorted(render_text(info).splitlines())
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        yield TEXT.at(
            TEXT_NAME, "BUILD_INFO.json cannot be told in words, so the text was not compared.", evidence=repr(exc)
        )
        return
    told = sorted(file.real.read_text(errors="replace").splitlines())
    if told != wanted:
        other = next((line for line in told if line not in wanted), "a line is missing")
        yield TEXT.at(TEXT_NAME, "BUILD_INFO.txt tells something else than BUILD_INFO.json.", evidence=other)
