"""What a user can choose about a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Runtime = Literal["bundled", "split", "system"]


@dataclass(frozen=True)
class BundleOptions:
    """Choices that change what is in a bundle, or how it is archived."""

    runtime: Runtime | None = None
    """A vendor's runtime: in the bundle, in an archive of its own, or left to the host; None: by the backend."""
    keep_archs: tuple[str, ...] = ()
    """Archs whose device files stay, besides the target's."""
    thin: bool = True
    """Zero the device code of other archs in libraries whose licence allows it."""

    def runtime_for(self, backends: Sequence[str]) -> Runtime:
        """How the vendor's runtime is shipped.

        Where nobody says: CUDA's in an archive of its own, since its three libraries dwarf the rest and change with the
        toolkit alone, so that they are downloaded once; ROCm's in the bundle, since it is trimmed to one arch and one
        build and of no use to another.
        """
        if self.runtime is not None:
            return self.runtime
        return "split" if "cuda" in backends else "bundled"
