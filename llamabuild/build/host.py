"""The one layer through which the host is looked at: file reads and tool runs, so that tests can feed recordings."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.core.errors import ToolError
from llamabuild.core.files import key_of, write_json
from llamabuild.core.process import Completed, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llamabuild.core.context import Context

_PROBE_SECONDS = 120.0
"""A probe that takes longer hangs: the longest real one, nvcc with cold file caches, takes seconds."""

_PASSED = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "USER", "LOGNAME")

NOT_FOUND = 127
"""The exit status that shells give to a command that is not there."""


@dataclass(frozen=True)
class Host:
    """The machine this runs on; tools are looked for beside the Python that runs us, then on ``PATH`` of ``env``."""

    env: Mapping[str, str] = field(default_factory=dict)
    beside: Path = field(default_factory=lambda: Path(sys.executable).parent)
    records: Path | None = None
    """Folder that keeps which trials succeeded with which tools, so that an unchanged machine is not tried again."""

    @classmethod
    def of(cls, context: Context) -> Host:
        """The host as the context's environment shows it."""
        return cls(env=context.env, records=context.home.root / "probes")

    def which(self, name: str) -> Path | None:
        """A program's absolute path, or None. What the wheels brought comes first: that version was tried."""
        search = os.pathsep.join((str(self.beside), self.env.get("PATH", os.defpath)))
        found = shutil.which(name, path=search)
        return Path(found).absolute() if found else None

    def read(self, path: str) -> str | None:
        """A text file's content without its last line end; None when it does not exist or cannot answer.

        Raises PermissionError when it exists and may not be read.
        """
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace").rstrip("\n")
        except PermissionError:
            raise
        except OSError:
            # Beside a missing file: sysfs answers some reads with EIO or ENODEV while a device sleeps.
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted; empty when it does not exist or may not be read."""
        try:
            return tuple(sorted(entry.name for entry in Path(folder).iterdir()))
        except OSError:
            return ()

    def resolve(self, path: str) -> str:
        """A path with its links followed."""
        return os.path.realpath(path)

    def run(self, argv: Sequence[str]) -> Completed:
        """Run a tool with ``LC_ALL=C`` and keep its whole output; status 127 when it is not there."""
        found = self.which(argv[0])
        if found is None:
            return Completed(argv=tuple(argv), returncode=NOT_FOUND, tail=())
        kept = {name: self.env[name] for name in _PASSED if name in self.env}
        try:
            return run([found, *argv[1:]], env=kept | {"LC_ALL": "C"}, timeout=_PROBE_SECONDS, tail_lines=None)
        except ToolError as failure:
            return Completed(argv=tuple(argv), returncode=NOT_FOUND, tail=(failure.message,))

    def attempt(self, argv: Sequence[str], *, name: str, text: str) -> Completed:
        """Run a tool on a file ``name`` with ``text``; ``{source}`` and ``{out}`` stand for its and the result's path.

        A success is remembered for as long as the tool, the host's compilers, and the headers and libraries that the
        tool says it read are the same files; a failure is tried again each time. A tool that cannot say what it reads
        is tried again each time too.
        """
        record = self._record(argv, text)
        if record is not None and _unchanged(record):
            return Completed(argv=tuple(argv), returncode=0, tail=())
        with tempfile.TemporaryDirectory(prefix="llamabuild-probe-") as folder:
            source = Path(folder) / name
            source.write_text(text, encoding="utf-8")
            places = {"{source}": str(source), "{out}": str(Path(folder) / "out")}
            words = [places.get(word, word) for word in argv]
            lists = (Path(folder) / "compiled.d", Path(folder) / "linked.d")
            compiled = ("-MD", "-MF", str(lists[0]))
            linked = ("-Xlinker", f"--dependency-file={lists[1]}")
            for more in ((*compiled, *linked), compiled, ()) if record is not None else ((),):
                done = self.run([*words, *more])
                # glslc links nothing, and GNU ld before 2.35 and gold know no such list.
                if done.ok or not any(flag in done.text for flag in ("-MD", "-MF", "-Xlinker", "dependency-file")):
                    break
            if done.ok and record is not None:
                _remember(record, argv, lists, own=Path(folder))
        return Completed(argv=tuple(argv), returncode=done.returncode, tail=done.tail, timed_out=done.timed_out)

    def _record(self, argv: Sequence[str], text: str) -> Path | None:
        if self.records is None:
            return None
        # nvcc and clang start the host's compiler too, so that it counts whoever is asked.
        names = [argv[0], "cc", "c++", *(after for word, after in itertools.pairwise(argv) if word == "-ccbin")]
        tools = [found for found in map(self.which, names) if found is not None]
        states = [(str(tool.resolve()), *_state(tool)) for tool in tools]
        return self.records / key_of([states, list(argv), text])

    def free_bytes(self, folder: Path) -> int:
        """Free space for this user on the file system of a folder (or of its first parent that exists)."""
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def cores(self) -> int:
        """Processors that this process may use: the affinity mask's size."""
        return len(os.sched_getaffinity(0))


