"""Findings of ``verify --provenance``; the checks are in ``release``, which may look at more than one archive."""

from __future__ import annotations

from llamabuild.verify.kinds import Kind

_AGAIN = "Fetch the release's files again from where it was published, and compare their SHA-256."

NOT_HERE = Kind(
    "provenance.not-here",
    "warning",
    "A file that the statement speaks of is not here, so nothing was checked about it.",
    "Fetch it from the same release, beside the statement.",
)
NO_SUBJECT = Kind(
    "provenance.no-subject",
    "error",
    "None of the archives that the statement speaks of is here, or it does not speak of the one that was named.",
    "Use the statement of the archive's own flavour, from the same release.",
)
CHANGED = Kind(
    "provenance.digest-mismatch",
    "error",
    "A file does not have the digest that the statement gives: it was changed, or is from another release.",
    _AGAIN,
)
SUMS = Kind(
    "provenance.sums-disagree",
    "error",
    "SHA256SUMS and the statement do not give the same digest for a file, or one of them does not know it.",
    _AGAIN,
)
INFO = Kind(
    "provenance.build-info-disagrees",
    "error",
    "BUILD_INFO beside the archive, the one inside it, and the archive's files are not those of one build.",
    _AGAIN,
)
SBOM = Kind(
    "provenance.sbom-disagrees",
    "error",
    "The SBOM names another source, other patches, or files with other digests than BUILD_INFO and the archive.",
    _AGAIN,
)
MATERIAL = Kind(
    "provenance.material-disagrees",
    "error",
    "The statement's source, patches or parameters are not those of BUILD_INFO.",
    _AGAIN,
)
DAMAGED = Kind("provenance.archive-damaged", "error", "An archive cannot be read to its end.", _AGAIN)

KINDS = (NOT_HERE, NO_SUBJECT, CHANGED, SUMS, INFO, SBOM, MATERIAL, DAMAGED)
