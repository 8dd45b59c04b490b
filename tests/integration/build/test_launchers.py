"""Compile caches and farms: real servers on loopback, each ended by its own process id."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build import launchers
from llamabuild.build.launchers import check_options
from llamabuild.build.model import BuildOptions
from llamabuild.core.errors import ToolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection


def needed(program: str, package: str) -> str:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip(f"{program} is not installed (package {package})")
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(argv: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as sink, subprocess.Popen(argv, stdout=sink, stderr=sink) as server:
        try:
            deadline = time.monotonic() + 10
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                assert server.poll() is None, f"{argv[0]} ended: {log.read_text()}"
                assert time.monotonic() < deadline, f"{argv[0]} does not listen"
                time.sleep(0.05)
            yield
        finally:
            server.terminate()
            server.wait(10)


def stats(folder: Path) -> dict[str, int]:
    argv = [Path(sys.executable).with_name("ccache"), "--print-stats"]
    lines = subprocess.check_output(argv, env={"CCACHE_DIR": str(folder)}, text=True).splitlines()
    return {name: int(value) for name, value in (line.split("\t") for line in lines)}


def test_a_fleet_shares_one_cache_through_redis(small: Any, tmp_path: Path) -> None:
    redis, port = needed("redis-server", "redis-server"), free_port()
    options = BuildOptions(remote_cache=f"redis://127.0.0.1:{port}")
    argv = [redis, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    with serving(argv, port, tmp_path / "redis.log"):
        tree = small.build(small.source("one"), small.prepare(options))
        assert tree.network == "options checked"
        # Another machine: nothing but the server in common.
        other_home = type(small.context.home)(tmp_path / "other-machine")
        other = replace(small, context=replace(small.context, home=other_home))
        other.build(other.source("two"), other.prepare(options))
    counted = stats(other_home.ccache)
    assert counted["remote_storage_hit"] >= 7
    assert counted["cache_miss"] == 0


def test_two_distcc_daemons_compile_what_ccache_does_not_hold(small: Any, tmp_path: Path) -> None:
    distccd = needed("distccd", "distcc")
    needed("distcc", "distcc")
    ports = (free_port(), free_port())
    # distccd refuses to stay root.
    user = ["--user", "nobody"] if os.getuid() == 0 else []
    logs = [tmp_path / f"distccd-{port}.log" for port in ports]
    (tmp_path / "distcc").mkdir()
    hosts = " ".join(f"127.0.0.1:{port}/1,lzo" for port in ports)
    env = {**small.context.env, "DISTCC_HOSTS": hosts, "DISTCC_DIR": str(tmp_path / "distcc"), "DISTCC_FALLBACK": "0"}
    farmed = replace(small, context=replace(small.context, env=env))
    with contextlib.ExitStack() as stack:
        for port, log in zip(ports, logs, strict=True):
            argv = [distccd, "--no-detach", "--daemon", "--listen", "127.0.0.1", "--port", str(port), *user]
            argv += ["--allow", "127.0.0.1", "--log-stderr", "--log-level", "info", "--enable-tcp-insecure"]
            stack.enter_context(serving(argv, port, log))
        tree = farmed.build(farmed.source("one"), farmed.prepare(BuildOptions(farm="distcc")))
    done = [log.read_text().count("COMPILE_OK") for log in logs]
    assert sum(done) >= 7
    assert all(done), "both daemons were used"
    counted = stats(farmed.context.home.ccache)
    assert counted["cache_miss"] == 7
    # Now the cache holds it all, and no daemon is left: nothing is compiled again.
    farmed.build(farmed.source("two"), farmed.prepare(BuildOptions(farm="distcc")))
    assert stats(farmed.context.home.ccache)["cache_miss"] == 7
    server = next(file.path for file in tree.files if file.target == "llama-server")
    assert str(farmed.context.home.root).encode() not in server.read_bytes()


def in_own_network(work: Callable[[], None]) -> None:
    """Do ``work`` in a process whose network is a loopback of its own: icecc's daemons listen on every interface."""

    def child(sender: Connection) -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNET
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            work()
        except BaseException:  # noqa: BLE001 - it is told in the other process
            sender.send(traceback.format_exc())
        else:
            sender.send("")

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(sender,))
    process.start()
    try:
        failure = receiver.recv() if receiver.poll(300) else "it did not end"
    finally:
        process.kill()
        process.join()
    assert not failure, failure


