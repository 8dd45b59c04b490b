"""The series manifest as written: which patches, in which order, and how a built program shows them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llamabuild.recipe.model import CommitId, Name, Written


class PatchNote(Written):
    """What a manifest says about one commit of a fork."""

    id: CommitId
    subject: str
    group: str = ""
    switches: tuple[str, ...] = ()
    """Run-time switches: command line flags and environment variables that the patch reads."""


class RangePart(Written):
    """``kind = "range"``: the commits after ``base`` up to ``tip`` of a fork, each named."""

    kind: Literal["range"]
    repository: str
    ref: str | None = None
    """The fork's branch or tag: where to look when the server hands out no single commits."""
    base: CommitId
    tip: CommitId
    commit: tuple[PatchNote, ...]
    together: tuple[tuple[CommitId, ...], ...] = ()
    """Sets of commits that compile only together: all of a set are taken, or none."""


class CommitPart(Written):
    """``kind = "commit"``: a single commit of some repository."""

    kind: Literal["commit"]
    repository: str
    ref: str | None = None
    id: CommitId
    subject: str
    group: str = ""
    switches: tuple[str, ...] = ()
    upstream_since: Annotated[int, Field(gt=0)] | None = None
    """The first upstream build number that has it: from there on it is upstream's, provided that ``feature`` shows."""
    feature: str | None = None
    """The feature whose tree probes tell whether a tree has it already."""


class PullPart(Written):
    """``kind = "pr"``: a pull request at a pinned head; its commits that are not in ``base`` are the patches."""

    kind: Literal["pr"]
    repository: str
    pr: Annotated[int, Field(gt=0)]
    commit: CommitId
    """The pinned head."""
    base: CommitId | None = None
    """Where the pull request left its upstream; looked up in the history when it is not given."""
    subject: str
    group: str = ""
    switches: tuple[str, ...] = ()
    upstream_since: Annotated[int, Field(gt=0)] | None = None
    feature: str | None = None


class FilePart(Written):
    """``kind = "files"``: mail patches (``git format-patch``) and plain diffs in ``patches/NAME/``, in this order."""

    kind: Literal["files"]
    files: tuple[str, ...]
    group: str = ""
    switches: tuple[str, ...] = ()


class ArchivePart(Written):
    """``kind = "archive"``: an archive of mail patches or diffs, by URL and digest."""

    kind: Literal["archive"]
    url: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    files: tuple[str, ...] = ()
    """Members in order; without it every ``.patch`` and ``.diff`` in the order of their names."""
    group: str = ""
    switches: tuple[str, ...] = ()


class SeriesPart(Written):
    """``kind = "series"``: the patches of another series, at this place."""

    kind: Literal["series"]
    name: Name
    group: str = ""
    """The group that they are of here; without it, none."""


Part = Annotated[RangePart | CommitPart | PullPart | FilePart | ArchivePart | SeriesPart, Field(discriminator="kind")]


class Series(Written):
    """A series manifest: ``patches/NAME.toml``."""

    schema_: Literal[1] = Field(alias="schema")
    name: Name
    summary: str
    upstream: str = "https://github.com/ggml-org/llama.cpp"
    """The repository whose refs the series is checked against."""
    groups: tuple[str, ...] = ()
    """The groups in the order they are listed; every patch's group is one of them."""
    flags: tuple[str, ...] = ()
    """Texts in ``llama-server --help`` that prove the whole series."""
    features: tuple[str, ...] = ()
    """Features that a tree with the series has."""
    part: tuple[Part, ...]
