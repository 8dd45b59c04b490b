"""A CUDA toolkit without root, assembled from NVIDIA's wheels, which the ordinary ``pip`` client fetches."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.build.archs import listed
from llamabuild.core.errors import ToolError, UsageError
from llamabuild.core.files import atomic_folder, locked, remove_tree, sha256_file, write_json
from llamabuild.core.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.core.context import Context

_PARTS = ("nvcc", "crt", "nvvm", "cudart", "cccl", "cublas")
"""Extras of NVIDIA's meta-package ``cuda-toolkit``, which pins the parts' versions; what a llama.cpp build needs."""
_FIRST_MAJOR = 13
"""The wheels of CUDA 12 are no compiler: nvidia-cuda-nvcc-cu12 holds ptxas, and no nvcc, in 12.0 to 12.9 alike."""
_RECORD = "llamabuild-toolkit.json"
_RULES = 2
"""Raised when the assembly below changes: a toolkit that an older version made is then made anew."""
_MACHINES = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
_UNKNOWN_ERROR = 999
"""``CUDA_ERROR_UNKNOWN``: what the driver stub answers, should it ever be called."""


@dataclass(frozen=True)
class WheelToolkit:
    """An assembled toolkit."""

    root: Path
    checksums: tuple[tuple[str, str], ...]
    """Wheel file names and their SHA-256."""


def assemble_toolkit(version: str, cc: Path, context: Context) -> WheelToolkit:
    """The toolkit of a version below the home, fetched and assembled on first use.

    ``version`` is ``13.0`` (its newest release, when it is first asked for) or ``13.0.2`` (that one). ``cc`` is the C
    compiler that makes the driver stub.

    Raises UsageError for a version that is none, ToolError for one whose wheels hold no compiler, when pip cannot bring
    the wheels, or when they are not cached and the run is offline.
    """
    found = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", version)
    if found is None:
        raise UsageError(
            f"--cuda-toolkit wheels:{version}: {version!r} is no CUDA version that comes as wheels.",
            hint="Write major and minor, such as wheels:13.0, or a whole version, such as wheels:13.0.2.",
        )
    if int(found[1]) < _FIRST_MAJOR:
        raise ToolError(
            f"--cuda-toolkit wheels:{version}: NVIDIA's wheels of CUDA {found[1]} hold no nvcc, only ptxas.",
            hint=f"Take wheels:13.0, or install CUDA {version} and use --cuda-toolkit system.",
        )
    root = context.home.root / "toolkits" / f"cuda-{version}"
    with locked(context.home.locks / f"cuda-{version}.lock", on_wait=f"waiting for {root}", say=context.console.note):
        kept = _kept(root)
        if kept is not None:
            return kept
        with context.console.step(f"assemble CUDA {version} from NVIDIA's wheels"):
            wheels = _fetch(version, context)
            with atomic_folder(root) as part:
                for wheel in wheels:
                    _unpack(wheel, part)
                _complete(part, cc, context)
                checksums = {wheel.name: sha256_file(wheel) for wheel in wheels}
                write_json(part / _RECORD, {"rules": _RULES, "version": version, "wheels": checksums})
            # Half a gigabyte that the toolkit now holds unpacked.
            remove_tree(wheels[0].parent)
    made = _kept(root)
    if made is None:
        raise ToolError(f"The CUDA toolkit in {root} is not complete.", hint="Remove the folder and start again.")
    return made


def _kept(root: Path) -> WheelToolkit | None:
    try:
        record = json.loads((root / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if record.get("rules") != _RULES:
        return None
    return WheelToolkit(root=root, checksums=tuple(sorted(record["wheels"].items())))


def _fetch(version: str, context: Context) -> tuple[Path, ...]:
    """The toolkit's wheels, in a folder that is there only when a download of all of them was finished."""
    folder = context.home.downloads / f"cuda-toolkit-{version}"
    if not folder.is_dir():
        if context.offline:
            raise ToolError(
                f"The wheels of CUDA {version} are not in {folder}, and this run is offline.",
                hint="Run once without --offline, or install CUDA and use --cuda-toolkit system.",
            )
        with atomic_folder(folder) as part:
            _download(version, part, context)
    return tuple(sorted(folder.glob("nvidia_*.whl")))