@pytest.mark.slow
def test_icecc_compiles_what_ccache_does_not_hold(small: Any, tmp_path: Path) -> None:
    scheduler, daemon = needed("icecc-scheduler", "icecc"), needed("iceccd", "icecc")
    needed("icecc", "icecc")
    if os.getuid():
        pytest.skip("icecc's daemons enter a root folder for each compiler, which only root can")
    # Slow: the scheduler gives nothing to a machine under load. The daemons run as a user of their own, and a socket's
    # path is short.
    folder = Path(tempfile.mkdtemp(prefix="icecc-"))
    folder.chmod(0o777)
    net = ["-n", "llamabuild-test"]
    env = {**small.context.env, "ICECC_TEST_SOCKET": str(folder / "near.sock")}
    farmed = replace(small, context=replace(small.context, env=env))

    def start(stack: contextlib.ExitStack, argv: list[str], name: str) -> None:
        environment = {**os.environ, "ICECC_TEST_SOCKET": str(folder / f"{name}.sock")}
        server = subprocess.Popen([*argv, "-l", str(folder / f"{name}.log"), "-vvv"], env=environment)
        stack.callback(server.wait, 10)
        stack.callback(server.terminate)

    def work() -> None:
        with contextlib.ExitStack() as stack:
            start(stack, [scheduler, "-p", "18765", *net], "scheduler")
            for name, more in (("near", ["--no-remote", "-m", "0"]), ("far", ["-p", "18770", "-m", "2"])):
                base = folder / f"{name}-compilers"
                base.mkdir(mode=0o777)
                shutil.chown(base, "icecc", "icecc")
                start(stack, [daemon, "-s", "127.0.0.1:18765", "-N", name, "-b", str(base), *more, *net], name)
            wait_for(folder / "scheduler.log", "login near", "login far")
            farmed.build(farmed.source("one"), farmed.prepare(BuildOptions(farm="icecc")))
            # How many it hands on is the scheduler's to say.
            assert "Remote compilation completed with exit code 0" in (folder / "far.log").read_text()
            assert stats(farmed.context.home.ccache)["cache_miss"] == 7

    try:
        in_own_network(work)
    finally:
        shutil.rmtree(folder)
    # Now the cache holds it all, and no daemon is left: nothing is compiled again.
    tree = farmed.build(farmed.source("two"), farmed.prepare(BuildOptions(farm="icecc")))
    assert stats(farmed.context.home.ccache)["cache_miss"] == 7
    server = next(file.path for file in tree.files if file.target == "llama-server")
    assert str(farmed.context.home.root).encode() not in server.read_bytes()


def wait_for(log: Path, *words: str) -> None:
    deadline = time.monotonic() + 60
    while not log.exists() or not all(word in log.read_text() for word in words):
        assert time.monotonic() < deadline, f"{words} not in {log}"
        time.sleep(0.1)


