"""Fetch from a git server with libgit2: only what is asked for, and no waiting for minutes on one that is not there."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from typing import TYPE_CHECKING

from llamabuild.core.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pygit2

    from llamabuild.core.console import Progress
    from llamabuild.core.context import Context

_CONNECT_MS = 6_000
_SILENCE_MS = 20_000
WHOLE = 2**31 - 1
"""A depth that means the whole history; git's own INFINITE_DEPTH, which also makes a shallow repository whole."""
_DEPTHS = (64, 1024, WHOLE)
"""How far back a history is fetched, step by step, until what is looked for is in it."""

_UNREACHABLE = ("resolve address", "failed to connect", "timed out", "timeout", "refused", "unreachable", "temporarily")
_BROKEN = (
    "could not read from remote",
    "error receiving data",
    "unexpected EOF",
    "early EOF",
    "disconnect",
    "SSL error",
)
_NO_SHALLOW = "shallow fetch is not supported"
_NO_PROTOCOL = "unsupported URL protocol"


class UnreachableError(SourceError):
    """The server does not answer, or hangs up: no other way of asking it will help."""


class MissingError(SourceError):
    """The server answers, and does not have what was asked for, or does not hand it out."""


def fetch_commit(
    repository: pygit2.Repository, url: str, commit: str, *, ref: str, context: Context, again: str = ""
) -> None:
    """Have one commit from ``url`` in the repository, without its history where that can be.

    It is asked for by its id first (GitHub allows that), then through ``ref``, and last with the ref's whole history,
    where a branch has moved on from the pin. ``again`` is the command that pins what is there now.

    Raises UnreachableError, or MissingError with the pinned and the present id when ``ref`` leads elsewhere now.
    """
    if has_commit(repository, commit):
        return
    pin = f"refs/llamabuild/commits/{commit}"
    with contextlib.suppress(MissingError):
        fetch(repository, url, f"+{commit}:{pin}", depth=1, context=context)
        if has_commit(repository, commit):
            return
    present = fetch_ref(repository, url, ref, depth=1, context=context)
    if present == commit:
        repository.references.create(pin, commit, force=True)
        return
    # A branch may still lead to the pin; a tag or pull request that moved has left it.
    if not ref.startswith(("refs/pull/", "refs/tags/")) and not _is_tag(repository, ref):
        fetch_ref(repository, url, ref, depth=WHOLE, context=context)
        if has_commit(repository, commit):
            repository.references.create(pin, commit, force=True)
            return
    raise MissingError(
        f"{ref} of {url} is now {present}, not the pinned {commit}, and the server no longer hands out the pinned one.",
        hint=f"It was force-pushed or moved. Look at what changed, then pin the present one: {again}"
        if again
        else "It was force-pushed or moved; look at what changed before you pin the present one.",
    )


def fetch_history(
    repository: pygit2.Repository,
    url: str,
    *,
    tip: str,
    ref: str | None,
    enough: Callable[[str], bool],
    context: Context,
) -> str:
    """Have a commit and so much of its history that ``enough(full id)`` holds; returns the full id of ``tip``.

    ``tip`` may be abbreviated; then it is looked for in the history of ``ref``. More history is fetched step by step.

    Raises UnreachableError; MissingError when the whole history does not have it.
    """
    full = expand(repository, tip)
    if full is not None and enough(full):
        return full
    for depth in _DEPTHS:
        if len(tip) == 40:
            with contextlib.suppress(MissingError):
                fetch(repository, url, f"+{tip}:refs/llamabuild/commits/{tip}", depth=depth, context=context)
        if expand(repository, tip) is None and ref is not None:
            fetch_ref(repository, url, ref, depth=depth, context=context)
        full = expand(repository, tip)
        if full is not None and enough(full):
            repository.references.create(f"refs/llamabuild/commits/{full}", full, force=True)
            return full
    where = f"{ref} of {url}" if ref else url
    raise MissingError(
        f"{where} does not lead to commit {tip}{'' if full is None else ' with the history that is needed'}.",
        hint="Check the ids in the manifest; the branch may have been force-pushed since it was written.",
    )


def fetch_ref(repository: pygit2.Repository, url: str, ref: str, *, depth: int, context: Context) -> str:
    """Fetch what a ref leads to now; returns the commit, tags peeled. A bare name is a tag before it is a branch."""
    import pygit2

    names = [ref] if ref.startswith("refs/") or ref == "HEAD" else [f"refs/tags/{ref}", f"refs/heads/{ref}"]
    for name in names:
        seen = f"refs/llamabuild/seen/{name.removeprefix('refs/')}"
        if seen in repository.references and depth == 1:
            repository.references.delete(seen)
        fetch(repository, url, f"+{name}:{seen}", depth=depth, context=context)
        if seen in repository.references:
            return str(repository.references[seen].peel(pygit2.Commit).id)
    raise MissingError(
        f"{url} has no {ref}.", hint="Check the tag, branch or pull request number; it may have been removed."
    )


