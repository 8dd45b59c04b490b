"""What every stage is given of the outside world: where state lives, the environment, the clock and the console."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Home:
    """The folder that holds everything kept between runs (``$LLAMABUILD_HOME``, else the user's cache folder)."""

    root: Path

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Home:
        """Take ``LLAMABUILD_HOME`` of ``env``, or the platform's cache folder for this user."""
        given = env.get("LLAMABUILD_HOME")
        if given:
            return cls(Path(given).expanduser().absolute())
        import platformdirs

        return cls(Path(platformdirs.user_cache_dir("llamabuild", appauthor=False)).absolute())

    @property
    def git(self) -> Path:
        """Bare mirror repositories, shared by all recipes."""
        return self.root / "git"

    @property
    def downloads(self) -> Path:
        """Files fetched from registries and URLs, by digest or by name and version."""
        return self.root / "downloads"

    @property
    def src(self) -> Path:
        """Patched work trees, each with its build folders inside (what lets two recipes share a compile cache)."""
        return self.root / "src"

    @property
    def ccache(self) -> Path:
        """The compile cache."""
        return self.root / "ccache"

    @property
    def logs(self) -> Path:
        """Whole outputs of the tools that were run."""
        return self.root / "logs"

    @property
    def locks(self) -> Path:
        """Lock files that keep two runs apart."""
        return self.root / "locks"

    @property
    def stages(self) -> Path:
        """Records of finished stages, by stage key."""
        return self.root / "stages"


@dataclass(frozen=True)
class Context:
    """The outside world as the stages see it; tests pass their own."""

    home: Home
    console: Console = field(default_factory=Console)
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: Path = field(default_factory=Path.cwd)
    now: Callable[[], float] = time.time
    """Seconds since the epoch."""
    offline: bool = False
    """Use only what is already cached; every fetch is refused."""
