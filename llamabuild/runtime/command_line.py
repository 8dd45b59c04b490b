"""A server's command line, from words, a systemd unit or an environment file, as flags with values."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llamabuild.runtime.help_flags import Flag, Flags

_WRAPPERS = frozenset({"env", "nice", "ionice", "numactl", "taskset", "exec", "sudo", "nohup", "time", "chrt"})
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Given:
    """A flag as it was given."""

    word: str
    """As it was written: a name, or the variable that set it."""
    flag: Flag | None
    """None for one that the program does not know."""
    values: tuple[str, ...]
    missing: bool = False
    """Whether the line ends before its value."""


@dataclass(frozen=True)
class CommandLine:
    """A program with its flags."""

    program: str
    given: tuple[Given, ...]
    stray: tuple[str, ...]
    """Words that belong to no flag."""
    env: Mapping[str, str]

    def value(self, name: str) -> str | None:
        """The value that counts (the last one), by any of the flag's names; None when it is not given."""
        found = [one for one in self.given if one.flag and name in one.flag.names and one.values]
        return found[-1].values[0] if found else None

    def number(self, name: str, default: int = 0) -> int:
        """A value as a number; ``default`` where it is absent or none."""
        try:
            return int(self.value(name) or default)
        except ValueError:
            return default

    def has(self, name: str) -> bool:
        """Whether a flag is given, by any of its names; for a pair such as ``--perf, --no-perf`` by this very one."""
        return any(one.flag and name in one.flag.names and _same_side(one, name) for one in self.given)


def _same_side(one: Given, name: str) -> bool:
    def negative(word: str) -> bool:
        return word.startswith(("--no-", "-no-", "-nkvo", "-nr", "-nocb"))

    return not one.flag or one.flag.values > 0 or negative(one.word) == negative(name)


def parse_words(words: Sequence[str], flags: Flags, *, env: Mapping[str, str] | None = None) -> CommandLine:
    """Parse as ``common/arg.cpp`` does: a flag takes the words after it, and variables come before the line.

    A leading program, with wrappers and assignments before it, is taken off.
    """
    rest, assigned = _program_first(list(words))
    variables = {**(env or {}), **assigned}
    by_env = flags.by_env()
    given = [
        Given(name, by_env[name], (value,) if by_env[name].values else ())
        for name, value in variables.items()
        if name in by_env
    ]
    stray = []
    program = ""
    if rest and not rest[0].startswith("-"):
        program = Path(rest.pop(0)).name
    while rest:
        word = rest.pop(0)
        flag = flags.find(word)
        if flag is not None:
            values = tuple(rest[: flag.values])
            del rest[: flag.values]
            given.append(Given(word, flag, values, missing=len(values) < flag.values))
        elif word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            # The words after an unknown flag are most likely its own.
            values = tuple(_leading_values(rest))
            del rest[: len(values)]
            given.append(Given(word, None, values))
        else:
            stray.append(word)
    return CommandLine(program=program, given=tuple(given), stray=tuple(stray), env=variables)


def _leading_values(words: Sequence[str]) -> list[str]:
    found = []
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            break
        found.append(word)
    return found


def _program_first(words: list[str]) -> tuple[list[str], dict[str, str]]:
    assigned: dict[str, str] = {}
    start = 0
    for place, word in enumerate(words):
        if word.startswith("-") and place == 0:
            break
        if re.fullmatch(r"[A-Za-z_]\w*=.*", word):
            name, _, value = word.partition("=")
            assigned[name] = value
        elif Path(word).name.startswith("llama-") or Path(word).name == "llama":
            start = place
            break
        elif Path(word).name not in _WRAPPERS and place == 0:
            break
    else:
        return words, {}
    return words[start:], assigned


def read_unit(path: Path) -> tuple[list[str], dict[str, str]]:
    """The words of a systemd unit's ``ExecStart=`` and its variables. Raises UsageError when there is none."""
    words: list[str] | None = None
    env: dict[str, str] = {}
    for line in _lines(path):
        key, _, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if key == "ExecStart":
            words = _split(path, value.lstrip("@-:+!")) if value else None
        elif key == "Environment":
            env.update(dict(pair.split("=", 1) for pair in _split(path, value) if "=" in pair))
        elif key == "EnvironmentFile":
            optional = value.startswith("-")
            file = Path(value.removeprefix("-"))
            if file.is_file() or not optional:
                env.update(read_environment_file(file))
    if not words:
        raise UsageError(f"{path} has no ExecStart= line.", hint="Give a service unit, or the words after --.")
    expanded: list[str] = []
    for word in words:
        whole = re.fullmatch(r"\$(\w+)", word)
        # systemd splits a bare $NAME into words, and puts ${NAME} in as one.
        expanded += (
            env.get(whole[1], "").split() if whole else [_VARIABLE.sub(lambda m: env.get(m[1] or m[2], ""), word)]
        )
    return expanded, env


def read_environment_file(path: Path) -> dict[str, str]:
    """``NAME=value`` lines, quotes taken off, comments and ``export`` ignored. Raises UsageError."""
    found = {}
    for number, line in enumerate(_lines(path), 1):
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals or not re.fullmatch(r"\s*\w+\s*", name):
            raise UsageError(f"{path}:{number} is not NAME=value.", hint="Give an environment file.")
        found[name.strip()] = " ".join(_split(path, value)) if value.strip()[:1] in {"'", '"'} else value.strip()
    return found


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}.", hint="Check the path.") from exc
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip() and line.strip()[0] not in "#;["]


def _split(path: Path, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise UsageError(f"{path} has a line that cannot be split: {exc}.", hint="Check its quotes.") from exc
