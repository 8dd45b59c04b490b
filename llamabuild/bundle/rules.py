"""Components of vendor runtimes as data: which libraries and files belong to one, and what may be done to them.

The rules are the TOML files in ``components/``. A library that no component names is the system's: it is taken whole
with its licence, and its rpath may be set.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READ_FROM_ROCBLAS = "read from rocblas"
"""A folder's place that the library itself decides."""

_KEYS = frozenset(
    "schema name title backend libraries opens folders licenses part always thin edit".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Opened:
    """Libraries that a component opens by name at run time, which no NEEDED entry tells."""

    pattern: str
    required: bool


@dataclass(frozen=True)
class DataFolder:
    """A folder of files beside a component's library."""

    place: str
    """Relative to the library's folder, or ``READ_FROM_ROCBLAS``."""
    required: bool
    """A library without this folder in its tree is an error."""
    index: tuple[str, ...]
    """File names with ``{arch}``: an arch without any of them is not served."""
    index_required: bool
    """An arch that is not served is an error, not a note."""
    files: tuple[str, ...]
    """Patterns of file names. A file that matches none is an error: a new release brings something unknown."""

    def claims(self, name: str) -> bool:
        """Whether a file name is known."""
        return any(fnmatchcase(name, pattern) for pattern in self.files)


@dataclass(frozen=True)
class Component:
    """A part of a vendor's runtime."""

    name: str
    title: str
    backend: str
    """Only bundles with this backend have it."""
    libraries: tuple[str, ...]
    """Patterns of sonames and file names."""
    opens: tuple[Opened, ...]
    folders: tuple[DataFolder, ...]
    licenses: tuple[str, ...]
    """Patterns below the tree's root or its ``usr``."""
    part: str
    """Which archive its files go to when a bundle is split."""
    always: bool
    """Comes along where the tree has it, even if nothing needs it by name."""
    thin: bool
    """Device code of other archs may be zeroed."""
    edit: bool
    """The licence allows changing the file, an rpath included."""

    def owns(self, name: str) -> bool:
        """Whether a library of this name is the component's."""
        return any(fnmatchcase(name, pattern) for pattern in self.libraries)


def load_components() -> tuple[Component, ...]:
    """All components, in the order of their files' names."""
    folder = resources.files("llamabuild.bundle") / "components"
    files = sorted((path for path in folder.iterdir() if path.name.endswith(".toml")), key=lambda path: path.name)
    return tuple(parse_component(tomllib.loads(path.read_text(encoding="utf-8"))) for path in files)


def parse_component(written: Mapping[str, Any]) -> Component:
    """A component from its TOML; an unknown key is a KeyError, because these files are the program's own."""
    known = {
        "schema",
        "name",
        "title",
        "backend",
        "libraries",
        "opens",
        "folders",
        "licenses",
        "part",
        "always",
        "thin",
    }
    if unknown := set(written) - known - {"edit"}:
        raise KeyError(f"{written.get('name')}: unknown keys {sorted(unknown)}")
    return Component(
        name=written["name"],
        title=written["title"],
        backend=written["backend"],
        libraries=tuple(written["libraries"]),
        opens=tuple(Opened(one["pattern"], one["required"]) for one in written.get("opens", ())),
        folders=tuple(_folder(one) for one in written.get("folders", ())),
        licenses=tuple(written.get("licenses", ())),
        part=written["part"],
        always=written.get("always", False),
        thin=written.get("thin", False),
        edit=written.get("edit", True),
    )


def _folder(written: Mapping[str, Any]) -> DataFolder:
    return DataFolder(
        place=written["place"],
        required=written["required"],
        index=tuple(written["index"]),
        index_required=written["index-required"],
        files=tuple(written["files"]),
    )


def component_of(name: str, components: Sequence[Component]) -> Component | None:
    """The component that a library's file name belongs to."""
    return next((component for component in components if component.owns(name)), None)
