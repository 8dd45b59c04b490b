"""What a build really compiles with: ``compile_commands.json``, which no cache entry can contradict."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NATIVE = frozenset({"-march=native", "-mcpu=native", "/arch:native", "-xHost"})
_CUDA_ARCH = re.compile(r"arch=compute_(\d+[af]?)")
_CUDA_CODE = re.compile(r"(?:^|[=,\[\"])(sm|compute|lto)_(\d+[af]?)")
_HIP_ARCH = re.compile(r"^--(?:offload-arch|cuda-gpu-arch|amdgpu-target)=(gfx[0-9a-z:+-]+)$")
_TARGET_FOLDER = re.compile(r"CMakeFiles/([^/]+)\.dir/")


@dataclass(frozen=True)
class Compiled:
    """What the commands of a build say together."""

    commands: int
    native_files: tuple[str, ...]
    """Sources that are compiled for the very processor of the building machine."""
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    gfx: tuple[str, ...]
    defines: frozenset[str]
    targets: frozenset[str]
    """CMake targets that have sources."""


def read_compile_commands(path: Path) -> Compiled | str:
    """Read the file; a text that says why where it cannot be read."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        return f"{path.name} could not be read: {exc}"
    if not isinstance(document, list):
        return f"{path.name} holds no list of commands"
    return _gather(each for each in document if isinstance(each, dict))


def _gather(records: Iterator[dict[str, Any]]) -> Compiled:
    native: list[str] = []
    sass: set[str] = set()
    ptx: set[str] = set()
    gfx: set[str] = set()
    defines: set[str] = set()
    targets: set[str] = set()
    count = 0
    for record in records:
        count += 1
        words = _words(record)
        # The last -march on the line is the one that counts for gcc and clang.
        marches = [word for word in words if word.startswith(("-march=", "-mcpu=")) or word in _NATIVE]
        if any(word in _NATIVE for word in marches[-1:]):
            native.append(str(record.get("file", "")))
        found = _TARGET_FOLDER.search(str(record.get("output", "")) or " ".join(words))
        if found:
            targets.add(found[1])
        defines.update(word[2:] for word in words if word.startswith("-D"))
        for word in words:
            if arch := _HIP_ARCH.match(word):
                gfx.add(arch[1])
            elif "arch=compute_" in word or word.startswith(("sm_", "compute_", "-arch=", "--gpu-architecture=")):
                _cuda_codes(word, sass, ptx)
    return Compiled(
        commands=count,
        native_files=tuple(native),
        sass=_sorted(sass),
        ptx=_sorted(ptx),
        gfx=tuple(sorted(gfx)),
        defines=frozenset(defines),
        targets=frozenset(targets),
    )


def _cuda_codes(word: str, sass: set[str], ptx: set[str]) -> None:
    """What follows the last ``code=`` counts, as in ``--generate-code=arch=compute_86,code=[compute_86,sm_86]``."""
    code = word.rpartition("code=")[2]
    for kind, number in _CUDA_CODE.findall(code):
        (sass if kind == "sm" else ptx).add(number)


def _sorted(archs: set[str]) -> tuple[str, ...]:
    return tuple(sorted(archs, key=lambda arch: (int(arch.rstrip("af")), arch)))


def _words(record: dict[str, Any]) -> list[str]:
    arguments = record.get("arguments")
    if isinstance(arguments, list):
        return [str(word) for word in arguments]
    text = str(record.get("command", ""))
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
