"""Paths as the headers of a patch write them."""

from __future__ import annotations

NULL = b"/dev/null"
"""Stands for the side that has no file."""
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}


def header_name(text: bytes) -> bytes:
    """A path as a header writes it: quoted in C style, or bare up to a tab."""
    if not text.startswith(b'"'):
        return text.split(b"\t", 1)[0].rstrip(b"\r")
    return _quoted(text)[0]


def _quoted(text: bytes) -> tuple[bytes, bytes]:
    """A quoted path, and what follows it."""
    out = bytearray()
    at = 1
    while at < len(text) and text[at] != 0x22:
        if text[at] != 0x5C:
            out.append(text[at])
            at += 1
        elif (code := _ESCAPES.get(text[at + 1 : at + 2])) is not None:
            out.append(code)
            at += 2
        else:
            out.append(int(text[at + 1 : at + 4], 8) & 0xFF)
            at += 4
    return bytes(out), text[at + 1 :]


def stripped(name: bytes) -> bytes | None:
    """Without the first folder (``a/``, ``b/``), as ``-p1`` does."""
    if name == NULL:
        return None
    return name.partition(b"/")[2] or name


def common_name(text: bytes) -> bytes | None:
    """The path of a ``diff --git`` line whose two names are the same; None where they differ."""
    if text.startswith(b'"'):
        first, rest = _quoted(text)
        return stripped(first) if stripped(first) == stripped(header_name(rest.strip())) else None
    if text.endswith(b'"'):
        bare, _, rest = text.partition(b' "')
        return stripped(bare) if stripped(bare) == stripped(_quoted(b'"' + rest)[0]) else None
    text = text.rstrip(b"\r")
    for at, char in enumerate(text):
        if char == 0x20 and stripped(text[:at]) == stripped(text[at + 1 :]):
            return stripped(text[:at])
    return None
