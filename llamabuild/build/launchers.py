"""Compile caches and compile farms: what stands before the compiler, and how it is set."""

from __future__ import annotations

import difflib
import re
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, urlsplit

from llamabuild.build import shader_cache
from llamabuild.build.archs import listed
from llamabuild.core.errors import UsageError
from llamabuild.core.files import atomic_write, key_of

if TYPE_CHECKING:
    from llamabuild.build.host import Host
    from llamabuild.build.model import BuildOptions, Target, Toolchain
    from llamabuild.core.console import Console
    from llamabuild.core.context import Context
    from llamabuild.core.process import Completed


_REMOTE = {"ccache": ("redis", "http"), "sccache": ("redis", "rediss", "http", "https", "s3")}
"""URL schemes of shared storage that each cache knows."""
_EXAMPLES = {
    "redis": "redis://HOST:6379",
    "rediss": "rediss://HOST:6379",
    "http": "http://HOST:8080/FOLDER",
    "https": "https://HOST/FOLDER",
    "s3": "s3://BUCKET/PREFIX?region=REGION&endpoint=HOST",
}
_S3_SETTINGS = ("region", "endpoint")
"""What may follow the question mark; there is no standard for such URLs, so these are our own."""
_PORTS = {"redis": 6379, "rediss": 6379, "http": 80, "https": 443}
"""The usual ports, of the schemes whose host is in the URL."""
_CONNECT_SECONDS = 3.0
_SOCKET_PATH_MAX = 100
"""The kernel's limit is 108 bytes (unix(7)); beyond it sccache's usual port has to do."""
_FARM_SETTINGS = ("DISTCC_", "ICECC_")


def _python() -> str:
    """The Python that runs us, by the name that every environment has.

    What CMake is given, and BUILD_INFO tells, must not depend on whether we were started as ``python`` or ``python3``.
    """
    named = Path(sys.executable).with_name("python3")
    return str(named if named.exists() else sys.executable)


def needs_network(options: BuildOptions) -> bool:
    """Whether the compile step itself talks to others: a farm, shared storage, or a cache that is a server.

    sccache is a server on this machine, and one that is started inside a namespace would outlive it there.
    """
    return options.farm is not None or options.remote_cache is not None or options.launcher == "sccache"


def launcher_entries(target: Target, toolchain: Toolchain, *, source: Path) -> dict[str, str]:
    """CMake's launcher entries for the languages of a target; each is given paths made relative.

    ccache makes them relative too, but not when it fails inside and runs the compiler as it was told: two CUDA objects
    of a long build were seen to get the absolute paths that way.
    A farm takes C and C++ alone: nvcc and the HIP compiler would be sent sources that the other side cannot compile.
    """
    cache = toolchain.tool(toolchain.options.launcher)
    farm = toolchain.tool(toolchain.options.farm or "")
    entries = {}
    for language in ("C", "CXX", *(name.upper() for name in ("cuda", "hip") if name in target.backends)):
        helper = farm if language in {"C", "CXX"} else None
        words = ["/bin/sh", str(Path(__file__).with_name("relative_paths.sh")), str(source)]
        if cache:
            words.append(str(cache.path))
        if helper:
            # Settings between ccache and the compiler hold for this call alone.
            words.append(f"prefix_command={helper.path}" if cache else str(helper.path))
        entries[f"CMAKE_{language}_COMPILER_LAUNCHER"] = ";".join(words)
    return entries


def shader_entries(toolchain: Toolchain, context: Context) -> dict[str, str]:
    """Glslc behind our own cache of shaders, at a place that is the same for every tree."""
    glslc = toolchain.tool("glslc")
    if glslc is None or toolchain.options.launcher == "none":
        return {}
    state = glslc.path.resolve().stat()
    identity = f"{glslc.path.resolve()} {glslc.version} {state.st_size} {state.st_mtime_ns}"
    script = Path(shader_cache.__file__)
    words = [_python(), "-I", "-S", str(script), str(glslc.path), identity, str(context.home.root / "shaders")]
    text = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    wrapper = context.home.root / "tools" / f"glslc-{key_of(identity)[:12]}" / "glslc"
    if not wrapper.is_file() or wrapper.read_text(encoding="utf-8") != text:
        with atomic_write(wrapper, mode=0o755) as handle:
            handle.write(text.encode())
    return {"Vulkan_GLSLC_EXECUTABLE": str(wrapper)}


def check_options(options: BuildOptions) -> None:
    """Refuse what does not go together. Raises UsageError."""
    scheme = options.remote_cache.partition("://")[0] if options.remote_cache else ""
    if options.farm and options.launcher == "sccache":
        raise UsageError(
            f"--launcher sccache with {options.farm}: sccache cannot hand on what it does not hold.",
            hint=f"Use ccache with {options.farm}, or {options.farm} alone.",
        )
    if scheme and options.launcher == "none":
        raise UsageError("A remote cache needs a cache in front of it.", hint="Use --launcher ccache or sccache.")
    known = _REMOTE.get(options.launcher, ())
    if scheme and scheme not in known:
        other = next((name for name, schemes in _REMOTE.items() if scheme in schemes), None)
        hint = f"--launcher {other} knows it." if other else f"Use {listed(f'{name}://' for name in known)}."
        raise UsageError(f"{options.launcher} has no remote storage at {options.remote_cache}.", hint=hint)
    if options.remote_cache:
        _check_remote(options.remote_cache)


