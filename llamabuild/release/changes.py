"""What changed since the release before: two BUILD_INFO held against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llamabuild.release.facts import BuildFacts


@dataclass(frozen=True)
class Change:
    """One thing that is not as it was; an empty side was not there."""

    what: str
    before: str
    after: str


def changes_between(before: BuildFacts, after: BuildFacts) -> tuple[Change, ...]:
    """Everything of note that differs: source, patches, features, device code, floors, tools, options, components."""
    found = [
        *_single("upstream", _source(before), _source(after)),
        *_single("build number", str(before.build_number), str(after.build_number)),
        *_single("archs", before.arch, after.arch),
        *_single("backends", " ".join(before.backends), " ".join(after.backends)),
        *_maps("patch", _patches(before), _patches(after)),
        *_maps("feature", dict.fromkeys(before.features, "there"), dict.fromkeys(after.features, "there")),
        *_single("SASS", " ".join(before.sass), " ".join(after.sass)),
        *_single("PTX", " ".join(before.ptx), " ".join(after.ptx)),
        *_single("gfx", " ".join(before.gfx), " ".join(after.gfx)),
        *_single("minimum driver", before.driver_floor, after.driver_floor),
        *_maps("tool", before.tools, after.tools),
        *_maps("option", dict(before.cmake_config), dict(after.cmake_config)),
        *_maps("component", _components(before), _components(after)),
    ]
    return tuple(found)


def _source(facts: BuildFacts) -> str:
    return f"{facts.ref} ({facts.commit[:9]})"


def _patches(facts: BuildFacts) -> Mapping[str, str]:
    """By subject: a rebased patch keeps it while its id and digest change."""
    return {f"{patch.series}: {patch.subject}": f"{patch.state} {patch.digest[:12]}" for patch in facts.patches}


def _components(facts: BuildFacts) -> Mapping[str, str]:
    return {component.name: component.version or "without a version" for component in facts.components}


def _single(what: str, before: str, after: str) -> Iterator[Change]:
    if before != after:
        yield Change(what, before, after)


def _maps(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for name in (*before, *(name for name in after if name not in before)):
        if before.get(name) != after.get(name):
            yield Change(f"{what} {name}", before.get(name, ""), after.get(name, ""))
