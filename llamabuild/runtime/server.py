"""Start a bundle's own ``llama-server``, talk to it, and end it whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from llamabuild.core.errors import VerificationError
from llamabuild.core.process import end_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

_KEPT_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
)  # fmt: skip
"""Which devices there are is the machine's affair; everything else of the caller's environment is kept out."""

_TIED = (
    "import ctypes,os,signal,sys\n"
    "ctypes.CDLL(None).prctl(1,signal.SIGKILL)\n"
    "os.getppid()==int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.argv[2],sys.argv[2:])"
)
"""PR_SET_PDEATHSIG outlives exec: a server whose starter was killed outright dies with it."""

_DEBUGGER = re.compile(
    r"#\d+ |\[(?:New LWP|Thread debugging|Inferior) |Using host libthread|0x[0-9a-f]+ in |\d+\t|warning: .*\.debug"
)

_BIND_FAILED = "couldn't bind HTTP server socket"
_BIND_ATTEMPTS = 3


class ServerError(VerificationError):
    """The server did not start, did not answer, or died; ``details`` are its own last lines."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: its status, the decoded JSON (or None), the text and the time it took in seconds."""

    status: int
    body: Any
    text: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the status is 200."""
        return self.status == 200


@dataclass(frozen=True)
class RunningServer:
    """A server that answers on loopback."""

    port: int
    argv: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] = field(repr=False)
    load_seconds: float
    """From the start to the first 200 of ``/health``."""

    @property
    def pid(self) -> int:
        """The server's own process id."""
        return self.process.pid

    def get(self, path: str, *, timeout: float = 30.0) -> Answer:
        """GET ``path``. Raises ServerError when no answer comes."""
        return self._ask("GET", path, None, timeout=timeout)

    def post(self, path: str, body: Mapping[str, Any], *, timeout: float = 120.0) -> Answer:
        """POST JSON to ``path``. Raises ServerError when no answer comes."""
        return self._ask("POST", path, body, timeout=timeout)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout: float) -> Answer:
        import requests

        began = time.monotonic()
        with requests.Session() as session:
            session.trust_env = False  # a proxy from the environment has no business on loopback
            try:
                reply = session.request(method, f"http://127.0.0.1:{self.port}{path}", json=body, timeout=timeout)
            except requests.RequestException as exc:
                raise self.failure(f"{method} {path} got no answer ({type(exc).__name__})") from exc
            try:
                document = reply.json()
            except ValueError:
                document = None
            return Answer(reply.status_code, document, reply.text, time.monotonic() - began)

    def lines(self) -> list[str]:
        """Everything that the server has written so far."""
        return read_lines(self.log)

    def failure(self, what: str) -> ServerError:
        """An error that says ``what`` and shows the server's own last lines."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)  # a server that aborts drops the connection before it is gone
        state = self.process.poll()
        ended = "" if state is None else f"; the server has ended {describe_status(state)}"
        return ServerError(
            f"llama-server: {what}{ended}.",
            hint="Read the server's own lines above; the whole log is kept.",
            log=self.log,
            details=telling_lines(self.lines(), 12),
        )


def find_program(bundle: Path, name: str = "llama-server") -> Path:
    """A program of a bundle folder (or of a ``bin`` folder itself). Raises ServerError when it is not there."""
    for folder in (bundle / "bin", bundle):
        if (folder / name).is_file():
            return (folder / name).absolute()
    raise ServerError(
        f"{bundle} holds no bin/{name}.", hint="Give an unpacked bundle, an archive of one, or a build folder."
    )


def clean_environment(env: Mapping[str, str], *, home: Path) -> dict[str, str]:
    """What a service manager would give: no library path, no ``LLAMA_ARG_*``, no ``GGML_*``, an empty home."""
    kept = {name: env[name] for name in _KEPT_VARIABLES if name in env}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(home), **kept}


@contextlib.contextmanager
def serve(
    bundle: Path,
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    timeout: float = 600.0,
) -> Iterator[RunningServer]:
    """Run the bundle's server with ``arguments`` on a free loopback port until the block is left.

    ``env`` is the caller's environment, of which `clean_environment` keeps the choice of devices. ``timeout`` bounds
    the load, in seconds. The server, and all that it started, is ended however the block is left, and by the kernel
    when this process is killed. Call it from a thread that outlives the block (the kernel ties a child to the thread
    that made it).

    Raises ServerError when it does not come up; its ``details`` are the server's last lines.
    """
    program = find_program(bundle)
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llamabuild-home-") as home:
        clean = clean_environment(env, home=Path(home))
        for attempt in range(_BIND_ATTEMPTS):
            port = free_port()
            argv = (str(program), *arguments, "--host", "127.0.0.1", "--port", str(port))
            child = _start(argv, env=clean, log=log)
            try:
                seconds = _wait_for_health(child, port, log=log, timeout=timeout)
                if seconds is None and attempt + 1 < _BIND_ATTEMPTS:
                    continue  # somebody took the port between our look and the server's bind
                if seconds is None:
                    raise _start_failure(child, log, "it could not bind a port")
                yield RunningServer(port=port, argv=argv, log=log, process=child, load_seconds=seconds)
                return
            finally:
                end_group(child)


def ask_at_once(ask: Callable[[int], T], count: int) -> list[T]:
    """Call ``ask`` with 0, 1, … at the same time and return the answers in order.

    An interrupt does not wait for the requests: they end when the server does.
    """
    pool = ThreadPoolExecutor(count)
    try:
        return list(pool.map(ask, range(count)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def stop(server: RunningServer, *, timeout: float = 15.0) -> int:
    """Ask the server to end (SIGTERM) and return its status. Raises ServerError when it does not end in time."""
    server.process.terminate()
    try:
        return server.process.wait(timeout)
    except subprocess.TimeoutExpired as exc:
        raise server.failure(f"it did not end within {timeout:.0f} s of SIGTERM") from exc


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def read_lines(log: Path) -> list[str]:
    """A log's lines; none when it does not exist."""
    try:
        return log.read_bytes().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def telling_lines(lines: Sequence[str], count: int) -> tuple[str, ...]:
    """The last lines that a person wants to see: without the debugger's that ggml calls when it aborts."""
    return tuple([line for line in lines if line.strip() and not _DEBUGGER.match(line)][-count:])


def describe_status(status: int) -> str:
    """``with status 1`` or ``by signal 6 (Aborted)``."""
    if status >= 0:
        return f"with status {status}"
    import signal

    return f"by signal {-status} ({signal.strsignal(-status)})"


def _start(argv: tuple[str, ...], *, env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *argv],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_for_health(child: subprocess.Popen[bytes], port: int, *, log: Path, timeout: float) -> float | None:
    """Seconds until ``/health`` says 200; None when the port was taken by somebody else meanwhile."""
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        if child.poll() is not None:
            if any(_BIND_FAILED in line for line in read_lines(log)):
                return None
            raise _start_failure(child, log, "it did not start")
        if _is_healthy(port):
            return time.monotonic() - began
        time.sleep(0.05)
    raise _start_failure(child, log, f"it was not healthy after {timeout:.0f} s")


def _is_healthy(port: int) -> bool:
    import http.client

    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        asked.request("GET", "/health")
        return asked.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asked.close()


def _start_failure(child: subprocess.Popen[bytes], log: Path, what: str) -> ServerError:
    state = child.poll()
    ended = "" if state is None else f" and ended {describe_status(state)}"
    return ServerError(
        f"llama-server: {what}{ended}.",
        hint="Read the server's own lines above; the whole log is kept.",
        log=log,
        details=telling_lines(read_lines(log), 20),
    )
