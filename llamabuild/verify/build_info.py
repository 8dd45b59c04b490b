"""BUILD_INFO.json as verification reads it: what the bundle claims about itself."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from llamabuild.bundle.manifest import JSON_NAME, TEXT_NAME
from llamabuild.bundle.rules import load_components
from llamabuild.verify.subject import Expected

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

SELF = frozenset({JSON_NAME, TEXT_NAME})
"""Files that cannot list their own digests."""

_LIMIT = 64 << 20


def read_build_info(root: Path) -> tuple[Mapping[str, Any] | None, str]:
    """The document in ``root``, or None with the reason; no reason where there is no such file."""
    path = root / JSON_NAME
    if not path.is_file():
        return None, ""
    try:
        if path.stat().st_size > _LIMIT:
            return None, f"it has {path.stat().st_size} bytes"
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        return None, str(exc)
    if not isinstance(document, dict):
        return None, f"it is a {type(document).__name__}, not an object"
    if document.get("schema") != 1:
        return None, f"its schema is {document.get('schema')!r}, not 1"
    return document, ""


def claimed_by(info: Mapping[str, Any]) -> Expected:
    """What the document promises; a key of the wrong type counts as missing (and has a finding of its own)."""
    number = info.get("build_number")
    config = cmake_entries(info)
    return Expected(
        source=JSON_NAME,
        backends=tuple(str(each) for each in _list(info.get("backends"))) or None,
        arch=_text(info.get("arch")),
        features=tuple(str(each) for each in _list(info.get("features"))),
        build_number=number if isinstance(number, int) and number else None,
        commit=_commit(info.get("upstream_base_commit")) or _commit(info.get("build_commit")),
        glibc_floor=_text(info.get("glibc_floor_asked")) or None,
        rpath=_text(info.get("rpath_kind")),
        rccl=_switch(config.get("GGML_HIP_RCCL")),
        nccl=_switch(config.get("GGML_CUDA_NCCL")),
        cpu_variants=_switch(config.get("GGML_CPU_ALL_VARIANTS")) or False,
    )


def cmake_entries(info: Mapping[str, Any]) -> dict[str, str]:
    """Name → value of what was passed to CMake."""
    return {
        str(entry.get("name")): str(entry.get("value"))
        for entry in _list(info.get("cmake_config"))
        if isinstance(entry, dict)
    }


def listed_files(info: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Path → SHA-256 of the files, and path → target of the links, that the document lists."""
    records = [record for record in _list(info.get("files")) if isinstance(record, dict) and "path" in record]
    files = {str(record["path"]): str(record.get("sha256", "")) for record in records if "link" not in record}
    return files, {str(record["path"]): str(record["link"]) for record in records if "link" in record}


def absent_parts(info: Mapping[str, Any], present: Container[str]) -> dict[str, tuple[str, ...]]:
    """Parts of a split bundle that are not unpacked here, with the paths they would bring.

    A vendor's runtime may be an archive of its own. Its part is absent where not one of its files is present.
    """
    part_of = {component.name: component.part for component in load_components()}
    paths: dict[str, list[str]] = {}
    for record in _list(info.get("files")):
        part = part_of.get(str(record.get("origin"))) if isinstance(record, dict) else None
        if part and part != "bin":
            paths.setdefault(part, []).append(str(record.get("path")))
    return {part: tuple(names) for part, names in paths.items() if not any(name in present for name in names)}


def runtime_left_to_host(info: Mapping[str, Any]) -> bool:
    """Whether the bundle says that its vendor's runtime is to come from the host's own installation."""
    runtime = info.get("runtime")
    return isinstance(runtime, dict) and runtime.get("kind") == "system"


def source_archs(info: Mapping[str, Any], component: str) -> frozenset[str] | None:
    """Archs that the component served in the tree that the bundle was made of; None where that was not recorded."""
    runtime = info.get("runtime")
    recorded = runtime.get("source_archs") if isinstance(runtime, dict) else None
    archs = recorded.get(component) if isinstance(recorded, dict) else None
    return frozenset(str(arch) for arch in archs) if isinstance(archs, list) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _commit(value: Any) -> str:
    return value if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{7,40}", value) else ""


def _switch(value: str | None) -> bool | None:
    return None if value is None else value.upper() in {"ON", "TRUE", "YES", "Y", "1"}
