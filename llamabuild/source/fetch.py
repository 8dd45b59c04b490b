"""Bring a pinned tree into the mirror: from the cache, from git, from another provider. The tree id decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.errors import LlamabuildError, SourceError
from llamabuild.source.gitremote import MissingError, fetch_commit
from llamabuild.source.mirror import has_tree, keep, mirror_of, writing
from llamabuild.source.npm import tree_from_npm
from llamabuild.source.pypi import tree_from_pypi

if TYPE_CHECKING:
    from pathlib import Path

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
        failures: list[str] = []
        moved: str | None = None
        try:
            fetch_commit(
                repository,
                lock.repository,
                lock.commit,
                ref=lock.ref,
                context=context,
                again=f"llamabuild resolve --recipe {lock.recipe} --update",
            )
            _check(tree_of(repository, lock.commit), lock, provider=f"git {lock.repository}")
            return _kept(repository, mirror.path, lock, provider="git")
        except _WrongTreeError:
            raise
        except SourceError as exc:
            if not mirrors:
                raise
            failures.append(exc.message)
            moved = exc.hint if isinstance(exc, MissingError) else None
            context.console.note(exc.message)
        for spec in mirrors:
            provider = f"{spec.kind} {spec.package}@{spec.version}"
            try:
                with context.console.step(f"Fetch {lock.ref} from {provider}"):
                    _check(_FROM[spec.kind](repository, spec, context), lock, provider=provider)
                return _kept(repository, mirror.path, lock, provider=provider)
            except _WrongTreeError:
                raise
            except LlamabuildError as exc:
                failures.append(exc.message)
                context.console.note(exc.message)
    raise SourceError(
        f"No provider brought the source of {lock.recipe} (commit {lock.commit}).",
        details=tuple(failures),
        hint=moved or "Check the network, or add a [[source.mirror]] that can be reached from here.",
    )


class _WrongTreeError(SourceError):
    """A provider brought another tree than the pinned one: asking the next one would hide it."""


def _check(found: str, lock: Lock, *, provider: str) -> None:
    if found != lock.tree:
        raise _WrongTreeError(
            f"{provider} brought tree {found} for {lock.ref}, but the recipe pins tree {lock.tree}.",
            hint="The provider does not hold that source; correct the recipe, or remove the provider from it.",
        )


def _kept(repository: pygit2.Repository, path: Path, lock: Lock, *, provider: str) -> Fetched:
    """Refuse a tree that is not whole, and remember who brought it."""
    if not has_tree(repository, lock.tree):
        raise SourceError(f"{provider} brought tree {lock.tree} without all of its files.", hint="Run again.")
    keep(repository, "trees", lock.tree, lock.tree)
    (path / "llamabuild").mkdir(exist_ok=True)
    (path / "llamabuild" / lock.tree).write_text(provider + "\n")
    return Fetched(path, provider)


def tree_of(repository: pygit2.Repository, commit: str) -> str:
    """The tree of a commit that is there (or of what a tag leads to)."""
    import pygit2

    return str(repository[commit].peel(pygit2.Tree).id)


def _remembered(repository: pygit2.Repository, tree: str) -> str:
    from pathlib import Path

    note = Path(repository.path) / "llamabuild" / tree
    return note.read_text().strip() if note.is_file() else "cache"
