"""Fetch from a git server with libgit2: only the pinned commit where the server allows it, never for minutes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from llamabuild.core.errors import SourceError

if TYPE_CHECKING:
    import pygit2

    from llamabuild.core.console import Console, Progress

_CONNECT_MS = 6_000
_SILENCE_MS = 30_000


def fetch_commit(
    repository: pygit2.Repository, url: str, commit: str, *, ref: str, console: Console, depth: int = 1
) -> None:
    """Have a commit and ``depth`` generations of its history from ``url`` in the repository.

    Asked for by its id first (GitHub allows that), then through ``ref``, and last with the ref's whole history, where a
    branch has moved on from the pin.

    Raises SourceError when the server cannot be reached, or has no such commit.
    """
    pin = f"+{commit}:refs/llamabuild/commits/{commit}"
    failures: list[str] = []
    for spec, generations in ((pin, depth), (pin, 0), (_ref_spec(ref), depth), (_ref_spec(ref), 0)):
        try:
            _fetch(repository, url, spec, depth=generations, console=console)
        except UnreachableError:
            raise
        except SourceError as exc:
            failures.append(exc.message)
            continue
        if _has(repository, commit):
            repository.references.create(f"refs/llamabuild/commits/{commit}", commit, force=True)
            return
        failures.append(f"{ref} does not lead to it")
    raise SourceError(
        f"{url} has no commit {commit}: {failures[-1]}.",
        hint="It may have been force-pushed away; llamabuild resolve --update pins what is there now.",
    )


class UnreachableError(SourceError):
    """The server does not answer: no other way of asking it will help."""


def _has(repository: pygit2.Repository, commit: str) -> bool:
    try:
        return repository[commit] is not None
    except (KeyError, ValueError):
        return False


def _ref_spec(ref: str) -> str:
    if ref.startswith("refs/"):
        return f"+{ref}:refs/llamabuild/seen/{ref.removeprefix('refs/')}"
    return (
        f"+refs/*/{ref}:refs/llamabuild/seen/*/{ref}"
        if "/" not in ref
        else f"+refs/heads/{ref}:refs/llamabuild/seen/heads/{ref}"
    )


def _fetch(repository: pygit2.Repository, url: str, spec: str, *, depth: int, console: Console) -> None:
    import pygit2

    pygit2.settings.server_connect_timeout = _CONNECT_MS
    pygit2.settings.server_timeout = _SILENCE_MS

    class Callbacks(pygit2.RemoteCallbacks):  # type: ignore[misc]
        progress: Progress | None = None

        def transfer_progress(self, stats: pygit2.remotes.TransferProgress) -> None:
            # A step is opened when something comes, so that a server that is not there costs one line.
            if self.progress is None:
                self.progress = stack.enter_context(console.step(f"Fetch from {url}"))
            self.progress.update(stats.received_objects, stats.total_objects, f"{stats.received_bytes >> 20} MiB")

    remote = repository.remotes.create_anonymous(url)
    try:
        with contextlib.ExitStack() as stack:
            remote.fetch([spec], callbacks=Callbacks(), depth=depth)
    except (pygit2.GitError, KeyError, ValueError, OSError) as exc:
        text = str(exc).strip().rstrip(".")
        if any(sign in text for sign in _UNREACHABLE):
            raise UnreachableError(f"{url} cannot be reached: {text}.", hint="Check the network.") from exc
        raise SourceError(f"{url} cannot be fetched from: {text}.") from exc


_UNREACHABLE = ("resolve address", "failed to connect", "timed out", "timeout", "Connection refused", "unreachable")
