"""The PyPI provider: a folder inside a source archive, fetched by the ordinary client without building it."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import SourceError
from llamabuild.core.process import run
from llamabuild.source.folder import TreeWriter
from llamabuild.source.pip import failure_reason, pip_command

if TYPE_CHECKING:
    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.model import MirrorSpec

_PIP_SECONDS = 900.0
_PIP_OPTIONS = (
    *("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--use-pep517"),
    *("--progress-bar", "off", "--disable-pip-version-check"),
)

_SITECUSTOMIZE = '''\
"""Answers pip's question for a source archive's metadata, so that nothing of the archive is run to download it."""
import os, sys, types

_backend = os.environ.get("_PYPROJECT_HOOKS_BUILD_BACKEND") or os.environ.get("PEP517_BUILD_BACKEND")
_place = os.environ.get("_PYPROJECT_HOOKS_BACKEND_PATH") or os.environ.get("PEP517_BACKEND_PATH")
if _backend:
    _name, _version = os.environ["LLAMABUILD_SDIST"].split("==")

    def prepare_metadata_for_build_wheel(folder, config_settings=None):
        info = _name.replace("-", "_") + "-" + _version + ".dist-info"
        os.makedirs(os.path.join(folder, info))
        with open(os.path.join(folder, info, "METADATA"), "w") as handle:
            handle.write("Metadata-Version: 2.1\\nName: " + _name + "\\nVersion: " + _version + "\\n")
        return info

    _parts = _backend.split(":")[0].split(".")
    for _end in range(1, len(_parts) + 1):
        _module = sys.modules[".".join(_parts[:_end])] = types.ModuleType(".".join(_parts[:_end]))
        _module.__path__ = []
        # pip insists that a backend with a backend-path lies on it.
        _module.__file__ = os.path.join((_place or __file__).split(os.pathsep)[0], "stand-in.py")
        _module.prepare_metadata_for_build_wheel = prepare_metadata_for_build_wheel
        _module.get_requires_for_build_wheel = lambda config_settings=None: []
        for _part in _backend.partition(":")[2].split("."):
            setattr(_module, _part or "_", _module)
        if _end > 1:
            setattr(sys.modules[".".join(_parts[: _end - 1])], _parts[_end - 1], _module)
'''


def tree_from_pypi(repository: pygit2.Repository, spec: MirrorSpec, context: Context) -> str:
    """Write the folder of the source archive as a git tree; returns its id.

    Raises SourceError when the archive cannot be fetched or has no such folder.
    """
    archive = download_sdist(spec.package, spec.version, context)
    writer = TreeWriter(repository)
    prefix = spec.member.strip("/") + "/"
    try:
        with tarfile.open(archive) as source:
            for member in source:
                _, _, inner = member.name.partition("/")
                if not inner.startswith(prefix):
                    continue
                name = inner.removeprefix(prefix)
                if member.issym():
                    writer.add(name, member.linkname.encode(), link=True)
                elif member.isreg() and (handle := source.extractfile(member)) is not None:
                    writer.add(name, handle.read(), executable=bool(member.mode & 0o100))
    except (tarfile.TarError, EOFError, OSError) as exc:
        archive.unlink(missing_ok=True)
        raise SourceError(
            f"The source archive of {spec.package} {spec.version} cannot be read: {exc}.",
            hint="It is fetched anew next time.",
        ) from exc
    if writer.empty:
        raise SourceError(
            f"The source archive of {spec.package} {spec.version} has no folder {spec.member}.",
            hint="Check the member in the recipe.",
        )
    return writer.write()


def download_sdist(package: str, version: str, context: Context) -> Path:
    """The source archive of a release, by ``pip download``, kept in the downloads.

    pip prepares the metadata of what it downloads, which runs the archive's build backend and takes a minute for a
    big project. A stand-in backend answers instead: nothing is built and no code of the archive runs.
    """
    folder = context.home.downloads / "pypi"
    kept = folder / f"{package}-{version}.tar.gz"
    if kept.is_file():
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pip-") as name:
        scratch = Path(name)
        (scratch / "stub").mkdir()
        (scratch / "stub" / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        done = run(
            [*pip_command(context), "download", *_PIP_OPTIONS, "--dest", str(scratch / "out"), f"{package}=={version}"],
            env={**context.env, "PYTHONPATH": str(scratch / "stub"), "LLAMABUILD_SDIST": f"{package}=={version}"},
            log=context.home.logs / "pip.log",
            timeout=_PIP_SECONDS,
        )
        archives = sorted((scratch / "out").glob("*.tar.gz"))
        if not done.ok or len(archives) != 1:
            raise SourceError(
                f"pip could not fetch the source archive of {package} {version}: {failure_reason(done.tail)}.",
                log=context.home.logs / "pip.log",
            )
        archives[0].replace(kept)
    return kept