def _check_remote(remote: str) -> None:
    """Refuse a URL without its host or bucket, or with settings that nobody reads. Raises UsageError."""
    parts, scheme = _split(remote), remote.partition("://")[0]
    what = "bucket" if scheme == "s3" else "host"
    shown = re.sub(r"//[^/@]*@", "//", remote)  # a password is nobody's in a CI log
    if parts is None or not parts.hostname:
        raise UsageError(f"--remote-cache {shown} is no URL with a {what}.", hint=f"Write it as {_EXAMPLES[scheme]}.")
    if scheme != "s3":
        return
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _S3_SETTINGS:
            near = difflib.get_close_matches(name, _S3_SETTINGS, n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"--remote-cache {shown}: an s3:// URL has no setting {name!r}.",
                hint=f"{hint}It has {listed(_S3_SETTINGS)}.",
            )
        if not value:
            raise UsageError(f"--remote-cache {shown}: {name} is empty.", hint=f"Write it as {_EXAMPLES[scheme]}.")


def _split(remote: str) -> SplitResult | None:
    """A URL's parts, ccache's own attributes behind a bar left out; None for a port or an address that is none."""
    try:
        parts = urlsplit(re.split(r"[|\s]", remote)[0])
        _ = parts.port
    except ValueError:
        return None
    return parts


def warn_unreachable(options: BuildOptions, console: Console) -> None:
    """Say when nobody answers at a remote cache's address: ccache itself goes on without a word."""
    parts = _split(options.remote_cache or "")
    if parts is None or parts.scheme not in _PORTS or not parts.hostname:
        return
    address = (parts.hostname, parts.port or _PORTS[parts.scheme])
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError as failure:
        reason = failure.strerror or str(failure)
        # sccache's server does not start without its storage, and every compile then fails.
        then = "sccache will not start" if options.launcher == "sccache" else "what is compiled here will not be shared"
        console.warn(f"the remote cache at {address[0]}:{address[1]} does not answer ({reason}): {then}")


def farm_machines(host: Host) -> tuple[str, ...]:
    """The machines, as distcc lists them, that it hands on to; this one is left out."""
    shown = _ask_distcc("--show-hosts", host)
    lines = (line.strip() for line in shown.tail) if shown.ok else ()
    # A port of its own on this machine may well be a tunnel to another one.
    here = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(/.*)?|--.*|")
    return tuple(line for line in lines if not here.fullmatch(line))


def farm_slots(host: Host) -> int:
    """How many files distcc compiles at once, all its machines together; 0 where it cannot tell."""
    slots = _ask_distcc("-j", host).text.strip()
    return int(slots) if slots.isdecimal() else 0


def _ask_distcc(question: str, host: Host) -> Completed:
    settings = [f"{name}={value}" for name, value in host.env.items() if name.startswith("DISTCC_")]
    return host.run(["env", *settings, "distcc", question])


def warn_idle_farm(options: BuildOptions, host: Host, console: Console) -> None:
    """Say when distcc has nobody to hand on to: it then compiles everything here, without a word."""
    if options.farm == "distcc" and not farm_machines(host):
        console.warn(
            "distcc knows no other machine, so that everything is compiled on this one: name some in DISTCC_HOSTS or "
            "~/.distcc/hosts"
        )


def launcher_env(options: BuildOptions, *, source: Path, context: Context) -> dict[str, str]:
    """Environment of the launcher, the farm's settings of the caller included.

    ccache: paths relative within the home, which holds all source trees and toolkits, and the working folder left out
    of the hash, so that the same file in another tree is a hit. A prefix map would differ between the trees and spoil
    it. A shared cache knows compilers by their content: their times differ from machine to machine.
    """
    kept = (
        {name: value for name, value in context.env.items() if name.startswith(_FARM_SETTINGS)} if options.farm else {}
    )
    if options.launcher == "ccache":
        common = context.home.root.resolve()
        base = str(common if source.is_relative_to(common) else source.parent)
        own = {"CCACHE_DIR": str(context.home.ccache), "CCACHE_BASEDIR": base, "CCACHE_NOHASHDIR": "1"}
        if options.remote_cache:
            own |= {"CCACHE_REMOTE_STORAGE": options.remote_cache, "CCACHE_COMPILERCHECK": "content"}
        return {**kept, **own}
    if options.launcher == "sccache":
        return {**kept, **_sccache_env(options.remote_cache, context)}
    return kept


def _sccache_env(remote: str | None, context: Context) -> dict[str, str]:
    """Sccache's settings; its server is one of our own, on a socket in the home, and ends when nothing asks it."""
    folder = context.home.root / "sccache"
    socket = str(folder / f"server-{key_of(remote)[:8]}")
    env = {"SCCACHE_DIR": str(folder), "SCCACHE_IDLE_TIMEOUT": "60"}
    if len(socket) < _SOCKET_PATH_MAX:
        env["SCCACHE_SERVER_UDS"] = socket
    folder.mkdir(parents=True, exist_ok=True)
    parts = urlsplit(remote or "")
    if parts.scheme in {"redis", "rediss"}:
        env["SCCACHE_REDIS_ENDPOINT"] = str(remote)
    elif parts.scheme in {"http", "https"}:
        env["SCCACHE_WEBDAV_ENDPOINT"] = str(remote)
    elif parts.scheme == "s3":
        options = dict(parse_qsl(parts.query))
        env["SCCACHE_BUCKET"] = parts.netloc
        env |= {"SCCACHE_S3_KEY_PREFIX": parts.path.strip("/")} if parts.path.strip("/") else {}
        env |= {f"SCCACHE_{name.upper()}": options[name] for name in _S3_SETTINGS if name in options}
        env |= {name: value for name, value in context.env.items() if name.startswith("AWS_")}
    return env
