"""The header reader on the vocabularies that llama.cpp's own tree carries: real files of real converters."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import gguf
import pytest

from llamabuild.runtime.gguf_cursor import Array
from llamabuild.runtime.gguf_header import read_gguf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.network

SMALL = ("gpt-2", "llama-spm", "phi-3", "bert-bge")


@pytest.fixture(scope="module")
def vocabularies(source_tree: Path) -> Path:
    """The tree's folder of vocabularies."""
    return source_tree / "models"


@pytest.mark.parametrize("name", SMALL)
def test_a_real_header_equals_the_packages(vocabularies: Path, name: str) -> None:
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    found = read_gguf(str(path))[0]
    fields = {key: field for key, field in gguf.GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
    assert list(found.keys) == list(fields)
    for key, field in fields.items():
        value = found.keys[key]
        if isinstance(value, Array):
            assert value.count == len(field.data)
        else:
            assert value == field.contents()


def test_skipping_is_a_hundred_times_faster(vocabularies: Path) -> None:
    path = vocabularies / "ggml-vocab-qwen2.gguf"
    ours = []
    for _ in range(5):
        began = time.perf_counter()
        found = read_gguf(str(path))[0]
        ours.append(time.perf_counter() - began)
    began = time.perf_counter()
    gguf.GGUFReader(path)
    theirs = time.perf_counter() - began
    print(f"151,936 tokens: {statistics.median(ours):.4f} s against {theirs:.2f} s")
    assert found.keys["tokenizer.ggml.tokens"].count == 151936
    assert theirs > 100 * statistics.median(ours)
