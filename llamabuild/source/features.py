"""Features in a source tree: the probes that do not need a build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.source.treepatch import TreeFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pygit2

    from llamabuild.recipe.features import Feature, TreeProbe


def missing_probes(repository: pygit2.Repository, tree: str, features: Mapping[str, Feature]) -> tuple[str, ...]:
    """What of the features' tree probes does not hold, one line each; a feature without tree probes is not judged."""
    files = TreeFiles(repository, tree)
    return tuple(
        f"{name}: {text}"
        for name, feature in features.items()
        for probe in feature.tree
        if (text := _problem(files, probe))
    )


def shows(repository: pygit2.Repository, tree: str, feature: Feature) -> bool:
    """Whether a feature has tree probes and all of them hold."""
    return bool(feature.tree) and not missing_probes(repository, tree, {"": feature})


def _problem(files: TreeFiles, probe: TreeProbe) -> str:
    entry = files.get(probe.path.encode())
    if entry is None:
        return f"there is no {probe.path}"
    text = files.read(entry)
    if probe.text is not None and probe.text.encode() not in text:
        return f"{probe.text!r} is not in {probe.path}"
    if probe.absent is not None and probe.absent.encode() in text:
        return f"{probe.absent!r} is still in {probe.path}"
    return ""
