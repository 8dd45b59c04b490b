"""A real git server on loopback: ``git http-backend`` behind a small HTTP server, with connections that can be cut."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class GitServer:
    """Serves every repository below ``root``."""

    root: Path
    url: str = ""
    cut_after: int | None = None
    """Close the connection after so many bytes of a pack."""
    stalled: threading.Event | None = None
    """Answer no request for a pack before it is set."""
    requests: list[str] = field(default_factory=list)

    def of(self, repository: Path) -> str:
        """The URL of a repository."""
        return f"{self.url}/{repository.relative_to(self.root)}"


@contextlib.contextmanager
def serve(root: Path) -> Iterator[GitServer]:
    server = GitServer(root)
    backend = Path(subprocess.check_output(["git", "--exec-path"], text=True).strip()) / "git-http-backend"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def log_message(self, *args: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            path, _, query = self.path.partition("?")
            server.requests.append(f"{self.command} {self.path}")
            if server.stalled is not None and self.command == "POST":
                server.stalled.wait(60)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            env = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_ADDR": "127.0.0.1",
            }
            out = subprocess.run([backend], input=body, env=env, capture_output=True, check=False).stdout
            head, _, content = out.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
            status = int(headers.pop("Status", "200").split()[0])
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            cut = server.cut_after if self.command == "POST" else None
            if cut is None:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if cut is None else content[:cut])

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
