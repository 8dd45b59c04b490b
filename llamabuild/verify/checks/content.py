"""What must not be in a bundle: weights, keys, repositories, leftovers, paths of the build machine, unsafe modes."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from llamabuild.verify.checks.elf_hygiene import is_readable_by_all
from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.findings import Finding, Severity
    from llamabuild.verify.subject import File, Subject

WEIGHTS = Kind(
    "content.weights",
    "error",
    "A model's weights are in the bundle, by name or by content. A runtime is published without models: their licences "
    "differ, and they dwarf it.",
    "Remove the file.",
)
SECRET = Kind(
    "content.secret",
    "error",
    "A key, a token, an environment file or a repository's inside is in the bundle. Once published it is known.",
    "Remove it, and renew the key: it has to be taken as lost.",
)
BUILD_PATH = Kind(
    "content.build-path",
    "error",
    "A file of this build holds an absolute path of the machine that made it. It tells a user's or a company's folder "
    "names, differs between machines, and sometimes is really looked at.",
    "Build inside the source tree with relative paths, or map the prefix away (-ffile-prefix-map).",
)
LEFTOVER = Kind(
    "content.leftover",
    "warning",
    "A file of the build, of an editor or of a crash, which nobody who unpacks the bundle needs.",
    "Remove it from the rules that chose it.",
)
MODE = Kind(
    "file.mode",
    "error",
    "Another user than the one who unpacked it cannot read a file or enter a folder: services run as other users.",
    "Set 0644 for files, 0755 for programs, libraries and folders.",
)
WRITABLE = Kind(
    "file.writable-by-all",
    "error",
    "Everybody may change a file or a folder of the bundle, or a program runs with its owner's rights.",
    "Set 0644 for files, 0755 for programs and folders, and no setuid bit.",
)
SPECIAL = Kind(
    "file.special",
    "error",
    "Something that is neither file, folder nor link: a pipe, a socket, a device.",
    "Remove it.",
)
UNREADABLE = Kind(
    "file.not-checked",
    "error",
    "A file could not be read, so nothing is known about it.",
    "Check its permissions and the disk, then verify again.",
)
NAME = Kind(
    "file.name",
    "error",
    "A file's name holds control characters or is not UTF-8, which archives and shells of others mangle.",
    "Rename it.",
)

KINDS = (WEIGHTS, SECRET, BUILD_PATH, LEFTOVER, MODE, WRITABLE, SPECIAL, UNREADABLE, NAME)

_WEIGHT_SUFFIXES = (".gguf", ".ggml", ".safetensors", ".pth", ".ckpt", ".onnx", ".mlmodel")
_WEIGHT_MAGICS = (b"GGUF", b"FUGG", b"lmgg", b"ggjt", b"tjgg")
_SECRET_NAMES = frozenset(
    {".env", ".netrc", ".npmrc", ".pypirc", ".git-credentials", "id_rsa", "id_ed25519", "id_ecdsa", "credentials.json"}
)
_SECRET_SUFFIXES = (".pem", ".key", ".p12", ".pfx", ".jks", ".keystore")
_REPOSITORIES = frozenset({".git", ".hg", ".svn", ".ssh", ".aws", ".gnupg"})
_LEFTOVER_SUFFIXES = (".o", ".d", ".ninja_log", ".gcda", ".gcno", ".pyc", ".swp", ".orig", ".rej", ".part", ".tmp", "~")
_LEFTOVER_NAMES = frozenset(
    {"CMakeCache.txt", "CMakeFiles", "build.ninja", ".DS_Store", "core", "__pycache__", ".ninja_deps"}
)


def check(subject: Subject) -> Iterator[Finding]:
    """Judge names, modes, first bytes, and what the scan found inside."""
    for path, why in subject.unreadable.items():
        yield UNREADABLE.at(path, f"{path} could not be read: {why}.")
    for path in subject.special:
        yield SPECIAL.at(path, f"{path} is neither a file, a folder nor a link.")
    for path in (*subject.files, *subject.links, *subject.folders):
        if not path.isprintable():
            yield NAME.at(path, f"The name {path!r} holds characters that archives of others mangle.")
    yield from _repositories(subject)
    for file in subject.files.values():
        yield from _file(file, own="warning" if subject.foreign else "error" if subject.own else "note")
    yield from _modes(subject)


def _repositories(subject: Subject) -> Iterator[Finding]:
    seen: set[str] = set()
    for path in (*subject.folders, *subject.files, *subject.links):
        parts = path.split("/")
        found = next((index for index, part in enumerate(parts) if part in _REPOSITORIES), None)
        if found is not None and (top := "/".join(parts[: found + 1])) not in seen:
            seen.add(top)
            yield SECRET.at(top, f"{top} does not belong in a bundle.")


def _file(file: File, *, own: Severity) -> Iterator[Finding]:
    if file.name.lower().endswith(_WEIGHT_SUFFIXES) or file.head.startswith(_WEIGHT_MAGICS):
        yield WEIGHTS.at(
            file.path, f"{file.path} holds a model's weights.", evidence=f"{file.size} bytes, {file.head[:4]!r}"
        )
    if file.name in _SECRET_NAMES or file.name.startswith(".env.") or file.name.endswith(_SECRET_SUFFIXES):
        yield SECRET.at(file.path, f"{file.path} has the name of a file of keys.")
    if file.name in _LEFTOVER_NAMES or file.name.endswith(_LEFTOVER_SUFFIXES) or "CMakeFiles" in file.folder.split("/"):
        yield LEFTOVER.at(file.path, f"{file.path} is left over from building.")
    secrets = [hit for hit in file.hits if hit.pattern == "secret"]
    if secrets:
        # What was found is not shown: a report is published too.
        yield SECRET.at(file.path, f"{file.path} holds a {secrets[0].text}.", evidence=f"at byte {secrets[0].offset}")
    paths = list(dict.fromkeys(hit.text for hit in file.hits if hit.pattern == "build-path"))
    if paths and (file.elf is not None or file.of_llama):
        yield BUILD_PATH.at(
            file.path,
            f"{file.path} holds {len(paths)} path{'s' if len(paths) > 1 else ''} of the machine that built it.",
            evidence=", ".join(paths[:5]),
            severity=own if file.of_llama else "note",
        )


def _modes(subject: Subject) -> Iterator[Finding]:
    modes = [(path or ".", mode) for path, mode in subject.folders.items() if path]
    modes += [(file.path, file.mode) for file in subject.files.values()]
    for path, mode in modes:
        shown = stat.filemode(mode)
        if not is_readable_by_all(mode):
            yield MODE.at(path, f"{path} cannot be read by other users.", evidence=shown)
        if mode & (stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID):
            yield WRITABLE.at(path, f"{path} can be changed by everybody, or runs as its owner.", evidence=shown)
