"""Downloads: resumed where they broke off, and never under their name before the digest is right."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from llamabuild.core.download import download
from llamabuild.core.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.core.context import Context

DATA = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(DATA).hexdigest()


class Server:
    """Sends ``DATA``, and hangs up after so many bytes of each of the next answers."""

    def __init__(self) -> None:
        self.cuts: list[int] = []
        self.ranges: list[str | None] = []
        self.ignores_range = False
        self.url = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.ranges.append(asked)
            if self.path != "/file.bin":
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and not state.ignores_range else 0
            if start >= len(DATA):
                self.send_error(416)
                return
            body = DATA[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cuts.pop(0)] if state.cuts else body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def test_a_cut_download_goes_on_where_it_broke_off(server: Server, context: Context) -> None:
    server.cuts = [300_000, 300_000]
    target = download(f"{server.url}/file.bin", context.cwd / "file.bin", context, sha256=DIGEST)
    assert target.read_bytes() == DATA
    # Whole blocks of 256 KiB are kept.
    assert server.ranges == [None, "bytes=262144-", "bytes=524288-"]
    assert not target.with_name("file.bin.part").exists()


def test_a_later_run_goes_on_too(server: Server, context: Context) -> None:
    (context.cwd / "file.bin.part").write_bytes(DATA[:1000])
    download(f"{server.url}/file.bin", context.cwd / "file.bin", context, sha256=DIGEST)
    assert server.ranges == ["bytes=1000-"]
    # And what is there is not fetched again.
    download(f"{server.url}/file.bin", context.cwd / "file.bin", context, sha256=DIGEST)
    assert len(server.ranges) == 1


def test_a_server_that_knows_no_ranges_sends_it_all_again(server: Server, context: Context) -> None:
    server.ignores_range = True
    server.cuts = [300_000]
    target = download(f"{server.url}/file.bin", context.cwd / "file.bin", context, sha256=DIGEST)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("there", [b"", DATA, DATA + b"more", b"\0" * 1000])
def test_other_bytes_never_get_the_name(server: Server, context: Context, there: bytes) -> None:
    (context.cwd / "file.bin.part").write_bytes(there)
    with pytest.raises(SourceError, match="not the file that was pinned") as caught:
        download(f"{server.url}/file.bin", context.cwd / "file.bin", context, sha256="0" * 64)
    assert caught.value.exit_code == 3
    assert list(context.cwd.glob("file.bin*")) == []


@pytest.mark.parametrize(
    ("url", "said"), [("http://127.0.0.1:9/file.bin", "cannot be fetched"), ("{}/nothing.bin", "404")]
)
def test_what_cannot_be_had_is_one_sentence(server: Server, context: Context, url: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        download(url.format(server.url), context.cwd / "file.bin", context, sha256=DIGEST)
    assert not (context.cwd / "file.bin").exists()


def test_offline_asks_nobody(server: Server, context: Context) -> None:
    offline = dataclasses.replace(context, offline=True)
    with pytest.raises(SourceError, match="--offline"):
        download(f"{server.url}/file.bin", context.cwd / "file.bin", offline, sha256=DIGEST)
    assert server.ranges == []
