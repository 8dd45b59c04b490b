"""The header reader against the ``gguf`` package, and against files that lie."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug import Request, Response

from llamabuild.cli import main
from llamabuild.core.errors import LlamabuildError
from llamabuild.runtime.ggml_types import GGML_TYPES
from llamabuild.runtime.gguf_cursor import Array, GgufError
from llamabuild.runtime.gguf_header import GgufFile, read_gguf
from llamabuild.runtime.gguf_model import load_model, summarise
from llamabuild.runtime.gguf_source import HttpSource, open_source
from llamabuild.runtime.tiny import TinyShape, write_tiny_model

if TYPE_CHECKING:
    from pytest_httpserver import HTTPServer

KINDS = ("dense", "moe", "hybrid", "sliding", "dflash2")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: write_tiny_model(folder / f"{kind}.gguf", kind=kind) for kind in KINDS}


def assert_same_as_package(path: Path, found: GgufFile) -> None:
    reader = gguf.GGUFReader(path)
    assert [
        (tensor.name, tuple(map(int, tensor.shape)), int(tensor.tensor_type), int(tensor.n_bytes))
        for tensor in reader.tensors
    ] == [(tensor.name, tensor.shape, tensor.type_number, tensor.size) for tensor in found.tensors]
    assert [int(tensor.data_offset) for tensor in reader.tensors] == [
        found.data_offset + tensor.offset for tensor in found.tensors
    ]
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(fields) == list(found.keys)
    for name, field in fields.items():
        value = found.keys[name]
        if isinstance(value, Array):
            assert value.count == len(field.data)
            if value.values is not None:
                assert list(value.values) == field.contents()
        else:
            assert value == field.contents()


@pytest.mark.parametrize("kind", KINDS)
def test_headers_equal_the_packages(models: dict[str, Path], kind: str) -> None:
    assert_same_as_package(models[kind], read_gguf(str(models[kind]))[0])


@pytest.mark.parametrize("quantisation", ["F16", "Q8_0", "Q4_0"])
def test_quantised_sizes_equal_the_packages(tmp_path: Path, quantisation: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", quantisation=quantisation)
    assert_same_as_package(path, read_gguf(str(path))[0])


def test_every_type_of_the_package_is_known() -> None:
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        known = GGML_TYPES[kind.value]
        assert (known.name, known.block_size, known.block_bytes) == (kind.name, *sizes)


def test_every_kind_of_value(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    for order in (gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG):
        writer = gguf.GGUFWriter(path, "llama", endianess=order)
        writer.add_uint8("a.u8", 200)
        writer.add_int8("a.i8", -3)
        writer.add_uint16("a.u16", 60000)
        writer.add_int16("a.i16", -300)
        writer.add_uint32("a.u32", 1 << 31)
        writer.add_int32("a.i32", -70000)
        writer.add_float32("a.f32", 0.5)
        writer.add_bool("a.bool", True)
        writer.add_string("a.string", "grüße")
        writer.add_uint64("a.u64", 1 << 63)
        writer.add_int64("a.i64", -(1 << 40))
        writer.add_float64("a.f64", 0.1)
        writer.add_array("a.numbers", [1, 2, 3])
        writer.add_array("a.strings", ["x", "", "yz"])
        writer.add_array("a.nested", [[1, 2], [3]])
        writer.add_custom_alignment(64)
        writer.add_tensor("t", np.zeros((3, 5), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found = read_gguf(str(path))[0]
        assert found.big_endian is (order is gguf.GGUFEndian.BIG)
        assert found.keys["a.nested"] == Array("array", 2)
        assert found.keys["a.string"] == "grüße"
        assert found.keys["a.u64"] == 1 << 63
        assert found.keys["a.strings"].values == ("x", "", "yz")
        assert found.data_offset % 64 == 0
        reader = gguf.GGUFReader(path)
        for name, value in found.keys.items():
            if not isinstance(value, Array):
                assert reader.fields[name].contents() == value
        assert int(reader.tensors[0].data_offset) == found.data_offset


def test_version_two_has_the_same_layout(models: dict[str, Path], tmp_path: Path) -> None:
    data = bytearray(models["dense"].read_bytes())
    data[4] = 2
    old = tmp_path / "old.gguf"
    old.write_bytes(data)
    assert_same_as_package(old, read_gguf(str(old))[0])
    assert read_gguf(str(old))[0].version == 2


def split(folder: Path) -> list[Path]:
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=2)
    writer.add_block_count(3)
    writer.add_head_count(2)
    for layer in range(3):
        for name in ("attn_k", "attn_v"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones((4, 8), dtype=np.float16))
    writer.write_header_to_file(folder / "m.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


def test_a_split_file_is_read_from_any_part(tmp_path: Path) -> None:
    parts = split(tmp_path)
    assert [part.name for part in parts] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for part in parts:
        model = load_model(str(part))
        assert model.files == 3
        assert [layer.bytes for layer in model.layers] == [128, 128, 128]
    parts[1].unlink()
    with pytest.raises(LlamabuildError, match=r"m-00002-of-00003\.gguf cannot be read: No such file"):
        load_model(str(parts[0]))
    alone = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(GgufError, match="one of 3 parts"):
        load_model(str(alone))


class RangeServer:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sent = 0

    def __call__(self, request: Request) -> Response:
        start, end = request.range.ranges[0]  # type: ignore[union-attr]
        body = self.data[start:end]
        self.sent += len(body)
        headers = {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{len(self.data)}"}
        return Response(body, status=206, headers=headers)


def test_http_ranges_fetch_the_header_alone(tmp_path: Path, httpserver: HTTPServer) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", width=512, feed_forward=2048)
    server = RangeServer(path.read_bytes())
    httpserver.expect_request("/m.gguf").respond_with_handler(server)
    found = read_gguf(httpserver.url_for("/m.gguf"))
    assert found[0].tensors == read_gguf(str(path))[0].tensors
    assert server.sent <= (1 << 20) + 16 < path.stat().st_size


def test_http_without_ranges_is_refused_and_not_downloaded(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/m.gguf").respond_with_data(b"GGUF" + bytes(1 << 20))
    with pytest.raises(LlamabuildError, match="does not answer ranges"):
        read_gguf(httpserver.url_for("/m.gguf"))
    with pytest.raises(LlamabuildError, match=r"status (404|500)"):
        read_gguf(httpserver.url_for("/other.gguf?token=abc"))


def test_http_that_sends_more_than_asked_is_cut_off(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/m").respond_with_data(
        b"x" * 5000, status=206, headers={"Content-Range": "bytes 0-15/5000"}
    )
    with open_source(httpserver.url_for("/m")) as source:
        assert isinstance(source, HttpSource)
        assert source.size == 5000
        assert len(source.read(0, 16)) == 16


def header(*, tensors: int = 0, keys: int = 0, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + body


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


HOSTILE = {
    "empty": b"",
    "no magic": b"PK\x03\x04" + bytes(60),
    "version 1": header(version=1),
    "version 77": header(version=77),
    "2^60 keys": header(keys=1 << 60),
    "2^60 tensors": header(tensors=1 << 60),
    "a key past the end": header(keys=1, body=struct.pack("<Q", 1 << 50) + bytes(40)),
    "a string past the end": header(keys=1, body=text(b"k") + struct.pack("<IQ", 8, 1 << 62) + bytes(40)),
    "an array of 2^60 numbers": header(keys=1, body=text(b"k") + struct.pack("<IIQ", 9, 4, 1 << 60)),
    "an array of 2^60 strings": header(keys=1, body=text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 60)),
    "arrays in arrays for ever": header(keys=1, body=text(b"k") + b"\t\0\0\0" + struct.pack("<IQ", 9, 1) * 5000),
    "an unknown type": header(keys=1, body=text(b"k") + struct.pack("<I", 13) + bytes(40)),
    "an unknown element type": header(keys=1, body=text(b"k") + struct.pack("<IIQ", 9, 99, 1) + bytes(40)),
    "a key twice": header(keys=2, body=(text(b"k") + struct.pack("<II", 4, 7)) * 2 + bytes(9)),
    "alignment 3": header(keys=1, body=text(b"general.alignment") + struct.pack("<II", 4, 3)),
    "alignment 0": header(keys=1, body=text(b"general.alignment") + struct.pack("<II", 4, 0)),
    "alignment as text": header(keys=1, body=text(b"general.alignment") + struct.pack("<I", 8) + text(b"x")),
    "9 dimensions": header(tensors=1, body=text(b"t") + struct.pack("<I", 9) + bytes(99)),
    "a tensor of 2^63 by 2^63": header(
        tensors=1, body=text(b"t") + struct.pack("<IQQIQ", 2, 1 << 63, 1 << 63, 0, 0)
    ),
    "a tensor twice": header(tensors=2, body=(text(b"t") + struct.pack("<IIQ", 0, 0, 0)) * 2),
    "a string that runs off": header(
        keys=1, body=text(b"k") + struct.pack("<IIQ", 9, 8, 65) + struct.pack("<Q", 1 << 61) + bytes(700)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_headers_end_in_one_sentence(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[what])
    tracemalloc.start()
    assert main(["gguf", str(path)]) == 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    error = capsys.readouterr().err
    assert error.startswith("error: hostile.gguf: ")
    assert "Traceback" not in error
    assert peak < 16 << 20
    if "2^60" in what:
        # Refused for what it claims, and not after trying.
        assert "it claims 1152921504606846976 " in error


def test_a_sparse_file_cannot_keep_the_reader_busy(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    # 128 GiB of nothing, all of it claimed as empty strings; and the same as tensors without a name.
    for body in (header(keys=1, body=text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 33)), header(tensors=1 << 31)):
        with path.open("wb") as handle:
            handle.write(body)
            handle.truncate(1 << 37)
        began = time.monotonic()
        with pytest.raises(GgufError):
            read_gguf(str(path))
        assert time.monotonic() - began < 60  # without the limit it would be hours


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_is_refused_or_read_but_never_crashes(
    models: dict[str, Path], tmp_path: Path, data: st.DataObject
) -> None:
    whole = models["hybrid"].read_bytes()[:6000]
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        value = data.draw(st.sampled_from([0, 1, 9, 0x7F, 0xFF]) | st.integers(0, 255))
        damaged[at] = value
    cut = data.draw(st.integers(0, len(damaged)))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged if data.draw(st.booleans()) else damaged[:cut])
    refused = None
    try:
        summarise(read_gguf(str(path)))
    except LlamabuildError as exc:
        refused = exc
    assert refused is None or ("\n" not in refused.message and refused.hint)


@given(cut=st.integers(0, 5000))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_header_is_refused(models: dict[str, Path], tmp_path: Path, cut: int) -> None:
    data = models["dense"].read_bytes()
    end = read_gguf(str(models["dense"]))[0].data_offset - 32
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: min(cut, end)])
    with pytest.raises(GgufError):
        read_gguf(str(path))


def test_truncated_data_is_said(models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(models["dense"].read_bytes()[:-1000])
    assert main(["gguf", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["complete"] is False
    assert "1000 bytes of its tensors are missing" in err


def test_an_unknown_tensor_type_takes_the_room_up_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "future.gguf"
    body = text(b"a") + struct.pack("<IQIQ", 1, 64, 250, 0) + text(b"b") + struct.pack("<IQIQ", 1, 64, 250, 96)
    data = header(tensors=2, body=body)
    path.write_bytes(data + bytes(-len(data) % 32) + bytes(160))
    found = read_gguf(str(path))[0]
    assert [tensor.size for tensor in found.tensors] == [96, 64]
    assert found.tensors[0].type == "type 250"


def test_the_summary_of_a_hybrid(models: dict[str, Path]) -> None:
    model = load_model(str(models["hybrid"]))
    shape = TinyShape(kind="hybrid", layers=4)
    assert [layer.kv_heads for layer in model.layers] == [0, 0, 0, shape.kv_heads]
    assert [layer.recurrent for layer in model.layers] == [True, True, True, False]
    assert model.bytes == sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(models["hybrid"]).tensors)
    assert model.layer_bytes + model.input_bytes + model.output_bytes == model.bytes


def test_a_tied_embedding_counts_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "tied.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((10, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = load_model(str(path))
    # llama.cpp: "the tensor is duplicated" (src/llama-model-loader.cpp) where there is no output.weight.
    assert (model.input_bytes, model.output_bytes, model.tied_bytes, model.bytes) == (320, 320, 320, 320)


def test_gguf_prints_what_matters_first(models: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", str(models["dflash2"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["architecture", "dflash"]
    assert any("DFlash2, block size 8: at most 7 a draft" in line for line in lines)
    assert main(["gguf", str(models["moe"]), "--json", "--tensors"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert (document["experts"], document["experts_used"], document["layer_count"]) == (4, 2, 2)
    assert sum(tensor["bytes"] for tensor in document["tensors"]) == document["bytes"]


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", str(tmp_path / "none.gguf")]) == 2
    assert main(["gguf", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("error: ") == 2
