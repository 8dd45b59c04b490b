"""Failures a user can meet: each has an exit code of the command line contract, a sentence and a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path


class LlamabuildError(Exception):
    """A failure that is told to the user in one sentence, never as a traceback.

    ``message`` says what failed and where, ``hint`` what to do about it, ``log`` where the whole output is kept,
    ``details`` are lines shown below the sentence (a compiler's first errors, the two sides of a conflict).
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self, message: str, *, hint: str | None = None, log: Path | None = None, details: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.log = log
        self.details = details


class VerificationError(LlamabuildError):
    """Verification ran and found errors."""

    exit_code = 1


class UsageError(LlamabuildError):
    """The command line, or a file named on it, cannot be used."""

    exit_code = 2


class RecipeError(LlamabuildError):
    """A recipe or series manifest is not valid."""

    exit_code = 2


class SourceError(LlamabuildError):
    """A source could not be resolved or fetched, or is not the one that was pinned."""

    exit_code = 3


class PatchError(LlamabuildError):
    """A patch did not apply."""

    exit_code = 4


class ToolError(LlamabuildError):
    """A tool is missing, too old, or does not do what the target needs."""

    exit_code = 5


class BuildError(LlamabuildError):
    """CMake's configure step or the build failed."""

    exit_code = 6


class BundleError(LlamabuildError):
    """A bundle or an archive could not be made."""

    exit_code = 7
