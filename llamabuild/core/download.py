"""Fetch a file by URL: streamed, resumed where it broke off, and checked by digest before it gets its name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from llamabuild.core.errors import SourceError
from llamabuild.core.files import locked, sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import requests

    from llamabuild.core.context import Context

_CONNECT_SECONDS = 5.0
_READ_SECONDS = 30.0
_BLOCK = 1 << 18
_ATTEMPTS = 5
"""How often a transfer that breaks off is taken up again before it counts as failed."""


def download(url: str, target: Path, context: Context, *, sha256: str) -> Path:
    """Bring ``url`` to ``target`` and return it; a target with the right digest is not fetched again.

    The bytes so far stay in ``target`` + ``.part`` when the connection breaks, and the next attempt (in this run or a
    later one) asks for the rest by Range. The digest is checked over the whole file.

    Raises SourceError when the server cannot be reached, answers with an error, or sends other bytes.
    """
    guard = context.home.locks / f"download-{hashlib.sha256(str(target).encode()).hexdigest()[:16]}.lock"
    with locked(guard, on_wait=f"waiting for another download of {target.name}", say=context.console.note):
        if target.is_file() and sha256_file(target) == sha256:
            return target
        if context.offline:
            raise SourceError(
                f"{url} is not cached, and --offline forbids fetching it.", hint="Run once without --offline."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        _fetch(url, part, context)
        found = sha256_file(part)
        if found != sha256:
            part.unlink()
            raise SourceError(
                f"{url} is not the file that was pinned: SHA-256 {found}, wanted {sha256}.",
                hint="Somebody replaced the file, or the digest in the manifest is wrong.",
            )
        part.replace(target)
        return target


def _fetch(url: str, part: Path, context: Context) -> None:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry

    # Retry covers refused connections and busy servers; a body that breaks off is ours to resume.
    retry = Retry(total=3, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504), allowed_methods=("GET",))
    with requests.Session() as session, context.console.step(f"Download {url.rsplit('/', 1)[-1]}") as progress:
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            had = part.stat().st_size if part.is_file() else 0
            try:
                for done, total in _blocks(session, url, part):
                    progress.update(done, total, f"{done >> 20} MiB")
                return
            except requests.HTTPError as exc:
                raise SourceError(f"{url} cannot be fetched: {exc}.", hint="Check the URL in the manifest.") from exc
            except requests.RequestException as exc:
                failure = exc
                if not part.is_file() or part.stat().st_size <= had:
                    break
        raise SourceError(
            f"{url} cannot be fetched: {_reason(failure)}.",
            hint="Check the network; what came so far is kept and the next run goes on from there.",
        ) from failure


def _blocks(session: requests.Session, url: str, part: Path) -> Iterator[tuple[int, int]]:
    """One request, written to ``part`` block by block; yields bytes done and bytes in all (0 where nobody says)."""
    import requests

    have = part.stat().st_size if part.is_file() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with session.get(url, headers=headers, stream=True, timeout=(_CONNECT_SECONDS, _READ_SECONDS)) as answer:
        if have and answer.status_code == requests.codes.requested_range_not_satisfiable:
            # All bytes are here already, or the file shrank; the digest tells which.
            return
        answer.raise_for_status()
        resumed = answer.status_code == requests.codes.partial_content
        if not resumed:
            have = 0
        length = int(answer.headers.get("Content-Length") or 0)
        total = have + length if length else 0
        done = have
        with part.open("ab" if resumed else "wb") as handle:
            for block in answer.iter_content(_BLOCK):
                handle.write(block)
                done += len(block)
                yield done, total
        if total and done < total:
            raise requests.ConnectionError(f"the connection broke off after {done} of {total} bytes")


def _reason(failure: Exception | None) -> str:
    """The innermost reason: urllib3's chain repeats the address at every level."""
    while failure is not None and isinstance(failure.__context__ or failure.__cause__, Exception):
        inner = failure.__cause__ or failure.__context__
        if not isinstance(inner, Exception):
            break
        failure = inner
    return str(failure).rstrip(".") or type(failure).__name__
