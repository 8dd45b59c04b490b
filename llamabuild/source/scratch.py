"""A repository to try things in: it sees what a mirror has, and leaves nothing in it."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pygit2

    from llamabuild.core.context import Context


@contextlib.contextmanager
def scratch_repository(mirror: Path, context: Context) -> Iterator[pygit2.Repository]:
    """A bare repository that borrows a mirror's objects and is gone afterwards."""
    import pygit2

    context.home.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=context.home.root, prefix=".scratch-") as name:
        repository = pygit2.init_repository(name, bare=True)
        # Nothing here outlives the run, so nothing has to reach the disk.
        repository.config["core.fsyncObjectFiles"] = "false"
        repository.config["merge.renameLimit"] = "7000"
        repository.odb.add_disk_alternate(str(mirror / "objects"))
        info = Path(name) / "objects" / "info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "alternates").write_text(f"{mirror / 'objects'}\n")
        if (mirror / "shallow").is_file():
            (Path(name) / "shallow").write_bytes((mirror / "shallow").read_bytes())
        repository.free()
        yield pygit2.Repository(name, pygit2.enums.RepositoryOpenFlag.BARE)
