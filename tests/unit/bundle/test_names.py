"""Names of bundles."""

from __future__ import annotations

import pytest

from llamabuild.bundle.names import bundle_name, check_name, name_from
from llamabuild.core.errors import UsageError


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            "../../evil",
            "/abs",
            "a/b",
            "a\\b",
            ".hidden",
            "-option",
            "a b",
            "a:b",
            "a\nb",
            "ä",
            "a" * 201,
        ),
        *("ä", "librocblas.so-1", "x-hipblaslt.1"),
    ],
)
def test_names_that_are_refused(name):
    with pytest.raises(UsageError, match="--name: ") as caught:
        check_name(name)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["llama-x-hip-gfx1100", "a", "1.2+3_4", "rocblas-5", "librocblas"])
def test_names_that_are_taken(name):
    assert check_name(name) == name


def test_no_colon_gets_into_a_name():
    """GNU tar asks a host named ``llama-x-hip-gfx90a`` for such an archive."""
    assert bundle_name("x", "hip", "gfx90a:xnack-") == "llama-x-hip-gfx90a-xnack-"
    assert bundle_name("x", "cpu", "") == "llama-x-cpu"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("build-1.2", "build-1.2"),
        ("my build (2)", "my-build-2"),
        ("..", "build"),
        ("", "build"),
        ("rocblas.x", "rocblas-x"),
    ],
)
def test_what_a_folder_gives(folder, name):
    assert name_from(folder) == name
    check_name(bundle_name(name_from(folder), "cpu", ""))