def test_sccache_shares_between_trees_too(small: Any) -> None:
    sccache = Path(sys.executable).with_name("sccache")
    if not sccache.exists():
        pytest.skip("sccache is not installed")
    made = small.prepare(BuildOptions(launcher="sccache"))
    small.build(small.source("one"), made)
    tree = small.build(small.source("two"), made)
    (server,) = (small.context.home.root / "sccache").glob("server-*")
    env = {**small.context.env, "SCCACHE_SERVER_UDS": str(server)}
    shown = subprocess.run([sccache, "--stop-server"], env=env, check=True, capture_output=True, text=True).stdout
    hits = next(line.split()[-1] for line in shown.splitlines() if line.startswith("Cache hits  "))
    assert int(hits) >= 6
    for file in tree.files:
        assert str(small.context.home.root).encode() not in file.path.read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (BuildOptions(launcher="sccache", farm="distcc"), "sccache cannot hand on"),
        (BuildOptions(launcher="none", remote_cache="redis://h"), "needs a cache"),
        (BuildOptions(launcher="ccache", remote_cache="s3://bucket/prefix"), "no remote storage"),
        (BuildOptions(launcher="ccache", remote_cache="ftp://h"), "no remote storage"),
    ],
)
def test_what_does_not_go_together_is_refused(options: BuildOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_options(options)


@pytest.mark.parametrize(
    ("remote", "message", "hint"),
    [
        ("redis://", "is no URL with a host", "redis://HOST:6379"),
        ("redis://h:port", "is no URL with a host", "redis://HOST:6379"),
        ("http:///x", "is no URL with a host", "http://HOST"),
        ("https://[::1/x", "is no URL with a host", "https://HOST"),
        ("s3:///prefix", "is no URL with a bucket", "s3://BUCKET"),
        ("s3://b/p?regoin=x", "no setting 'regoin'", "Did you mean region?"),
        ("s3://b/p?region=", "region is empty", "region=REGION"),
    ],
)
def test_a_remote_cache_that_names_no_place_is_refused(remote: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check_options(BuildOptions(launcher="sccache", remote_cache=remote))
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("launcher", "remote"),
    [
        ("ccache", "redis://:password@h:6379/1"),
        ("ccache", "http://h/x|layout=bazel"),
        ("ccache", "redis://h|read-only=true"),
        ("sccache", "https://[::1]:8080/x"),
        ("sccache", "s3://b/p?region=x&endpoint=h:9000"),
    ],
)
def test_a_remote_cache_as_its_launcher_takes_it(launcher: Any, remote: str) -> None:
    check_options(BuildOptions(launcher=launcher, remote_cache=remote))


def test_a_remote_cache_that_does_not_answer_is_told_before_the_build(small: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        small.prepare(BuildOptions(remote_cache=f"redis://:secret@127.0.0.1:{port}"))
        assert small.said == ""
    small.prepare(BuildOptions(remote_cache=f"redis://:secret@127.0.0.1:{port}"))
    assert f"warning: the remote cache at 127.0.0.1:{port} does not answer (Connection refused)" in small.said
    assert "will not be shared" in small.said
    assert "secret" not in small.said
    with contextlib.suppress(ToolError):  # where sccache is not installed
        small.prepare(BuildOptions(launcher="sccache", remote_cache=f"http://127.0.0.1:{port}/x"))
    assert "does not answer (Connection refused): sccache will not start" in small.said


def test_a_launcher_that_is_not_there_is_told_with_its_package(small: Any) -> None:
    with pytest.raises(ToolError, match="icecc") as caught:
        small.prepare(BuildOptions(farm="icecc"), env={"PATH": "/usr/bin-without"})
    assert "icecc was not found." in caught.value.details


def relative(source: Path, folder: Path, words: list[str]) -> list[str]:
    """What a program gets to see that is started through the launcher in ``folder``."""
    script = Path(launchers.__file__).with_name("relative_paths.sh")
    argv = ["/bin/sh", script, source, sys.executable, "-c", "import sys; print(*sys.argv[1:], sep='\\n')", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("below", ["", "build-cpu", "build-cpu/sub/folder"])
@pytest.mark.parametrize("name", ["tree", "a tree", "t*[r]e'\\e"])
def test_paths_below_the_tree_are_made_relative_and_definitions_are_kept(tmp_path: Path, name: str, below: str) -> None:
    tree = tmp_path / name
    folder = tree / below
    folder.mkdir(parents=True)
    up = os.path.relpath(tree, folder)
    words = [f"-I{tree}/include", "-isystem", f"{tree}/x y", f"-DDIR={tree}/y", "-o", "a.o", f"{tree}s/b", "", "-Wa,*"]
    assert relative(tree, folder, [*words, f"-Wl,{tree}/a,{tree}/b"]) == [
        *[f"-I{up}/include", "-isystem", f"{up}/x y", f"-DDIR={tree}/y", "-o", "a.o", f"{tree}s/b", "", "-Wa,*"],
        f"-Wl,{up}/a,{up}/b",
    ]


def test_paths_are_kept_where_the_compiler_is_started_outside_of_the_tree(tmp_path: Path) -> None:
    assert relative(tmp_path / "tree", tmp_path, [f"{tmp_path}/tree/a.c"]) == [f"{tmp_path}/tree/a.c"]
