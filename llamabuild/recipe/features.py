"""Features: how each shows in a source tree and in the built binaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from llamabuild.core.errors import RecipeError
from llamabuild.recipe.find import recipe_folders
from llamabuild.recipe.model import Name, Written
from llamabuild.recipe.problems import refuse, validate
from llamabuild.recipe.toml import read_document

if TYPE_CHECKING:
    from llamabuild.core.context import Context


class TreeProbe(Written):
    """``[[NAME.tree]]``: a file of the source tree, and a text in it."""

    path: str
    text: str | None = None
    """Without it the file being there is enough."""
    absent: str | None = None
    """A text that must not be in the file."""


class SymbolProbe(Written):
    """``[[NAME.symbol]]``: a symbol that a library exports."""

    library: str
    """By its stem, such as ``libllama`` for ``libllama.so``."""
    symbol: str


class HelpProbe(Written):
    """``[[NAME.help]]``: a text in a program's ``--help``."""

    program: str = "llama-server"
    text: str


class Feature(Written):
    """One feature: every probe has to hold."""

    summary: str
    tree: tuple[TreeProbe, ...] = ()
    symbol: tuple[SymbolProbe, ...] = ()
    help: tuple[HelpProbe, ...] = ()
    build_number: int | None = None
    """The first upstream build number that has it."""


class FeatureTable(Written):
    """``recipes/features.toml``."""

    schema_: Literal[1] = Field(alias="schema")
    feature: dict[Name, Feature]


def load_features(context: Context) -> dict[str, Feature]:
    """All features by name; a table in an earlier recipe folder adds to and wins over the shipped one.

    Raises RecipeError that tells every problem of a table at once.
    """
    known: dict[str, Feature] = {}
    for folder in reversed(recipe_folders(context)):
        path = folder / "features.toml"
        if not path.is_file():
            continue
        document = read_document(path)
        table, problems = validate(FeatureTable, document)
        refuse(document, problems, hint="Compare with the features.toml that is shipped.")
        if table is None:
            raise RecipeError(f"{path} is not a valid table of features.")
        known |= table.feature
    return known
