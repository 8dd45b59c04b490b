"""Recipes, locks and recorded machines for the build tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build.host import RecordedHost
from llamabuild.recipe.model import Recipe

from ...pinned import V050

if TYPE_CHECKING:
    from llamabuild.source.lock import Lock

_PROGRAMS = ("cmake", "ninja", "ccache", "strip", "cc", "c++")


@pytest.fixture
def lock() -> Lock:
    """Upstream v0.5.0."""
    return replace(V050, recipe="r")


@pytest.fixture
def recipe() -> Recipe:
    """A recipe with one target of each kind."""
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "r",
            "summary": "",
            "source": {"repository": "file:///nowhere"},
            "targets": {
                "cuda": {"backends": ("cuda",), "arch": "86"},
                "cuda-vulkan": {"backends": ("cuda", "vulkan"), "arch": "86"},
                "hip": {"backends": ("hip",), "arch": "gfx1201"},
                "vulkan": {"backends": ("vulkan",)},
                "cpu": {"backends": ("cpu",)},
                "cpu-all": {"backends": ("cpu",), "cpu-variants": True},
            },
        }
    )


class Machines:
    """Machines as they were recorded, to be changed by each test."""

    def plain(self, **changes: Any) -> RecordedHost:
        """Debian 12 on x86-64 with the tools of a CPU build and no GPU."""
        programs = {name: f"/usr/bin/{name}" for name in _PROGRAMS}
        outputs = {
            "uname -m": "x86_64",
            "cmake --version": "cmake version 4.4.5",
            "ninja --version": "1.13.2",
            "ccache --version": "ccache version 4.14.2\nFeatures: redis-storage",
            "strip --version": "GNU strip (GNU Binutils for Debian) 2.40",
            "cc --version": "cc (Debian 12.2.0-14+deb12u1) 12.2.0",
            "c++ --version": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
            "cc -std=c11 -O1 -pthread {source} -o {out}": "",
            "c++ -std=c++17 -O1 -pthread {source} -o {out}": "",
        }
        host = RecordedHost(files={"/etc/os-release": 'ID=debian\nVERSION_ID="12"'}, outputs=outputs, programs=programs)
        return self.change(host, **changes)

    @staticmethod
    def change(host: RecordedHost, **changes: Any) -> RecordedHost:
        """Add to the tables of a machine; ``without`` takes programs away."""
        without = changes.pop("without", ())
        merged = {
            name: {**getattr(host, name), **value} if isinstance(value, dict) and name != "env" else value
            for name, value in changes.items()
        }
        host = replace(host, **merged)
        return replace(host, programs={name: path for name, path in host.programs.items() if name not in without})


@pytest.fixture
def machines() -> Machines:
    """Recorded machines."""
    return Machines()
