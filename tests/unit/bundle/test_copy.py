"""Copies that cost no more space than what they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from llamabuild.bundle.copy import copy_file, copy_tree

if TYPE_CHECKING:
    from pathlib import Path


def test_a_tree_is_copied_with_its_holes_links_modes_and_times(tmp_path: Path):
    source = tmp_path / "source"
    (source / "lib/deep").mkdir(parents=True)
    sparse = source / "lib/sparse.so"
    with sparse.open("wb") as handle:
        handle.write(b"head")
        handle.seek(8 << 20)
        handle.write(b"tail")
    sparse.chmod(0o755)
    (source / "lib/deep/other.so").hardlink_to(sparse)
    (source / "lib/link.so").symlink_to("sparse.so")
    (source / "lib/folder").symlink_to("deep")
    (source / "gone").symlink_to("nowhere")
    (source / "empty").mkdir(mode=0o700)
    made = tmp_path / "made"
    made.mkdir()
    copy_tree(source, made)
    new = made / "lib/sparse.so"
    assert new.read_bytes() == sparse.read_bytes()
    assert new.stat().st_blocks <= sparse.stat().st_blocks
    assert new.stat().st_mtime_ns == sparse.stat().st_mtime_ns
    assert new.stat().st_mode == sparse.stat().st_mode
    assert (made / "lib/deep/other.so").samefile(new)
    assert [(made / name).readlink().as_posix() for name in ("lib/link.so", "lib/folder", "gone")] == [
        "sparse.so",
        "deep",
        "nowhere",
    ]
    assert (made / "empty").stat().st_mode & 0o777 == 0o700
    old, new = ({path.relative_to(root) for path in root.rglob("*")} for root in (source, made))
    assert old == new


@pytest.mark.parametrize(
    ("mode", "new", "shared"),
    [(0o644, 0o644, True), (0o600, 0o644, False), (0o755, 0o755, True), (0o700, 0o755, False), (0o664, 0o644, False)],
)
def test_a_file_is_shared_only_where_its_mode_is_a_copys(tmp_path: Path, mode, new, shared):
    """A tree that was unpacked under umask 077 gives the same bundle as any other."""
    source = tmp_path / "source"
    source.write_bytes(b"x" * 10_000)
    source.chmod(mode)
    copy = tmp_path / "copy"
    copy_file(source, copy, share=True)
    assert copy.read_bytes() == source.read_bytes()
    assert copy.stat().st_mode & 0o7777 == new
    assert source.stat().st_mode & 0o7777 == mode
    # A reflink is neither the same file nor a loss of space, where the file system has them.
    assert copy.samefile(source) <= shared
