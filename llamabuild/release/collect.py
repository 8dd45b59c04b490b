"""Put a release together from parts that other runs finished, one flavour or several in each."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError, VerificationError
from llamabuild.core.files import sha256_file
from llamabuild.release.assemble import NOTES
from llamabuild.release.part import find_statements, take_part
from llamabuild.release.statement import digests_of, read_statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from llamabuild.recipe.model import Recipe
    from llamabuild.release.facts import BuildFacts
    from llamabuild.release.part import Part


def collect_parts(
    source: Path, folder: Path, *, recipe: Recipe, flavours: Sequence[tuple[str, str]], since: Sequence[BuildFacts] = ()
) -> tuple[Part, ...]:
    """Take over every part of ``recipe`` and its baseline below ``source`` into ``folder``, each checked whole.

    ``flavours``: target and arch of each one that has to be there; empty takes what there is. Further files that a
    part's SHA256SUMS lists (the patches archive, a container's context, a wheel) come along.

    Raises UsageError for a flavour that is missing or is there twice, VerificationError for a part that does not hold.
    """
    ours = {recipe.name, f"baseline-{(recipe.source.commit or '')[:7]}"}
    statements: dict[tuple[str, str, str], Path] = {}
    for path in find_statements(source):
        parameters = read_statement(path)["predicate"]["buildDefinition"]["externalParameters"]
        key = (str(parameters.get("recipe")), str(parameters.get("target")), str(parameters.get("arch")))
        if key[0] not in ours:
            continue
        if key in statements:
            raise UsageError(
                f"{source} holds the flavour {_named(key)} twice: {statements[key]} and {path}.",
                hint="Keep one of them.",
            )
        statements[key] = path
    there = {key[1:] for key in statements if key[0] == recipe.name}
    missing = [flavour for flavour in flavours if flavour not in there]
    if missing or not there:
        wanted = ", ".join(_named((recipe.name, *flavour)) for flavour in missing) or f"recipe {recipe.name}"
        found = ", ".join(sorted(_named(key) for key in statements)) or "none"
        raise UsageError(
            f"{source} holds no finished part for {wanted}.",
            hint=f"Make each with: llamabuild release --recipe {recipe.name} --flavour TARGET:ARCH. Found: {found}.",
        )
    chosen = {key: path for key, path in statements.items() if not flavours or key[1:] in flavours}
    parts = tuple(take_part(path, folder, since=since) for path in chosen.values())
    for place in {path.parent for path in chosen.values()}:
        _take_others(place, folder)
    return parts


def _named(key: tuple[str, str, str]) -> str:
    return f"{key[0]} {key[1]}" + (f" {key[2]}" if key[2] else "")


def _take_others(place: Path, folder: Path) -> None:
    """Copy what a part's sums list beyond its flavours' own files."""
    known = {NOTES}
    for statement in find_statements(place):
        document = read_statement(statement)
        known |= {statement.name, *digests_of(document["subject"])}
        known |= digests_of(document["predicate"]["runDetails"].get("byproducts", ())).keys()
    for name, digest in _sums(place).items():
        if name in known:
            continue
        path = place / name
        if "/" in name or not path.is_file() or sha256_file(path) != digest:
            raise VerificationError(
                f"{path} is not the file that SHA256SUMS beside it lists.",
                hint="Make that part again, or fetch it again.",
            )
        if (folder / name).exists() and sha256_file(folder / name) != digest:
            raise VerificationError(
                f"Two parts bring a {name} each, and they differ.", hint="Make the parts from one state of the recipe."
            )
        shutil.copyfile(path, folder / name)


def _sums(place: Path) -> Mapping[str, str]:
    lines = (place / "SHA256SUMS").read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2}
