"""``resolve --update``, the only thing that moves a pin: it says what it was, what it is, and what came in between."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from llamabuild.core.errors import RecipeError, SourceError
from llamabuild.core.files import write_text
from llamabuild.recipe.load import load_series, read_recipe
from llamabuild.recipe.toml import read_document
from llamabuild.source.commits import tree_of
from llamabuild.source.gitremote import WHOLE, MissingError, expand, fetch_commit, fetch_ref, list_refs
from llamabuild.source.history import between, count_commits
from llamabuild.source.mirror import mirror_of, writing

if TYPE_CHECKING:
    from pathlib import Path

    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe
    from llamabuild.recipe.toml import Document

_NIGHTLY = re.compile(r"^refs/tags/b([0-9]+)$")
_BETWEEN_DEPTH = 512
"""How much history is fetched to name the commits between two pins; more is a look at the upstream repository."""
_SHOWN = 20


@dataclass(frozen=True)
class Moved:
    """A pin that was looked up anew."""

    what: str
    """``source v0.5.0``, ``series dflash2-tensor, pull request 27858``."""
    old: str
    """Nothing where there was none."""
    new: str
    commits: tuple[str, ...] | None
    """What ``new`` has and ``old`` has not, newest first; None where the history does not tell."""

    def lines(self) -> tuple[str, ...]:
        """For a person."""
        if self.old == self.new:
            return (f"{self.what}: unchanged at {self.new}",)
        head = (f"{self.what}: {self.old or 'unpinned'} -> {self.new}",)
        if self.commits is None:
            return (*head, "  the commits in between are not known here (force-pushed, or too far apart)")
        more = (f"  … {len(self.commits) - _SHOWN} more",) if len(self.commits) > _SHOWN else ()
        return (*head, *(f"  {each}" for each in self.commits[:_SHOWN]), *more)


def update_pins(recipe: Recipe, context: Context) -> tuple[Recipe, tuple[Moved, ...]]:
    """Look up the recipe's ref, and its series' pull requests, and write what they are now into the files.

    Only the values are replaced; comments and order stay. Returns the recipe as it is now.

    Raises SourceError when the server cannot be asked, RecipeError when a file cannot be written or the build number
    cannot be told.
    """
    path = recipe.file
    if path is None:
        raise RecipeError(f"Recipe {recipe.name} was not read from a file.")
    moved = [_update_source(recipe, path, context)]
    for use in recipe.series:
        moved += _update_series(use.name, path, recipe.source.repository, context)
    return read_recipe(path, context), tuple(moved)


def _update_source(recipe: Recipe, path: Path, context: Context) -> Moved:
    source = recipe.source
    ref = source.ref or (f"refs/pull/{source.pr}/head" if source.pr else "")
    with writing(mirror_of(source.repository, context), context) as repository:
        if ref:
            new = fetch_ref(repository, source.repository, ref, depth=1, context=context)
        elif source.commit and len(source.commit) == 40:
            new = source.commit
            fetch_commit(repository, source.repository, new, ref="HEAD", context=context)
        else:
            raise RecipeError(
                f"Recipe {recipe.name} names neither a ref nor a pr to look up.",
                hint='Write ref = "…" or pr = N into [source], or the full commit id.',
            )
        old = source.commit or ""
        values = {"commit": new, "tree": tree_of(repository, new)}
        if new != old or source.build_number is None:
            values["build-number"] = _build_number(repository, recipe, new, context)
        if new != old or source.date is None:
            when = datetime.fromtimestamp(repository[new].commit_time, UTC)
            values["date"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
        commits = _between(repository, source.repository, ref, old=old, new=new, context=context)
    _write_values(path, ("source",), values)
    return Moved(f"source {source.ref or (f'pull request {source.pr}' if source.pr else new[:9])}", old, new, commits)


def _update_series(name: str, beside: Path, upstream: str, context: Context) -> list[Moved]:
    series, path = load_series(name, context, beside=beside)
    moved = []
    for index, part in enumerate(series.part):
        if part.kind != "pr":
            continue
        ref = f"refs/pull/{part.pr}/head"
        with writing(mirror_of(upstream, context), context) as repository:
            new = fetch_ref(repository, part.repository, ref, depth=1, context=context)
            commits = _between(repository, part.repository, ref, old=part.commit, new=new, context=context)
            if part.base is not None and new != part.commit and not _leads_to(repository, part.base, new):
                context.console.warn(
                    f"series {name}: pull request {part.pr} may have been rebased, as its new head is not seen to come "
                    f"from base {part.base}; correct base in {path}"
                )
        _write_values(path, ("part", index), {"commit": new})
        moved.append(Moved(f"series {name}, pull request {part.pr}", part.commit, new, commits))
    return moved


def _between(
    repository: pygit2.Repository, url: str, ref: str, *, old: str, new: str, context: Context
) -> tuple[str, ...] | None:
    if old == new or not old:
        return () if old == new else None
    found = between(repository, old, new) if old in repository else None
    if found is None and ref:
        fetch_ref(repository, url, ref, depth=_BETWEEN_DEPTH, context=context)
        found = between(repository, old, new) if old in repository else None
    return found


def _leads_to(repository: pygit2.Repository, base: str, head: str) -> bool:
    full = expand(repository, base)
    return full is not None and repository.descendant_of(head, full)


def _build_number(repository: pygit2.Repository, recipe: Recipe, commit: str, context: Context) -> str:
    """From a nightly tag on the same commit, which costs one question; else by counting the whole history."""
    source = recipe.source
    for name, target in list_refs(repository, source.repository).items():
        match = _NIGHTLY.match(name)
        if match and target == commit:
            return match.group(1)
    try:
        fetch_ref(
            repository, source.repository, source.ref or f"refs/pull/{source.pr}/head", depth=WHOLE, context=context
        )
        count = count_commits(repository, commit)
    except MissingError:
        count = None
    if count is None:
        raise SourceError(
            f"The build number of {commit} cannot be told: no bN tag is on it and its history is not to be had.",
            hint="Write build-number into the recipe: it is the number of commits up to the pin.",
        )
    return str(count)


def _write_values(path: Path, table: tuple[str | int, ...], values: dict[str, str]) -> None:
    """Replace keys of a table in a TOML file, or add them below its last key that is here."""
    document = read_document(path)
    lines = path.read_text().splitlines()
    for key, value in values.items():
        written = f"{key} = {value if key in {'build-number', 'date'} else f'{chr(34)}{value}{chr(34)}'}"
        at = document.lines.get((*table, key))
        if at is not None:
            comment = re.search(r"\s+#[^\"]*$", lines[at - 1])
            lines[at - 1] = written + (comment.group(0) if comment else "")
    missing = [key for key in values if (*table, key) not in document.lines]
    if missing:
        place = _insertion(document, table)
        lines[place:place] = [
            f"{key} = {values[key] if key in {'build-number', 'date'} else f'{chr(34)}{values[key]}{chr(34)}'}"
            for key in missing
        ]
    try:
        write_text(path, "\n".join(lines) + "\n")
    except OSError as exc:
        raise RecipeError(
            f"{path} cannot be written: {exc.strerror}.",
            hint="Copy the recipe into ./recipes and update the copy.",
        ) from exc


def _insertion(document: Document, table: tuple[str | int, ...]) -> int:
    """After the ref, pr or repository of the table: one-line keys that are always among its first."""
    for key in ("pr", "ref", "repository"):
        if (*table, key) in document.lines:
            return document.lines[(*table, key)]
    return document.line_of(table)
