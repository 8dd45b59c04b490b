"""Where a model file's bytes come from: a local file or an HTTP server that answers ranges."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests

_SPLIT = re.compile(r"^(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)$", re.IGNORECASE)
_HTTP_TIMEOUT = (10.0, 60.0)


class ByteSource(Protocol):
    """A file that is read piecemeal."""

    @property
    def name(self) -> str:
        """What the user called it."""

    @property
    def size(self) -> int:
        """Of the whole file, in bytes."""

    @property
    def block(self) -> int:
        """How many bytes are best asked for at a time."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer at the end alone."""


@dataclass(frozen=True)
class LocalSource:
    """A file on this machine; ``block`` is small, because most of a header is skipped."""

    name: str
    size: int
    descriptor: int
    block: int = 1 << 16

    def read(self, offset: int, size: int) -> bytes:
        """One ``pread``."""
        return os.pread(self.descriptor, size, offset)


@dataclass(frozen=True)
class HttpSource:
    """A file behind HTTP that is read by ranges and never fetched whole."""

    name: str
    size: int
    session: requests.Session
    block: int = 1 << 20

    def read(self, offset: int, size: int) -> bytes:
        """One ranged GET. Raises UsageError when the server does not answer with just that range."""
        body, _ = _ranged(self.session, self.name, offset, size)
        return body


@contextlib.contextmanager
def open_source(name: str) -> Iterator[ByteSource]:
    """Open a path or an ``http(s)://`` URL. Raises UsageError when it cannot be read."""
    if is_url(name):
        import requests

        with requests.Session() as session:
            _, size = _ranged(session, name, 0, 16)
            yield HttpSource(name=name, size=size, session=session)
        return
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise UsageError(f"{name} cannot be read: {exc.strerror}.", hint="Check the path.") from exc
    try:
        yield LocalSource(name=name, size=_size_of(descriptor, name), descriptor=descriptor)
    finally:
        os.close(descriptor)


def is_url(name: str) -> bool:
    """Whether ``name`` is an HTTP address and not a path."""
    return name.lower().startswith(("http://", "https://"))


def split_names(name: str) -> tuple[str, ...]:
    """All parts of the split file that ``name`` is a part of, or ``name`` alone.

    The pattern is llama.cpp's own (``%s-%05d-of-%05d.gguf``, ``src/llama.cpp``).
    """
    found = _SPLIT.match(name)
    if not found:
        return (name,)
    count = int(found["count"])
    return tuple(f"{found['prefix']}-{part:05d}-of-{count:05d}{found['suffix']}" for part in range(1, count + 1))


def short_name(name: str) -> str:
    """The last component, for sentences; an address loses its query, which may carry a token."""
    return Path(urlsplit(name).path if is_url(name) else name).name


def _size_of(descriptor: int, name: str) -> int:
    import stat

    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        raise UsageError(f"{name} is not a file.", hint="Give a .gguf file or its URL.")
    return state.st_size


def _ranged(session: requests.Session, url: str, offset: int, size: int) -> tuple[bytes, int]:
    """The bytes from ``offset`` and the size of the whole file."""
    import requests

    shown = url.partition("?")[0]
    try:
        reply = session.get(
            url, headers={"Range": f"bytes={offset}-{offset + size - 1}", "Accept-Encoding": "identity"},
            timeout=_HTTP_TIMEOUT, stream=True,
        )  # fmt: skip
        with reply:
            whole = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", reply.headers.get("Content-Range", "").strip())
            if reply.status_code == requests.codes.partial_content and whole and int(whole[1]) == offset:
                # No more than was asked for, whatever the server goes on to send.
                return reply.raw.read(size), int(whole[3])
            if reply.status_code == requests.codes.ok:
                raise UsageError(
                    f"{shown} is served whole: the server does not answer ranges.",
                    hint="Download the file and give its path.",
                )
            raise UsageError(f"{shown} answered with status {reply.status_code}.", hint="Check the address.")
    except (requests.RequestException, OSError) as exc:
        raise UsageError(f"{shown} cannot be reached ({type(exc).__name__}).", hint="Check the address.") from exc
