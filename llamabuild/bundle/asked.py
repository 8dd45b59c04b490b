"""What a user asks of the bundle of a foreign build, refused where it does not fit the build."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamabuild.build.archs import check_archs
from llamabuild.bundle.archs import base_arch
from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from llamabuild.build.model import BuildTree

_LATEST = (1 << 33) - 1
"""Seconds since the epoch that a tar header has room for: the year 2242."""
_FEATURES = re.compile(r"(?::(?:sramecc|xnack)[+-])*|-xnack[+-]")


def check_asked(build: BuildTree, *, arch: str, keep: Sequence[str], rocm: Path | None, cuda: Path | None) -> None:
    """Refuse a vendor's tree and archs that are of no use to the build.

    ``keep``: archs whose device files are kept besides ``arch``. Raises UsageError.
    """
    backends = build.target.backends
    has = f"{build.folder} is a build for {' and '.join(backends)}"
    if rocm is not None and cuda is not None:
        raise UsageError("--rocm and --cuda are both given.", hint="A bundle has one vendor's runtime: name one.")
    for option, given, backend in (("--rocm", rocm, "hip"), ("--cuda", cuda, "cuda"), ("--keep-archs", keep, "hip")):
        if given and backend not in backends:
            raise UsageError(
                f"{option}: {has}, and only one for {backend} has any use for it.",
                hint=f"Leave {option} out, or name another build.",
            )
    if arch in {"auto", "native"}:
        raise UsageError(
            f"--arch: a build that exists has archs of its own, and {arch} names none of them.",
            hint="Name the one that the bundle is for, such as 86 or gfx1100.",
        )
    if "hip" in backends:
        if not arch:
            raise UsageError(
                f"{build.folder} is a HIP build, and device files are bundled for one arch.",
                hint="Say which with --arch, such as gfx1100 (`rocminfo | grep gfx` names the card's).",
            )
        _check_gfx(arch, option="--arch")
        for one in keep:
            _check_gfx(one, option="--keep-archs")
    elif arch and "cuda" in backends:
        check_archs(arch, backend="cuda", single=False, where="--arch")
    elif arch:
        raise UsageError(f"--arch: {has}, and a bundle without cuda or hip is for no arch.", hint="Leave --arch out.")


def _check_gfx(arch: str, *, option: str) -> None:
    names = [name for name in re.split(r"[,;\s]+", arch) if name]
    if len(names) > 1:
        raise UsageError(
            f"{option}: {arch!r} is a list, and a bundle is for one arch.",
            hint=f"Give --arch {names[0]}, and the others with --keep-archs {','.join(names[1:])}.",
        )
    base = base_arch(arch)
    if re.fullmatch(r"[1-9][0-9a-f]{2,3}", base):
        raise UsageError(f"{option}: {arch!r} is not an AMD arch.", hint=f"Write it gfx{arch}.")
    check_archs(base, backend="hip", single=True, where=option)
    if not _FEATURES.fullmatch(arch.removeprefix(base)):
        raise UsageError(
            f"{option}: {arch!r} is not an AMD arch.", hint=f"Write {base} alone, or with its features: {base}:xnack-."
        )


def date_asked(env: Mapping[str, str]) -> int | None:
    """``SOURCE_DATE_EPOCH`` in seconds, None where it is not set.

    Raises UsageError for what is no number of seconds that an archive can hold.
    """
    given = env.get("SOURCE_DATE_EPOCH", "")
    if not given:
        return None
    if not (given.isascii() and given.isdecimal()) or len(given) > len(str(_LATEST)) or int(given) > _LATEST:
        raise UsageError(
            f"SOURCE_DATE_EPOCH: {given!r} is no date that the files of an archive can have.",
            hint="Set it to seconds since 1970, as `git log -1 --format=%ct` prints them, or unset it.",
        )
    return int(given)
