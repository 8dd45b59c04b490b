"""The BUILD_INFO that a release publishes: the bundle's own, and what is known only once it is built and verified.

The bundle's own document stays as it is inside the archive, which depends on nothing but the build's inputs; this one
adds what was measured on the result and where it was made. The names are those that other fork releases publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llamabuild.release.drivers import driver_floor
from llamabuild.release.licenses import component_version, spdx_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llamabuild.elf.device_code import DeviceCode
    from llamabuild.release.served import Served
    from llamabuild.verify.findings import Report

OWN = frozenset({"llama.cpp", "common licences"})
"""Origins of files that are not somebody else's component."""


def release_info(
    inner: Mapping[str, Any],
    *,
    device: Sequence[DeviceCode],
    floors: Mapping[str, str],
    report: Report,
    host: Mapping[str, str],
    served: Served | None = None,
    packages: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Add the release's keys to a bundle's BUILD_INFO.

    ``device``: the device code of each file that carries some. ``floors``: the highest version of each symbol family
    (``GLIBC``, …) that any file needs. ``host``: ``os``, ``os_id`` and ``kernel`` of the
    machine that built it. ``served``: what running it showed, None where it was not run. ``packages``: versions of
    the distribution's packages there, by name.
    """
    tools = inner.get("tools", {})
    sass, ptx, gfx = (_archs(device, kind) for kind in ("sass", "ptx", "gfx"))
    toolkit = tools.get("nvcc", "")
    added = {
        "commit_short": str(inner.get("commit", ""))[:9],
        "commits_ahead_of_upstream_base": sum(patch["outcome"] in {"applied", "merged"} for patch in inner["patches"]),
        "upstream_base_resolved_via": inner.get("source_provider", "unknown"),
        "os": host.get("os", "unknown"),
        "kernel": host.get("kernel", "unknown"),
        "cuda_toolkit_version": toolkit or None,
        "cuda_nvcc": toolkit or None,
        "cuda_architectures": _option(inner, "CMAKE_CUDA_ARCHITECTURES"),
        "cuda_sass": sass,
        "cuda_ptx": ptx,
        "gfx": gfx,
        "driver_floor": driver_floor(sass=sass, ptx=ptx, toolkit=toolkit) or None,
        "version_floors": dict(floors),
        "components": _components(inner, packages or {}, distribution=host.get("os_id", "distribution")),
        "validation": {
            "tier_a_packaging": "passed" if report.ok else "failed",
            "tier_a_findings": {
                kind: sum(finding.severity == kind for finding in report.findings)
                for kind in ("error", "warning", "note")
            },
            "tier_b_runtime": served.result if served else "not run",
            "tier_b_note": f"Served: {served.model}."
            if served
            else "Compiled and packaged; no model was served with it.",
        },
        "benchmark_status": "not run",
        "target_model": served.model if served else None,
    }
    return {**{key: value for key, value in added.items() if key not in inner}, **inner}


def _archs(device: Sequence[DeviceCode], kind: str) -> list[str]:
    found = {arch for code in device for arch, _ in getattr(code, kind)}
    return sorted(found, key=lambda arch: (len(arch.rstrip("abcdef")), arch))


def _option(inner: Mapping[str, Any], name: str) -> str | None:
    return next((entry["value"] for entry in inner.get("cmake_config", ()) if entry["name"] == name), None)


def owners_of(info: Mapping[str, Any]) -> dict[str, str]:
    """Path in the bundle → the component it belongs to, for what is somebody else's."""
    return {file["path"]: file["origin"] for file in info["files"] if file["origin"] not in OWN}


def _components(inner: Mapping[str, Any], packages: Mapping[str, str], *, distribution: str) -> list[dict[str, Any]]:
    files: dict[str, list[str]] = {}
    for path, owner in owners_of(inner).items():
        files.setdefault(owner, []).append(path)
    recorded = inner.get("runtime", {})
    return [
        {
            "name": name,
            "version": component_version(name, recorded=recorded, packages=packages),
            "origin": f"{distribution} package {name}" if name in packages else name,
            "license": spdx_of(name),
            "files": paths,
        }
        for name, paths in sorted(files.items())
    ]
