"""Names of bundles: the top folder's and the archives'."""

from __future__ import annotations

import re

from llamabuild.core.errors import UsageError

_PLAIN = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+-]*")
_MISLEADING = ("rocblas.", "hipblaslt.")
_LONGEST = 200


def bundle_name(label: str, target: str, arch: str) -> str:
    """``llama-<label>-<target>[-<arch>]``, without the colons of ``gfx90a:xnack-``.

    GNU tar takes what stands before a colon in an archive's name for a host.
    """
    return "-".join(part for part in ("llama", label, target, arch) if part).replace(":", "-")


def check_name(name: str) -> str:
    """The name as given, if it can be a folder's and an archive's on every system.

    Raises UsageError for a path, for characters that tar, shells or other systems give a meaning, and for a name that
    misleads rocBLAS: it takes the folder of the last loaded file whose path contains ``rocblas.`` for its own.
    """
    if not _PLAIN.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"--name: {name!r} cannot be the name of a bundle's folder and archives.",
            hint=f"Use letters, digits and . _ + - alone, at most {_LONGEST}, and begin with none of . and -.",
        )
    for word in _MISLEADING:
        if word in name:
            raise UsageError(
                f"--name: {name!r} contains {word!r}, by which a library of ROCm knows the file that it was loaded "
                "from, so every file of the bundle would pass for it.",
                hint=f"Leave the dot out: {name.replace(word, word.replace('.', '-'))}.",
            )
    return name


def name_from(text: str) -> str:
    """What of a folder's name can stand in a bundle's name; ``build`` where nothing is left."""
    for word in _MISLEADING:
        text = text.replace(word, word.replace(".", "-"))
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text)[: _LONGEST // 2].strip(".-") or "build"
