"""The software bill of materials of an archive, in CycloneDX 1.6."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

from cyclonedx.model import (
    AttachedText,
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.bom_ref import BomRef
from cyclonedx.model.component import Commit, Component, ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from llamabuild import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llamabuild.bundle.model import Artifact
    from llamabuild.release.facts import BuildFacts
    from llamabuild.release.facts import Component as Bundled
    from llamabuild.release.facts import Patch as OurPatch
    from llamabuild.release.view import BundleView

VERSION = SchemaVersion.V1_6
_NAMESPACE = uuid.UUID("5c1f0c8e-2e0f-5a37-9d0d-3d9a6a3c1b5e")


def make_sbom(facts: BuildFacts, view: BundleView, *, archives: Sequence[Artifact]) -> str:
    """The SBOM as JSON: upstream's commit, each patch with its digest, each bundled component with its files.

    The same archive gives the same text: serial number and time come from its digest and its source.
    """
    own = _llama(facts, view)
    bundled = {component.name: _component(component, view) for component in facts.components}
    root = Component(
        name=facts.name,
        version=f"{facts.ref}-b{facts.build_number}",
        type=ComponentType.APPLICATION,
        bom_ref=f"bundle:{facts.name}",
        description=facts.summary or None,
        hashes=[_sha256(archive.sha256) for archive in archives[:1]],
        properties=[
            Property(name=f"llamabuild:archive:{archive.path.name}", value=f"sha256:{archive.sha256}")
            for archive in archives
        ],
    )
    bom = Bom(
        components=[own, *bundled.values()],
        serial_number=uuid.uuid5(_NAMESPACE, " ".join(archive.sha256 for archive in archives)),
    )
    bom.metadata.component = root
    bom.metadata.timestamp = dt.datetime.fromtimestamp(facts.date, tz=dt.UTC)
    bom.metadata.tools = ToolRepository(
        components=[Component(name="llamabuild", version=__version__, type=ComponentType.APPLICATION)]
    )
    bom.register_dependency(root, [own])
    owners = {path: component.name for component in facts.components for path in component.files}
    for name, component in {"": own, **bundled}.items():
        bom.register_dependency(component, [bundled[other] for other in _needs(name, owners, view) if other in bundled])
    return make_outputter(bom, OutputFormat.JSON, VERSION).output_as_string(indent=2) + "\n"


def _needs(name: str, owners: dict[str, str], view: BundleView) -> list[str]:
    """Names of the components that the component ``name`` (empty: llama.cpp) loads; itself left out."""
    found = {owners.get(edge.target, "") for edge in view.needed if edge.target and owners.get(edge.source, "") == name}
    return sorted(found - {name, ""})


def _llama(facts: BuildFacts, view: BundleView) -> Component:
    upstream = Component(
        name="llama.cpp",
        version=facts.ref,
        type=ComponentType.LIBRARY,
        bom_ref=f"upstream:{facts.commit}",
        purl=_upstream_purl(facts),
        properties=[Property(name="llamabuild:git-tree", value=facts.tree)],
    )
    theirs = {path for component in facts.components for path in component.files}
    return Component(
        name="llama.cpp",
        version=f"{facts.ref}+{facts.patched_commit[:9]}" if facts.patches else facts.ref,
        type=ComponentType.APPLICATION,
        bom_ref="llama.cpp",
        purl=_upstream_purl(facts),
        licenses=[DisjunctiveLicense(id="MIT")],
        external_references=[ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(facts.repository))],
        pedigree=Pedigree(
            ancestors=[upstream],
            commits=[Commit(uid=facts.commit, message=f"upstream {facts.ref}")],
            patches=[_pedigree_patch(patch) for patch in facts.patches],
        ),
        components=[
            *(_patch_component(patch) for patch in facts.patches),
            *_files((file.path, file.sha256) for file in view.files if file.path not in theirs),
        ],
        properties=[
            Property(name="llamabuild:patched-commit", value=facts.patched_commit),
            Property(name="llamabuild:patched-tree", value=facts.patched_tree),
        ],
    )


def _upstream_purl(facts: BuildFacts) -> PackageURL:
    """``pkg:github/…`` where it is there; for any other repository the generic form with its address."""
    address = facts.repository.removesuffix(".git")
    if address.startswith("https://github.com/"):
        owner, _, name = address.removeprefix("https://github.com/").partition("/")
        return PackageURL("github", namespace=owner, name=name, version=facts.commit)
    return PackageURL(
        "generic", name="llama.cpp", version=facts.commit, qualifiers={"vcs_url": f"git+{facts.repository}"}
    )


def _pedigree_patch(patch: OurPatch) -> Patch:
    return Patch(
        type=PatchClassification.UNOFFICIAL,
        diff=Diff(text=AttachedText(content=f"{patch.series}: {patch.subject} (sha256:{patch.digest})")),
    )


def _patch_component(patch: OurPatch) -> Component:
    return Component(
        name=patch.id,
        type=ComponentType.FILE,
        bom_ref=f"patch:{patch.series}/{patch.id}",
        description=patch.subject,
        hashes=[_sha256(patch.digest)],
        properties=[
            Property(name="llamabuild:series", value=patch.series),
            Property(name="llamabuild:outcome", value=patch.state),
        ],
    )


def _component(component: Bundled, view: BundleView) -> Component:
    digests = {file.path: file.sha256 for file in view.files}
    licenses = [LicenseExpression(component.license)] if component.license else []
    return Component(
        name=component.name,
        version=component.version or None,
        type=ComponentType.LIBRARY,
        bom_ref=f"component:{component.name}",
        licenses=licenses,
        description=f"Bundled from: {component.origin}",
        purl=_distribution_purl(component),
        components=_files((path, digests[path]) for path in component.files if path in digests),
    )


def _distribution_purl(component: Bundled) -> PackageURL | None:
    distribution, package, name = component.origin.partition(" package ")
    if not package or not component.version:
        return None
    return PackageURL("deb", namespace=distribution, name=name, version=component.version)


def _files(files: Iterable[tuple[str, str]]) -> list[Component]:
    return [
        Component(name=path, type=ComponentType.FILE, bom_ref=BomRef(f"file:{path}"), hashes=[_sha256(digest)])
        for path, digest in files
    ]


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)
