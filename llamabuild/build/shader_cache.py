"""A cache in front of ``glslc``, run as a script: no compiler cache knows shader compilers.

    python shader_cache.py GLSLC IDENTITY CACHE [glslc's own arguments]

A result is found again by the compiler's identity, the arguments without the paths of source and outputs, and the text
of the source and of everything that it includes. What is not understood (no output file, debug information with paths,
an include that is not there, a warning) is compiled and not kept. Little is imported, and os.path stands where pathlib
would be nicer: a Vulkan build starts this a thousand times.
"""

# ruff: noqa: PTH103, PTH105, PTH110, PTH113, PTH118, PTH120, PTH123

from __future__ import annotations

import hashlib
import os
import re
import sys

_INCLUDE = re.compile(rb'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
_WITH_PATHS = {"-g", "-E", "-S", "-M", "-MM", "-c", "-"}
_VALUED = {"-o", "-MF", "-I", "-x"}


class Call:
    """A command line of glslc, taken apart; a dataclass would cost as much as all other imports together."""

    def __init__(self) -> None:
        self.source = ""
        self.out = ""
        self.dependencies = ""
        self.folders: list[str] = []
        self.rest: list[str] = []
        """All that decides the result."""


def main(argv: list[str]) -> int:
    """Answer from the cache, or run the compiler; the exit status is the compiler's."""
    glslc, identity, cache, *arguments = argv
    call = understand(arguments)
    texts = _closure(call) if call else None
    if call is None or texts is None:
        os.execv(glslc, [glslc, *arguments])  # noqa: S606 - an argv, and no shell is wanted
    digest = hashlib.sha256("\0".join((identity, *call.rest)).encode())
    for name, text in sorted(texts.items()):
        digest.update(f"\0{name}\0{len(text)}\0".encode() + text)
    kept = os.path.join(cache, digest.hexdigest()[:2], digest.hexdigest())
    outputs = [(call.out, f"{kept}.spv"), *([(call.dependencies, f"{kept}.d")] if call.dependencies else [])]
    out, folder = call.out.encode(), os.path.dirname(call.source).encode()
    if all(os.path.exists(there) for _, there in outputs):
        for here, there in outputs:
            content = _read(there)
            if here != call.out:
                content = content.replace(b"{out}", out).replace(b"{folder}", folder)
            _write(here, content)
        return 0
    import subprocess

    done = subprocess.run([glslc, *arguments], capture_output=True, check=False)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    if done.returncode == 0 and not done.stdout and not done.stderr:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        # The result comes last: what is half kept is not found.
        for here, there in reversed(outputs):
            content = _read(here)
            if here != call.out:
                content = content.replace(out, b"{out}").replace(folder, b"{folder}")
            _write(there, content)
    return done.returncode


def understand(arguments: list[str]) -> Call | None:
    """Split the arguments into source, outputs and what decides the result; None where they are not understood."""
    call = Call()
    rest = iter(arguments)
    for word in rest:
        value = next(rest, "") if word in _VALUED else ""
        if word in _WITH_PATHS:
            return None
        if word == "-o":
            call.out = value
        elif word == "-MF":
            call.dependencies = value
        elif word.startswith("-I"):
            call.folders.append(value or word[2:])
        elif word.startswith("-"):
            call.rest += [word, value]
        elif call.source:
            return None
        else:
            call.source = word
    return call if call.source and call.out not in {"", "-"} else None


def _closure(call: Call) -> dict[str, bytes] | None:
    """The source's text and that of all it includes, by place; more than the preprocessor reads, never less."""
    root = os.path.dirname(call.source)
    texts: dict[str, bytes] = {}
    queue = [call.source]
    while queue:
        path = queue.pop()
        name = os.path.relpath(path, root or ".")
        if name in texts:
            continue
        try:
            texts[name] = _read(path)
        except OSError:
            return None
        folders = [os.path.dirname(path), *call.folders]
        for found in _INCLUDE.findall(texts[name]):
            included = found.decode(errors="surrogateescape")
            places = (os.path.join(folder, included) for folder in folders)
            there = next((place for place in places if os.path.isfile(place)), None)
            if there is None:
                return None
            queue.append(there)
    return texts


def _read(path: str) -> bytes:
    with open(path, "rb") as handle:
        return handle.read()


def _write(path: str, content: bytes) -> None:
    """Replace a file in one step: several compilers run at once, and any may be killed."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as handle:
        handle.write(content)
    os.replace(part, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
