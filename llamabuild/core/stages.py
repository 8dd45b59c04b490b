"""Records of finished stages: what a stage made, under the key of what it was made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamabuild.core.files import key_of, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class FileStamp:
    """What tells that a file on disk is still the one a stage made, without reading it."""

    path: Path
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """Stamp an existing file."""
        status = path.stat()
        return cls(path=path, size=status.st_size, mtime_ns=status.st_mtime_ns)

    def holds(self) -> bool:
        """Whether the file is there, unchanged."""
        try:
            return FileStamp.of(self.path) == self
        except OSError:
            return False


@dataclass(frozen=True)
class StageStore:
    """Stage records as JSON files in one folder; a record that cannot be read counts as absent."""

    folder: Path

    def key(self, stage: str, inputs: Any) -> str:
        """The key of ``stage`` for its inputs (anything that JSON can say)."""
        return key_of({"stage": stage, "inputs": inputs})

    def save(self, key: str, result: Any, *, files: Iterable[Path] = ()) -> None:
        """Record a stage's result (JSON), and stamps of the files that it left behind."""
        stamps = [FileStamp.of(path) for path in files]
        write_json(
            self.folder / f"{key}.json",
            {"result": result, "files": [[str(s.path), s.size, s.mtime_ns] for s in stamps]},
        )

    def load(self, key: str) -> Any | None:
        """The recorded result, or None where there is none or a file it left behind has changed."""
        try:
            record = json.loads((self.folder / f"{key}.json").read_bytes())
            stamps = [FileStamp(Path(path), size, mtime) for path, size, mtime in record["files"]]
            result = record["result"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return result if all(stamp.holds() for stamp in stamps) else None
