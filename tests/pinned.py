"""Upstream v0.5.0, resolved: what tests of the build pin where they need no source."""

from __future__ import annotations

from llamabuild.source.lock import Lock

V050 = Lock(
    recipe="real",
    summary="",
    release=True,
    repository="file:///nowhere",
    ref="v0.5.0",
    commit="7fe450e19305b828c199d602c23a8337aaa1f03b",
    tree="fd570ef54b10ec5fecb739e7e04c8ce44a6f415a",
    build_number=11146,
    date=1758585600,
    features=(),
    patches=(),
)
