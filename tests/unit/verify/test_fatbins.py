"""Fat binaries from bytes: NVIDIA's containers, and clang's offload bundles, plain and compressed."""

from __future__ import annotations

import hashlib
import struct
import zlib

import pytest
from backports import zstd

from llamabuild.elf import fatbin_hip, fatbin_nv


def entry(kind: int, arch: int, flags: int, payload: bytes = b"p" * 64) -> bytes:
    return struct.pack("<HHIQIIHHIQQQQ", kind, 0x101, 64, len(payload), 0, 0, 8, 1, arch, 0, flags, 0, 0) + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def nv(data: bytes, **where: int) -> list[tuple[str, str, bool]]:
    images = fatbin_nv.iter_images(data, offset=where.get("offset", 0), size=where.get("size", len(data)))
    return [(image.kind, image.arch, image.compressed) for image in images]


def test_kinds_suffixes_and_compression_are_in_the_headers():
    # The flags are those that nvcc 13.0 wrote for these archs and compression modes.
    data = container(entry(2, 86, 0x11), entry(2, 120, 0x1108011), entry(2, 100, 0x1200011), entry(1, 90, 0x108011))
    data += container(entry(1, 86, 0x2011), entry(9, 86, 0x11))
    assert nv(data) == [
        ("sass", "86", False),
        ("sass", "120a", True),
        ("sass", "100f", False),
        ("ptx", "90a", True),
        ("ptx", "86", True),
        ("other", "86", False),
    ]


def test_padding_between_containers_is_skipped_and_a_section_may_lie_anywhere():
    one = container(entry(2, 86, 0x11, b"p" * 60))
    data = b"\xff" * 24 + one + b"\0" * 20 + one
    assert len(nv(data, offset=24, size=len(data) - 24)) == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (container(entry(2, 86, 0x11))[:-1], "cut short"),
        (b"junkjunkjunkjunkjunk", "no fat binary container at byte 0"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 62), "cut short"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 8, 64) + b"x" * 64, "no fat binary container"),
        (container(struct.pack("<HHIQ", 2, 1, 3, 10) + b"x" * 60), "entry at byte 16"),
        (container(struct.pack("<HHIQ", 2, 1, 64, 1 << 40) + b"x" * 60), "entry at byte 16"),
    ],
    ids=["short", "junk", "huge", "tiny-header", "tiny-entry", "huge-payload"],
)
def test_what_is_not_whole_is_an_error_that_names_the_place(data, says):
    with pytest.raises(ValueError, match=says):
        nv(data)


def test_a_section_past_the_end_of_the_file_is_an_error():
    with pytest.raises(ValueError, match="the file at 10"):
        nv(b"x" * 10, size=11)


def bundle(*archs: str, code: bytes = b"\x7fELF" + b"c" * 60) -> bytes:
    targets = ["host-x86_64-unknown-linux--", *(f"hipv4-amdgcn-amd-amdhsa--{arch}" for arch in archs)]
    table, blobs = b"", b""
    for index, target in enumerate(targets):
        table += struct.pack("<QQQ", 4096 + len(blobs), len(code) if index else 0, len(target)) + target.encode()
        blobs += code if index else b""
    return (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(targets)) + table).ljust(4096, b"\0") + blobs


def compressed(inner: bytes, *, version: int, method: int) -> bytes:
    """LLVM's CCOB headers: version 1 without a file size, 2 with 32-bit sizes, 3 with 64-bit ones."""
    packed = zlib.compress(inner) if method == 0 else zstd.compress(inner)
    digest = hashlib.md5(inner).digest()[:8]
    fixed = b"CCOB" + struct.pack("<HH", version, method)
    if version == 1:
        return fixed + struct.pack("<I", len(inner)) + digest + packed
    form = "<II" if version == 2 else "<QQ"
    size = len(fixed) + struct.calcsize(form) + len(digest) + len(packed)
    return fixed + struct.pack(form, size, len(inner)) + digest + packed


def hip(data: bytes) -> list[tuple[str, bool, bool]]:
    images = fatbin_hip.iter_images(data, offset=0, size=len(data))
    return [(image.arch, image.compressed, image.emptied) for image in images]


def test_plain_bundles_follow_each_other_on_page_boundaries():
    one = bundle("gfx1100", "gfx90a:xnack-")
    data = one.ljust(8192, b"\0") + bundle("gfx1201")
    assert hip(data) == [("gfx1100", False, False), ("gfx90a:xnack-", False, False), ("gfx1201", False, False)]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("method", [0, 1], ids=["zlib", "zstd"])
def test_compressed_bundles_are_read_in_each_version(version, method):
    one = compressed(bundle("gfx1100"), version=version, method=method)
    data = one.ljust(4096, b"\0") + compressed(bundle("gfx1151", "gfx942"), version=version, method=method)
    assert [arch for arch, packed, _ in hip(data) if packed] == ["gfx1100", "gfx1151", "gfx942"]


def test_a_large_compressed_bundle_is_not_decompressed_whole(monkeypatch):
    monkeypatch.setattr(fatbin_hip, "_HEAD_BYTES", 4096)
    data = compressed(bundle("gfx1100", code=b"\x7fELF" + bytes(range(256)) * 40000), version=2, method=1)
    assert hip(data) == [("gfx1100", True, False)]


def test_code_that_was_overwritten_by_zeros_is_told_apart():
    assert hip(bundle("gfx1100", code=bytes(64))) == [("gfx1100", False, True)]


def test_a_section_of_zeros_alone_holds_nothing():
    assert hip(bytes(20000)) == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (bundle("gfx1100")[:-1], "cut short"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1 << 40), "claims"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 0, 0, 1 << 50), "cut short in its table"),
        (b"CCOB" + struct.pack("<HH", 9, 1) + b"x" * 60, "unknown version 9"),
        (b"CCOB" + struct.pack("<HHII", 2, 7, 80, 9) + b"x" * 80, "unknown method 7"),
        (b"CCOB" + struct.pack("<HHII", 2, 1, 80, 9) + b"x" * 80, "cannot be decompressed"),
        (b"CCOB" + struct.pack("<HHII", 2, 0, 80, 9) + b"x" * 80, "cannot be decompressed"),
        (compressed(b"nothing", version=2, method=1) + bytes(40), "holds no bundle"),
        (compressed(bundle("gfx1"), version=3, method=1)[:-4], "cut short"),
    ],
    ids=["short", "count", "name", "version", "method", "zstd", "zlib", "inner", "compressed-short"],
)
def test_a_bundle_that_is_not_whole_is_an_error(data, says):
    with pytest.raises(ValueError, match=says):
        hip(data)
