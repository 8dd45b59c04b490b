"""Lines by which a failing server is recognised: what is seen, what it is, and what to do.

Gathered from field reports of people who run split and drafted models; each entry says which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.verify.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

_OUT_OF_MEMORY = (
    r"out of memory|(?:cuda|hip)Malloc failed|ErrorOutOfDeviceMemory|failed to allocate .*buffer|std::bad_alloc"
)


@dataclass(frozen=True)
class Signature:
    """A failure that has a face. ``patterns`` must all be found, each in some line, in any order."""

    name: str
    patterns: tuple[str, ...]
    message: str
    hint: str
    source: str
    """Where the connection between the line and its cause comes from."""
    supersedes: tuple[str, ...] = ()
    """Signatures that say less about the same lines."""


SIGNATURES = (
    Signature(
        "runtime.draft-out-of-memory",
        (_OUT_OF_MEMORY, r"common_speculative_impl_draft|failed to create .*draft|ctx_dft"),
        "Memory ran out when the drafter decoded for the first time: this is sizing, not a fault of the build.",
        "The draft cache is as large as the target's context: take a drafter with a sliding window, lower --ctx-size, "
        "or move layers off the drafter's device (llamabuild size).",
        "field report: loads, /health is fine, then a crash loop; common/speculative.cpp makes the draft context as "
        "large as the target's",
        supersedes=("runtime.out-of-memory",),
    ),
    Signature(
        "runtime.out-of-memory",
        (_OUT_OF_MEMORY,),
        "A device ran out of memory.",
        "Lower --ctx-size, --parallel or --ubatch-size, quantise the cache, or move layers (llamabuild size).",
        "ggml's allocators",
    ),
    Signature(
        "runtime.boundary-copy-fault",
        (r"page fault|illegal memory access|Memory access fault by GPU",),
        "A copy across the boundary between two devices faulted; more headroom does not help.",
        "Use another split, one vendor's devices alone, or one device: this split is off limits.",
        "field report: SDMA0 page fault, illegal memory access, ggml_abort at the boundary of a layer split",
    ),
    Signature(
        "runtime.tensile-missing",
        (r"Cannot read .*TensileLibrary|TensileLibrary.*(?:No such file|not found)",),
        "rocBLAS or hipBLASLt has no kernels for this device in the bundle, or looks for them at another depth.",
        "The bundle is incomplete: llamabuild verify says which files are missing.",
        "field report: Cannot read TensileLibrary for GPU arch, at the first request",
    ),
    Signature(
        "runtime.cuda-compat",
        (r"forward compatibility was attempted on non supported HW|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",),
        "The container's cuda-compat library shadows the host's driver, and the run goes on on the CPU.",
        "Purge cuda-compat-* from the image.",
        "error 804 on GeForce cards under NVIDIA's runtime images",
    ),
    Signature(
        "runtime.tensor-placement",
        (r"pre-allocated tensor .* cannot run the operation",),
        "A tensor lies on a device that cannot run its operation: by an override, or because the drafter is pinned "
        "away from the target's output layer.",
        "Overrides are safe for the CPU alone (-ot REGEX=CPU); pin the drafter to the device of the target's last "
        "layers, and not at all under a tensor split.",
        "ggml-backend.cpp; v0.5.0 over two RPC devices",
    ),
    Signature(
        "runtime.unknown-tensors",
        (r"wrong number of tensors; expected \d+, got \d+",),
        "The model has tensors that this build does not know: a DFlash2 drafter on a build without DFlash2 says 81 "
        "and 58.",
        "Use a build with the feature (llamabuild inspect says what a bundle has).",
        "src/llama-model-loader.cpp, done_getting_tensors",
    ),
    Signature(
        "runtime.port-taken",
        (r"couldn't bind HTTP server socket",),
        "Another server still holds the port.",
        "End the older server, or choose another --port.",
        "tools/server/server-http.cpp",
    ),
    Signature(
        "runtime.unknown-argument",
        (r"^error: (?:invalid argument|unknown argument)|error: invalid argument:",),
        "The build does not know a flag.",
        "llamabuild serve-check names it and the nearest one.",
        "common/arg.cpp",
    ),
    Signature(
        "runtime.dflash2-tensor-split",
        (r"GGML_ASSERT.*(?:split_axis|split_state|ggml_backend_meta)|ggml-backend-meta.cpp",),
        "The tensor split met an operation that it has no split for, as DFlash2 does without its own series.",
        "Use -sm layer, or a build with the dflash2-tensor series.",
        "llama.cpp issue 27833, fixed by pull request 27858",
    ),
    Signature(
        "runtime.libc-too-old",
        (r"version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",),
        "This system's C or C++ library is older than the one that the bundle was built against.",
        "Run it on a newer distribution, or build it on an older one (llamabuild verify shows the floor).",
        "ld.so",
    ),
    Signature(
        "runtime.library-missing",
        (r"error while loading shared libraries|symbol lookup error|undefined symbol",),
        "The loader did not find a library or a symbol.",
        "The bundle is incomplete or was moved apart: llamabuild verify says what is missing.",
        "ld.so",
    ),
)  # fmt: skip


def recognise(lines: Iterable[str]) -> tuple[Finding, ...]:
    """The signatures that ``lines`` of a server's log show, as findings; evidence is the first line of each."""
    kept = list(lines)
    found: dict[str, Finding] = {}
    for signature in SIGNATURES:
        matches = [next((line for line in kept if re.search(pattern, line)), None) for pattern in signature.patterns]
        if any(match is None for match in matches) or signature.name in _superseded(found):
            continue
        found[signature.name] = Finding(
            name=signature.name,
            severity="error",
            file="",
            message=signature.message,
            evidence="\n".join(dict.fromkeys(match.strip() for match in matches if match)),
            hint=f"{signature.hint} [{signature.source}]",
        )
    return tuple(found.values())


def _superseded(found: Iterable[str]) -> set[str]:
    names = set(found)
    return {less for signature in SIGNATURES if signature.name in names for less in signature.supersedes}