def _download(version: str, folder: Path, context: Context) -> None:
    whole = version.count(".") > 1
    wanted = f"cuda-toolkit[{','.join(_PARTS)}]=={version}{'' if whole else '.*'}"
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", str(folder), wanted]
    log = context.home.logs / f"cuda-wheels-{version}.log"
    done = run(argv, env=context.env, log=log)
    if done.ok and any(folder.glob("nvidia_*.whl")):
        return
    details = tuple(line for line in done.tail if line.startswith("ERROR"))[:3]
    offered = _offered(done.text, version)
    if offered:
        raise ToolError(f"NVIDIA's wheels have no CUDA {version}.", hint=f"Take {listed(offered)}.", log=log)
    raise ToolError(
        f"pip could not bring {wanted}.",
        hint="Check that the Python package index is in reach, or install CUDA and use --cuda-toolkit system.",
        log=log,
        details=details,
    )


def _offered(text: str, version: str) -> tuple[str, ...]:
    """What can be asked for instead, by pip's list of what the index has: releases of that version, else versions."""
    told = re.search(r"\(from versions: ([^)]*)\)", text)
    # Previews (13.4.0rc1) are for those who know that they want one.
    releases = [one.split(".") for one in (told[1].split(", ") if told else ()) if re.fullmatch(r"\d+(\.\d+)+", one)]
    compilers = [parts for parts in releases if int(parts[0]) >= _FIRST_MAJOR]
    same = [parts for parts in compilers if parts[:2] == version.split(".")[:2]]
    return tuple(dict.fromkeys(f"wheels:{'.'.join(parts[: 3 if same else 2])}" for parts in same or compilers))


def _unpack(wheel: Path, root: Path) -> None:
    """Unpack a wheel's tree (``nvidia/cu13/…``) into one tree, licences apart.

    Real files, never links to a cache: nvcc finds its toolkit from its own real path.
    """
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            place = _place(member.filename)
            if member.is_dir() or place is None:
                continue
            target = root / place
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            if member.external_attr >> 16 & 0o111 or place.parts[0] == "bin" or place.parts[:2] == ("nvvm", "bin"):
                target.chmod(0o755)


def _place(member: str) -> Path | None:
    """Where a wheel's file goes; None for what is not part of the toolkit."""
    parts = Path(member).parts
    if ".." in parts or Path(member).is_absolute():
        return None
    if len(parts) > 3 and parts[0] == "nvidia" and parts[2] in {"bin", "include", "lib", "nvvm"}:
        return Path(*parts[2:])
    if len(parts) > 1 and parts[0].endswith(".dist-info") and re.search(r"licen[sc]e", member, re.IGNORECASE):
        return Path("licenses", parts[0].removesuffix(".dist-info"), parts[-1])
    return None


def _complete(root: Path, cc: Path, context: Context) -> None:
    """Add what nvcc and CMake look for and the wheels leave out."""
    library = root / "lib"
    for file in sorted(library.glob("lib*.so.*")):
        link = library / f"{file.name.partition('.so.')[0]}.so"
        if not link.exists():
            link.symlink_to(file.name)
    (root / "lib64").symlink_to("lib")
    machine = root / "targets" / _MACHINES.get(platform.machine(), "x86_64-linux")
    machine.mkdir(parents=True)
    for name in ("include", "lib"):
        (machine / name).symlink_to(f"../../{name}")
    _make_driver_stub(root, cc, context)


def _make_driver_stub(root: Path, cc: Path, context: Context) -> None:
    """A ``libcuda.so`` to link against: all that ``cuda.h`` declares, with the SONAME of the real driver.

    Were it empty, the linker would drop it, and a plugin would be left without libcuda.so.1 in NEEDED.
    """
    stubs = root / "lib" / "stubs"
    stubs.mkdir()
    env = {**context.env, "LC_ALL": "C"}
    header = run([cc, "-E", "-P", root / "include" / "cuda.h"], env=env, tail_lines=None)
    names = sorted(set(_declared(header.text)))
    source = stubs / "libcuda.c"
    lines = [f"int {name}(void) {{ return {_UNKNOWN_ERROR}; }}" for name in names]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    argv: list[str | Path] = [cc, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", stubs / "libcuda.so"]
    done = run(argv, env=env) if names else header
    if not names or not done.ok:
        raise ToolError(
            "No stub of the CUDA driver could be made from cuda.h.",
            hint=f"Check the C compiler {cc}.",
            details=done.tail[-3:],
        )


def _declared(preprocessed: str) -> Iterator[str]:
    """The driver functions of a preprocessed ``cuda.h``: under the versioned names that programs are linked to."""
    yield from re.findall(r"^\s*CUresult\s+(cu[A-Z]\w*)\s*\(", preprocessed, re.MULTILINE)
