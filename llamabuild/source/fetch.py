"""Bring a pinned tree into the mirror: from the cache, from git, from another provider. The tree id decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import LlamabuildError, SourceError
from llamabuild.core.files import write_text
from llamabuild.source.commits import tree_of
from llamabuild.source.gitremote import MissingError, fetch_commit
from llamabuild.source.mirror import has_tree, keep, mirror_of, writing
from llamabuild.source.npm import tree_from_npm
from llamabuild.source.pypi import tree_from_pypi

if TYPE_CHECKING:
    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import MirrorSpec
    from llamabuild.source.lock import Lock

_FROM = {"npm": tree_from_npm, "pypi": tree_from_pypi}


@dataclass(frozen=True)
class Fetched:
    """A pinned tree that is whole in the mirror."""

    repository: Path
    provider: str
    """``cache``, ``git``, or a mirror such as ``npm node-llama-cpp@3.22.1``."""


def fetch(lock: Lock, mirrors: tuple[MirrorSpec, ...], context: Context) -> Fetched:
    """Have ``lock.tree`` in the mirror, from the first provider that brings it.

    Raises SourceError when none does, with one line for each, or when one brings another tree than the pinned one.
    """
    mirror = mirror_of(lock.repository, context)
    with writing(mirror, context) as repository:
        if has_tree(repository, lock.tree):
            return Fetched(mirror.path, _remembered(repository, lock.tree))
        if context.offline:
            raise SourceError(
                f"Tree {lock.tree} of {lock.recipe} is not in the cache ({mirror.path}), and --offline "
                "forbids fetching it.",
                hint="Run once without --offline.",
            )
        try:
            _from_git(repository, lock, context)
        except _WrongTreeError:
            raise
        except SourceError as exc:
            if not mirrors:
                raise
            context.console.note(exc.message)
            return Fetched(mirror.path, bring_tree(repository, lock.tree, mirrors, context, name=lock.ref, failed=exc))
        _keep(repository, lock.tree, provider="git")
        return Fetched(mirror.path, "git")


def bring_tree(
    repository: pygit2.Repository,
    tree: str,
    mirrors: tuple[MirrorSpec, ...],
    context: Context,
    *,
    name: str,
    failed: SourceError | None = None,
) -> str:
    """Have a tree in the repository from the first of some mirrors that brings it; returns which one did.

    ``name`` is what the tree is called in what is said, ``failed`` why the git repository could not bring it.

    Raises SourceError when none does, or when one brings another tree.
    """
    failures = [] if failed is None else [failed.message]
    for spec in mirrors:
        provider = f"{spec.kind} {spec.package}@{spec.version}"
        try:
            with context.console.step(f"Fetch {name} from {provider}"):
                _check(_FROM[spec.kind](repository, spec, context), tree, name=name, provider=provider)
            _keep(repository, tree, provider=provider)
        except _WrongTreeError:
            raise
        except LlamabuildError as exc:
            failures.append(exc.message)
            context.console.note(exc.message)
        else:
            return provider
    moved = failed.hint if isinstance(failed, MissingError) else None
    raise SourceError(
        f"No provider brought the source of {name} (tree {tree}).",
        details=tuple(failures),
        hint=moved or "Check the network, or add a [[source.mirror]] that can be reached from here.",
    )


class _WrongTreeError(SourceError):
    """A provider brought another tree than the pinned one: asking the next one would hide it."""


def _from_git(repository: pygit2.Repository, lock: Lock, context: Context) -> None:
    again = f"llamabuild resolve --recipe {lock.recipe} --update"
    fetch_commit(repository, lock.repository, lock.commit, ref=lock.ref, context=context, again=again)
    found = tree_of(repository, lock.commit)
    _check(found, lock.tree, name=lock.ref, provider=f"git {lock.repository}")


def _check(found: str, wanted: str, *, name: str, provider: str) -> None:
    if found != wanted:
        raise _WrongTreeError(
            f"{provider} brought tree {found} for {name}, but the recipe pins tree {wanted}.",
            hint="The provider does not hold that source; correct the recipe, or remove the provider from it.",
        )


def _keep(repository: pygit2.Repository, tree: str, *, provider: str) -> None:
    """Refuse a tree that is not whole, and remember who brought it."""
    if not has_tree(repository, tree):
        raise SourceError(f"{provider} brought tree {tree} without all of its files.", hint="Run again.")
    keep(repository, "trees", tree, tree)
    write_text(_note(repository, tree), provider + "\n")


def _remembered(repository: pygit2.Repository, tree: str) -> str:
    note = _note(repository, tree)
    return note.read_text().strip() if note.is_file() else "cache"


def _note(repository: pygit2.Repository, tree: str) -> Path:
    return Path(repository.path) / "llamabuild" / tree