def _state(path: Path) -> tuple[int, int]:
    """What changes with a file (or, when a name comes or goes, with a folder); zeros for what is not there."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _unchanged(record: Path) -> bool:
    try:
        read = json.loads(record.read_bytes())["read"]
        return all(_state(Path(path)) == (size, changed) for path, size, changed in read)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remember(record: Path, argv: Sequence[str], lists: Sequence[Path], *, own: Path) -> None:
    """Write what a trial read: the files of the tool's own lists, and the folders that it was told to search."""
    files = {Path(name).absolute() for file in lists if file.exists() for name in _prerequisites(file)}
    if not files:
        return
    folders = {Path(word[2:]).absolute() for word in argv if word[:2] in {"-I", "-L"} and word[2:]}
    # Of the trial's own: its source, and objects between compiler and linker, which are gone by now.
    lasting = sorted(path for path in files | folders if path.exists() and not path.is_relative_to(own))
    write_json(record, {"argv": list(argv), "read": [[str(path), *_state(path)] for path in lasting]})


def _prerequisites(file: Path) -> set[str]:
    """The files to the right of the colons in a makefile fragment, as compilers and linkers write it."""
    text = file.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    words = {word for line in text.splitlines() for word in re.findall(r"(?:\\.|\S)+", line.partition(": ")[2])}
    return {re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words}


@dataclass(frozen=True)
class RecordedHost(Host):
    """A machine as it was recorded: what is not in the recording does not exist."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Path to content."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """A command line, words joined by blanks (``{source}`` kept), to its output; it ended with status 0."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The same, for commands that ended with status 1."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Program name to path."""
    denied: frozenset[str] = frozenset()
    """Files that exist and may not be read."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Links of sysfs and what they lead to."""
    free: int = 1 << 40
    processors: int = 8

    def which(self, name: str) -> Path | None:
        """Look the program up."""
        path = self.programs.get(name) or (name if name in self.programs.values() else None)
        return Path(path) if path else None

    def read(self, path: str) -> str | None:
        """Look the file up."""
        if path in self.denied:
            raise PermissionError(13, "Permission denied", path)
        return self.files.get(path)

    def names(self, folder: str) -> tuple[str, ...]:
        """The names that the recorded files imply."""
        prefix = folder.rstrip("/") + "/"
        inside = (path[len(prefix) :] for path in (*self.files, *self.denied) if path.startswith(prefix))
        return tuple(sorted({name.partition("/")[0] for name in inside}))

    def resolve(self, path: str) -> str:
        """Look the link up."""
        return self.links.get(path, path)

    def run(self, argv: Sequence[str]) -> Completed:
        """Look the command up, by its full line or, for a program of ``programs``, by the program's name."""
        lines = [" ".join(argv)]
        names = {path: name for name, path in self.programs.items()}
        if argv[0] in names:
            lines.append(" ".join((names[argv[0]], *argv[1:])))
        for line in lines:
            for status, table in ((0, self.outputs), (1, self.failures)):
                if line in table:
                    return Completed(argv=tuple(argv), returncode=status, tail=tuple(table[line].splitlines()))
        return Completed(argv=tuple(argv), returncode=NOT_FOUND, tail=())

    def attempt(self, argv: Sequence[str], *, name: str, text: str) -> Completed:  # noqa: ARG002
        """Look the command up; the text is not part of the recording."""
        return self.run(argv)

    def free_bytes(self, folder: Path) -> int:  # noqa: ARG002
        """As recorded."""
        return self.free

    def cores(self) -> int:
        """As recorded."""
        return self.processors
