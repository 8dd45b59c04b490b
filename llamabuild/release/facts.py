"""What a bundle was made from, read from its BUILD_INFO: the one place here that knows the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.core.errors import UsageError
from llamabuild.release.schemas import schema_problems

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Patch:
    """One patch and what became of it."""

    id: str
    series: str
    group: str
    subject: str
    switches: tuple[str, ...]
    digest: str
    """SHA-256 of the patch, in hex."""
    state: str
    """``applied``, ``merged``, ``already-upstream``, ``empty``."""
    note: str


@dataclass(frozen=True)
class Component:
    """Something in the bundle that somebody else made."""

    name: str
    version: str
    origin: str
    """Where the build took it from, such as ``Debian libgomp1 12.2.0-14``."""
    license: str
    """An SPDX expression, or the name that its distribution gives it; empty where it is not known."""
    files: tuple[str, ...]
    """Paths in the bundle."""


@dataclass(frozen=True)
class BuildFacts:
    """BUILD_INFO as data."""

    name: str
    """The bundle's and its archives' name."""
    recipe: str
    summary: str
    target: str
    arch: str
    backends: tuple[str, ...]
    repository: str
    ref: str
    commit: str
    tree: str
    date: int
    """Of the source, seconds since the epoch."""
    build_number: int
    provider: str
    patched_commit: str
    patched_tree: str
    features: tuple[str, ...]
    patches: tuple[Patch, ...]
    components: tuple[Component, ...]
    tools: Mapping[str, str]
    toolkit_files: Mapping[str, str]
    """Files that a toolkit was put together from, and their SHA-256."""
    cmake_config: tuple[tuple[str, str], ...]
    """Cache entries, name and value."""
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    gfx: tuple[str, ...]
    driver_floor: str
    """Empty where no NVIDIA driver is needed."""
    floors: Mapping[str, str]
    """The highest version of each symbol family (``GLIBC``, …) that any file needs."""
    platform: str
    os: str
    license: str
    validation: Mapping[str, Any]
    raw: Mapping[str, Any]
    """The whole document."""

    @property
    def flavour(self) -> str:
        """``<target>[-<arch>]``."""
        return f"{self.target}-{self.arch}" if self.arch else self.target


def read_facts(info: Mapping[str, Any], *, where: str) -> BuildFacts:
    """Check a BUILD_INFO against the schema and read it; ``where`` names it in messages.

    Raises UsageError for one of another schema, one that is not valid, and one of a build that this program did not
    make: a release says what it was made from.
    """
    problems = schema_problems(info, "build-info-1")
    if problems:
        raise UsageError(
            f"{where} is not a BUILD_INFO that can be used: {problems[0]}",
            hint="Make the bundle again with this version of llamabuild.",
            details=tuple(str(problem) for problem in problems[1:]),
        )
    if "source" in info:
        raise UsageError(
            f"{where} does not say what source it was built from ({info['source']}).",
            hint="Only what llamabuild built from a recipe can be released: llamabuild make --recipe NAME.",
        )
    return BuildFacts(
        name=info["project"],
        recipe=info["recipe"],
        summary=info.get("summary", ""),
        target=info["target"],
        arch=info["arch"],
        backends=tuple(info["backends"]),
        repository=info["upstream_repo"],
        ref=info["upstream_ref"],
        commit=info["upstream_base_commit"],
        tree=info["upstream_tree"],
        date=info["source_date_epoch"],
        build_number=info["build_number"],
        provider=info["source_provider"],
        patched_commit=info["commit"],
        patched_tree=info["tree"],
        features=tuple(info["features"]),
        patches=tuple(_patch(patch) for patch in info["patches"]),
        components=tuple(_component(component) for component in info.get("components", ())),
        tools=info["tools"],
        toolkit_files=info.get("toolkit_files", {}),
        cmake_config=tuple((entry["name"], entry["value"]) for entry in info["cmake_config"]),
        sass=tuple(info.get("cuda_sass", ())),
        ptx=tuple(info.get("cuda_ptx", ())),
        gfx=tuple(info.get("gfx", ())),
        driver_floor=info.get("driver_floor") or "",
        floors=info.get("version_floors", {}),
        platform=info["platform"],
        os=info.get("os", ""),
        license=info["license"],
        validation=info.get("validation", {}),
        raw=info,
    )


def _patch(patch: Mapping[str, Any]) -> Patch:
    return Patch(
        id=patch["id"],
        series=patch["series"],
        group=patch.get("group", ""),
        subject=patch["subject"],
        switches=tuple(patch["switches"]),
        digest=patch["sha256"],
        state=patch["outcome"],
        note=patch.get("note", ""),
    )


def _component(component: Mapping[str, Any]) -> Component:
    return Component(
        name=component["name"],
        version=component["version"],
        origin=component["origin"],
        license=component["license"],
        files=tuple(component["files"]),
    )
