"""The git program, run on a repository of a test: what our results are compared with."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-09-01T10:00:00+0200",
    "GIT_COMMITTER_NAME": "Bea",
    "GIT_COMMITTER_EMAIL": "bea@example.org",
    "GIT_COMMITTER_DATE": "2026-09-02T10:00:00+0200",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


@dataclass(frozen=True)
class Git:
    """A repository and its work tree."""

    path: Path

    @classmethod
    def new(cls, path: Path, *, bare: bool = False) -> Git:
        path.mkdir(parents=True)
        repository = cls(path)
        repository("init", "--quiet", "--initial-branch=master", *(["--bare"] if bare else []))
        repository("config", "gc.auto", "0")
        return repository

    def run(
        self, *words: str | Path, data: bytes | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", *map(str, words)],
            cwd=self.path,
            input=data,
            env={**os.environ, **IDENTITY, **(env or {})},
            capture_output=True,
            check=False,
        )

    def __call__(self, *words: str | Path, data: bytes | None = None, env: dict[str, str] | None = None) -> str:
        done = self.run(*words, data=data, env=env)
        if done.returncode:
            raise AssertionError(f"git {' '.join(map(str, words))}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode(errors="surrogateescape").strip()

    def write(self, files: dict[str, bytes | str | None]) -> None:
        """Write files into the work tree; None removes."""
        for name, data in files.items():
            target = self.path / name
            if data is None:
                target.unlink()
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data.encode() if isinstance(data, str) else data)

    def commit(self, files: dict[str, bytes | str | None], message: str = "change") -> str:
        """Write files, commit everything, and return the id."""
        self.write(files)
        self("add", "--all")
        self("commit", "--quiet", "--allow-empty", "--message", message)
        return self("rev-parse", "HEAD")

    def tree(self, revision: str = "HEAD") -> str:
        return self("rev-parse", f"{revision}^{{tree}}")
