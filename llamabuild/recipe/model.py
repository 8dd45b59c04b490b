"""The recipe as written: what a TOML file may say, and nothing resolved yet."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - pydantic reads the annotation at run time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")]
"""Full, or abbreviated: a full one is asked for by ``make``, not by the loader."""
TreeId = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Backend = Literal["cpu", "cuda", "vulkan", "hip"]


class Written(BaseModel):
    """Base of everything that is read from TOML: frozen, strict, unknown keys are errors, keys use hyphens."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_alias=True,
        validate_by_name=True,
    )


class MirrorSpec(Written):
    """Another provider of the same tree."""

    kind: Literal["npm", "pypi"]
    package: str
    version: str
    member: str
    """npm: the git bundle's path inside the package. pypi: the folder inside the source archive."""


class SourceSpec(Written):
    """``[source]``: which upstream commit, and how to know that it is the right one."""

    repository: str
    """Any URL that git takes, ``file://`` included."""
    ref: str | None = None
    """A tag or a branch, as the repository names it."""
    pr: Annotated[int, Field(gt=0)] | None = None
    """A pull request, at ``refs/pull/N/head``."""
    commit: CommitId | None = None
    tree: TreeId | None = None
    build_number: Annotated[int, Field(gt=0)] | None = None
    date: datetime | None = None
    """The commit's date where a mirror does not keep it (a squashed one): it decides the ids of patched commits."""
    features: tuple[str, ...] = ()
    mirror: tuple[MirrorSpec, ...] = ()


class SeriesUse(Written):
    """``[[series]]``: a patch series, or a part of it."""

    name: Name
    groups: tuple[str, ...] | None = None
    """Only the patches of these groups."""
    without: tuple[str, ...] = ()
    """Single patches that are left out, by commit id (any unambiguous prefix), file name or number."""


class TargetSpec(Written):
    """``[targets.NAME]``: backends and one arch."""

    backends: tuple[Backend, ...]
    arch: str | None = None
    single_arch: bool = True
    """False: ``arch`` may be a list, ``86,89``; for CUDA alone."""
    cpu_variants: bool = False
    """Every CPU variant as a plugin of its own (``GGML_CPU_ALL_VARIANTS``)."""
    rccl: bool = False
    nccl: bool = False
    rpath: Literal["rpath", "runpath"] = "rpath"
    glibc_floor: str | None = None
    """Fail verification when any ELF needs a newer glibc than this, such as ``2.36``."""
    programs: tuple[str, ...] = ("llama-server", "llama-cli", "llama-bench")
    cmake: dict[str, str] = Field(default_factory=dict)
    """Further CMake cache entries; they win over the target's defaults, and may not name what other keys decide."""


class Recipe(Written):
    """A recipe file."""

    schema_: Literal[1] = Field(alias="schema")
    name: Name
    summary: str
    release: bool = True
    """A release pin: the version string carries no ``-dev``."""
    default_target: str = "auto"
    """A target's name, or ``auto``: the first GPU target that this host has the GPU and the toolchain for, else cpu."""
    source: SourceSpec
    series: tuple[SeriesUse, ...] = ()
    targets: dict[Name, TargetSpec]
    _file: Path | None = PrivateAttr(default=None)

    @property
    def file(self) -> Path | None:
        """The file that it was read from; its series may lie beside it."""
        return self._file
