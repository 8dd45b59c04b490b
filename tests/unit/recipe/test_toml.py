"""Lines of keys, whatever shape a TOML file has."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamabuild.recipe.toml import _locate, read_document

if TYPE_CHECKING:
    from pathlib import Path

TEXT = '''\
title = "x"  # [not.a.table]
many = [
  "[[no]]", # ] a comment with a bracket
  'key = 1',
]
text = """
[no.table]
key = "\\""" # still text
"""
raw = \'\'\'
[[no]]\'\'\'
"quoted key".inner = 1
[a.b]  # header
c = {d = 1, e = [2]}
[[list]]
x = 1
[[list]]
x = 2
[list.sub]
y = 3
[[list.deep]]
z = 4
'''


def test_every_key_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(TEXT)
    document = read_document(path)
    lines = {where: TEXT.splitlines()[line - 1] for where, line in document.lines.items()}
    assert lines["title",].startswith("title")
    assert lines["many",] == "many = ["
    assert lines["raw",].startswith("raw")
    assert lines["quoted key", "inner"].startswith('"quoted key"')
    assert lines["a", "b", "c"].startswith("c = {")
    assert lines["list", 0, "x"] == "x = 1"
    assert lines["list", 1, "x"] == "x = 2"
    assert lines["list", 1, "sub", "y"] == "y = 3"
    assert lines["list", 1, "deep", 0, "z"] == "z = 4"
    assert ("no",) not in lines
    # What has no line of its own is told at what is around it.
    assert document.line_of(("a", "b", "c", "d")) == document.lines["a", "b", "c"]
    assert document.line_of(("nowhere",)) == 1


def keys(value: Any, where: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    found = {where} if where else set()
    for key, each in value.items() if isinstance(value, dict) else ():
        found |= keys(each, (*where, key))
    return found


NAMES = st.sampled_from(["a", "b-c", "d_e", "7"])


@given(
    st.dictionaries(NAMES, st.dictionaries(NAMES, st.sampled_from(["1", '"["', "'#'", '"""\n[x]\n"""', "[\n1,\n]"])))
)
def test_written_tables_are_found(tables: dict[str, dict[str, str]]) -> None:
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in table.items()) for name, table in tables.items()
    )
    found = _locate(text)
    assert set(found) == keys(tomllib.loads(text))
    for (name, *rest), line in found.items():
        assert text.splitlines()[line - 1].startswith(f"{rest[0]} =" if rest else f"[{name}]")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_an_empty_file_has_no_lines(text: str) -> None:
    assert _locate(text) == {}
