"""Archives of patch files."""

from __future__ import annotations

import tarfile
import zipfile
from typing import TYPE_CHECKING

from llamabuild.core.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = (".patch", ".diff")
"""What a patch file's name ends in."""


def patch_files_in(archive: Path) -> dict[str, bytes]:
    """The patch files of an archive by their names without the folders."""
    found: dict[str, bytes] = {}
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as source:
                for name in source.namelist():
                    if name.endswith(SUFFIXES):
                        found[name.rsplit("/", 1)[-1]] = source.read(name)
            return found
        with tarfile.open(archive) as source:
            for member in source:
                if member.name.endswith(SUFFIXES) and (handle := source.extractfile(member)) is not None:
                    found[member.name.rsplit("/", 1)[-1]] = handle.read()
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as exc:
        raise SourceError(f"{archive} is not an archive that can be read: {exc}.", hint="Check the URL.") from exc
    return found