def known_ref(repository: pygit2.Repository, ref: str) -> str:
    """What a ref led to when it was last fetched.

    Raises MissingError when it never was.
    """
    import pygit2

    names = [ref] if ref.startswith("refs/") else [f"refs/tags/{ref}", f"refs/heads/{ref}"]
    for name in names:
        seen = f"refs/llamabuild/seen/{name.removeprefix('refs/')}"
        if seen in repository.references:
            return str(repository.references[seen].peel(pygit2.Commit).id)
    raise MissingError(f"{ref} was never fetched, and --offline forbids it.", hint="Run once without --offline.")


def list_refs(repository: pygit2.Repository, url: str) -> dict[str, str]:
    """Every ref of a server with the id it leads to, annotated tags peeled."""
    import pygit2

    _limit()
    try:
        heads = repository.remotes.create_anonymous(url).list_heads(proxy=True)
    except (pygit2.GitError, ValueError, OSError) as exc:
        raise _classified(url, exc) from exc
    refs = {head.name: str(head.oid) for head in heads if not head.name.endswith("^{}")}
    return refs | {head.name.removesuffix("^{}"): str(head.oid) for head in heads if head.name.endswith("^{}")}


def has_commit(repository: pygit2.Repository, commit: str) -> bool:
    """Whether a commit and its tree are there."""
    try:
        return repository[commit].tree_id in repository.odb
    except (KeyError, ValueError, AttributeError):
        return False


def expand(repository: pygit2.Repository, commit: str) -> str | None:
    """The full id of a commit that is there by an id or an unambiguous prefix of one."""
    import pygit2

    try:
        found = repository[commit]
    except (KeyError, ValueError):
        return None
    return str(found.id) if isinstance(found, pygit2.Commit) else None


def fetch(repository: pygit2.Repository, url: str, spec: str, *, depth: int, context: Context) -> None:
    """One fetch. What was there before stays usable when it breaks off: objects and refs are written at its end.

    Raises UnreachableError or MissingError.
    """
    if context.offline:
        raise UnreachableError(
            f"{url} is not asked for {spec.partition(':')[0].lstrip('+')}: --offline forbids fetching.",
            hint="Run once without --offline.",
        )
    try:
        _fetch(repository, url, spec, depth=depth, context=context)
    except _BrokenError:
        context.console.note(f"{url}: the connection broke off; trying once more")
        _fetch(repository, url, spec, depth=depth, context=context)


class _BrokenError(UnreachableError):
    """The connection broke off in the middle."""


def _fetch(repository: pygit2.Repository, url: str, spec: str, *, depth: int, context: Context) -> None:
    import pygit2

    class Callbacks(pygit2.RemoteCallbacks):  # type: ignore[misc]
        progress: Progress | None = None

        def transfer_progress(self, stats: pygit2.remotes.TransferProgress) -> None:
            # A step is opened when something comes, so that a server that is not there costs one line.
            if self.progress is None:
                self.progress = stack.enter_context(context.console.step(f"Fetch from {url}"))
            self.progress.update(stats.received_objects, stats.total_objects, f"{stats.received_bytes >> 20} MiB")

    _limit()
    try:
        with contextlib.ExitStack() as stack:
            repository.remotes.create_anonymous(url).fetch([spec], callbacks=Callbacks(), depth=depth, proxy=True)
    except (pygit2.GitError, KeyError, ValueError, OSError) as exc:
        if depth and _NO_SHALLOW in str(exc):
            _fetch(repository, url, spec, depth=0, context=context)
        elif _NO_PROTOCOL in str(exc):
            _fetch_by_git(repository, url, spec, depth=depth)
        else:
            raise _classified(url, exc) from exc


def _fetch_by_git(repository: pygit2.Repository, url: str, spec: str, *, depth: int) -> None:
    """The ordinary git, for what libgit2 does not speak (``git://`` through a helper, ``ext::``, bundles, …)."""
    git = shutil.which("git")
    if git is None:
        raise UnreachableError(f"{url} needs git, which is not installed.", hint="Install git.")
    limit = [f"--depth={depth}"] if depth else []
    done = subprocess.run(
        [git, "--git-dir", repository.path, "fetch", "--quiet", "--no-tags", *limit, "--", url, spec],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["git failed"]
        raise MissingError(f"{url} cannot be fetched from: {reason[0]}.")


def _limit() -> None:
    import pygit2

    pygit2.settings.server_connect_timeout = _CONNECT_MS
    pygit2.settings.server_timeout = _SILENCE_MS


def _classified(url: str, failure: Exception) -> SourceError:
    text = str(failure).strip().rstrip(".")
    if any(sign in text for sign in _UNREACHABLE):
        return UnreachableError(f"{url} cannot be reached: {text}.", hint="Check the network and the URL.")
    if any(sign in text for sign in _BROKEN):
        return _BrokenError(f"{url}: the connection broke off: {text}.", hint="Check the network and run again.")
    return MissingError(f"{url} cannot be fetched from: {text}.", hint="Check the URL.")


def _is_tag(repository: pygit2.Repository, ref: str) -> bool:
    return f"refs/llamabuild/seen/tags/{ref}" in repository.references
