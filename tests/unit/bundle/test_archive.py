"""Compressors that every tool can read, and archives that are opened without being trusted."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from llamabuild.bundle.compress import GzipSink, ZstdSink
from llamabuild.bundle.copy import copy_file, punch_hole
from llamabuild.bundle.unpack import open_archive
from llamabuild.core.errors import BundleError

DATA = b"".join(
    [random.Random(3).randbytes(700_000), b"\0" * 3_000_000, b"tensor " * 400_000, random.Random(4).randbytes(40_000)]
)


def packed(make, data: bytes, *, chunk: int, workers: int) -> bytes:
    out = io.BytesIO()
    sink = make(out, workers)
    for at in range(0, len(data), chunk):
        sink.write(data[at : at + chunk])
    sink.close()
    return out.getvalue()


MAKERS = {
    "gzip": lambda out, workers: GzipSink(out, workers=workers),
    "zstd": lambda out, workers: ZstdSink(out, level=3, workers=workers),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_neither_threads_nor_portions_show(kind):
    results = {
        hashlib.sha256(packed(MAKERS[kind], DATA, chunk=chunk, workers=workers)).hexdigest()
        for chunk, workers in [(1 << 20, 1), (1 << 20, 2), (10_240, 7), (777_777, 3), (len(DATA), 16)]
    }
    assert len(results) == 1


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * (1 << 20), DATA[: 1 << 20], DATA], ids=len)
def test_other_tools_read_it(data):
    zipped = packed(MAKERS["gzip"], data, chunk=65_536, workers=2)
    assert gzip.decompress(zipped) == data
    assert subprocess.run(["gzip", "-dc"], input=zipped, capture_output=True, check=True).stdout == data


def archive_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("top/../../evil")],
        [member("top/link", tarfile.SYMTYPE, "../../outside"), member("top/link/evil")],
        [member("top/link", tarfile.SYMTYPE, "/etc/passwd")],
        [member("top/link", tarfile.LNKTYPE, "../../evil")],
        [member("top/pipe", tarfile.FIFOTYPE)],
        [member("top/disk", tarfile.BLKTYPE)],
    ],
)
def test_members_that_would_land_elsewhere(tmp_path, members):
    path = archive_of(tmp_path / "a.tar.gz", *members)
    inside = tmp_path / "deep" / "inside"
    with pytest.raises(BundleError, match=r"unsafe member|not one"):
        open_archive(path, inside)
    assert not list(tmp_path.rglob("*evil*"))


def test_a_file_that_replaces_a_link_does_not_follow_it(tmp_path):
    path = archive_of(
        tmp_path / "a.tar.gz", member("top/real"), member("top/x", tarfile.SYMTYPE, "real"), member("top/x")
    )
    root = open_archive(path, tmp_path / "u")
    assert not (root / "x").is_symlink()


def test_damaged_archives(tmp_path):
    good = archive_of(tmp_path / "a.tar.gz", member("top/a"))
    (tmp_path / "cut.tar.gz").write_bytes(good.read_bytes()[:60])
    (tmp_path / "text.tar.gz").write_text("hello, this is no archive")
    zst = io.BytesIO()
    sink = ZstdSink(zst, level=3)
    sink.write(gzip.decompress(good.read_bytes()))
    sink.close()
    (tmp_path / "cut.tar.zst").write_bytes(zst.getvalue()[:-9])
    for name in ("cut.tar.gz", "text.tar.gz", "cut.tar.zst"):
        with pytest.raises(BundleError, match=name) as caught:
            open_archive(tmp_path / name, tmp_path / "u")
        assert caught.value.hint
    two = archive_of(tmp_path / "two.tar.gz", member("one/a"), member("two/a"))
    with pytest.raises(BundleError, match="2 top folders"):
        open_archive(two, tmp_path / "v")


@pytest.mark.parametrize("kind", MAKERS)
def test_a_thinned_library_unpacks_in_little_memory(tmp_path, kind):
    """300 MB of zeros are a few kilobytes in an archive, and must not be so many megabytes on the way out of it."""
    path = tmp_path / f"a.{kind}"
    with path.open("wb") as handle:
        sink = MAKERS[kind](handle, 2)
        info = tarfile.TarInfo("top/lib.so")
        info.size = 300 << 20
        sink.write(info.tobuf())
        for _ in range(300):
            sink.write(bytes(1 << 20))
        sink.write(bytes(10_240))
        sink.close()
    code = (
        "import re, sys; from pathlib import Path; from llamabuild.bundle.unpack import open_archive\n"
        "open_archive(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path, tmp_path / "u"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 200
    made = (tmp_path / "u/top/lib.so").stat()
    assert made.st_size == 300 << 20
    assert made.st_blocks * 512 < 1 << 20


def test_copies_keep_holes(tmp_path):
    source = tmp_path / "s"
    with source.open("wb") as handle:
        handle.write(b"head")
        handle.seek(8 << 20)
        handle.write(b"tail")
        handle.truncate(16 << 20)
    copy_file(source, tmp_path / "d")
    assert (tmp_path / "d").read_bytes() == source.read_bytes()
    assert (tmp_path / "d").stat().st_blocks <= source.stat().st_blocks + 16
    with pytest.raises(FileExistsError):
        copy_file(source, tmp_path / "d")


@pytest.mark.parametrize(("mode", "expected"), [(0o777, 0o755), (0o600, 0o644), (0o4711, 0o755)])
def test_copies_have_plain_modes(tmp_path, mode, expected):
    source = tmp_path / "s"
    source.write_bytes(b"x")
    source.chmod(mode)
    old = os.umask(0o077)
    try:
        copy_file(source, tmp_path / "d")
    finally:
        os.umask(old)
    assert (tmp_path / "d").stat().st_mode & 0o7777 == expected


def test_shared_data_is_not_copied(tmp_path):
    source = tmp_path / "s"
    source.write_bytes(b"x" * 100)
    copy_file(source, tmp_path / "d", share=True)
    assert (tmp_path / "d").read_bytes() == source.read_bytes()


def test_a_hole_gives_blocks_back(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * (1 << 20))
    with path.open("r+b") as handle:
        if not punch_hole(handle.fileno(), offset=1 << 16, size=1 << 19):
            pytest.skip("this file system has no holes")
    assert path.stat().st_blocks * 512 < 1 << 20
    data = path.read_bytes()
    assert data.count(0) == 1 << 19
    assert len(data) == 1 << 20
