"""A container image's recipe for a verified archive: packaging alone, nothing is compiled or downloaded for it.

The archive is added as it was published, so that what runs in the container is what was verified, and the image's
labels name its digest. The release folder is the build's context.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError
from llamabuild.elf.read import version_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llamabuild.bundle.model import Artifact
    from llamabuild.release.facts import BuildFacts
    from llamabuild.release.view import BundleView

_BASES = (
    ("2.36", "debian:bookworm-slim"),
    ("2.41", "debian:trixie-slim"),
)
"""Images by their glibc; the oldest that meets the bundle's floor is taken."""

_PACKAGES = {
    "libgcc_s.so.1": "libgcc-s1",
    "libgomp.so.1": "libgomp1",
    "libstdc++.so.6": "libstdc++6",
    "libvulkan.so.1": "libvulkan1",
    "libdrm.so.2": "libdrm2",
    "libdrm_amdgpu.so.1": "libdrm-amdgpu1",
    "libelf.so.1": "libelf1",
    "libnuma.so.1": "libnuma1",
    "libz.so.1": "zlib1g",
    "libzstd.so.1": "libzstd1",
    "libssl.so.3": "libssl3",
    "libcrypto.so.3": "libssl3",
}
"""Debian's package for each library that a bundle may leave to its host."""

_FROM_GLIBC = (
    "libc.so.",
    "libm.so.",
    "libdl.so.",
    "libpthread.so.",
    "librt.so.",
    "libmvec.so.",
    "libresolv.so.",
    "ld-linux",
)
_USER = 10001
_PORT = 8080
_HEALTH = (
    f"exec 3<>/dev/tcp/127.0.0.1/{_PORT} && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && read -r line <&3 && "
    '[[ "$line" == *" 200 "* ]]'
)
"""With what a slim image has: no curl is installed for it."""


def containerfile(facts: BuildFacts, view: BundleView, *, archives: Sequence[Artifact], vcs: str = "") -> str:
    """The Containerfile for one flavour.

    ``archives``: the whole ``.tar.gz`` and, in that format too, what was split off. ``vcs``: where the packaging itself
    is kept, for the image's labels.

    Raises UsageError where no base image has the glibc that the bundle needs, where a library that it leaves to its
    host is in no known package, and where an image's builder cannot unpack the archives.
    """
    for archive in archives:
        if not archive.path.name.endswith(".tar.gz"):
            raise UsageError(
                f"{archive.path.name} cannot be added to an image: not every builder unpacks zstd.",
                hint="Name the .tar.gz of the same bundle.",
            )
    home = f"/opt/{facts.name}"
    lines = [
        f"# {facts.name} as a container image. Packaging alone: the verified archive is unpacked as it was published.",
        f"#   podman build -f Containerfile-{facts.flavour} -t llama:{facts.flavour} .   (in the release's folder)",
        f"#   podman run --rm -p {_PORT}:{_PORT} -v ./models:/models:ro llama:{facts.flavour} -m /models/MODEL.gguf",
        f"ARG BASE={base_image(view.floors)}",
        "FROM ${BASE}",
        *_run(facts, packages=packages_for(view)),
        *(f"ADD {archive.path.name} /opt/" for archive in archives),
        "ENV " + " ".join(f"{name}={value}" for name, value in _environment(facts).items()),
        *_labels(facts, archives, vcs),
        # A number, because that is what a cluster can check "not root" by; nothing in the image belongs to it.
        f"USER {_USER}:{_USER}",
        f"EXPOSE {_PORT}",
        "HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 \\",
        f"    CMD {json.dumps(['/bin/bash', '-c', _HEALTH])}",
        f"ENTRYPOINT {json.dumps([f'{home}/bin/llama-server'])}",
    ]
    return "\n".join(lines) + "\n"


def base_image(floors: Mapping[str, str]) -> str:
    """The oldest base image whose glibc meets the floor."""
    floor = floors.get("GLIBC", "0")
    for version, image in _BASES:
        if version_key(floor) <= version_key(version):
            return image
    raise UsageError(
        f"The bundle needs glibc {floor}, and the newest base image known has {_BASES[-1][0]}.",
        hint="Build it on an older distribution, or write the Containerfile's BASE yourself.",
    )


def packages_for(view: BundleView) -> tuple[str, ...]:
    """Distribution packages for what the bundle's files need of their host, glibc and drivers aside."""
    wanted = {edge.name for edge in view.needed if edge.origin in {"system", "missing"}}
    wanted = {name for name in wanted if not name.startswith(_FROM_GLIBC)}
    unknown = sorted(wanted - _PACKAGES.keys())
    if unknown:
        raise UsageError(
            f"No package is known for {', '.join(unknown)}, which the bundle leaves to its host.",
            hint="Bundle it, or install it in the image by hand.",
        )
    return tuple(sorted({_PACKAGES[name] for name in wanted}))


def _run(facts: BuildFacts, *, packages: Sequence[str]) -> list[str]:
    """Steps that change the base image; none where it needs nothing."""
    lines: list[str] = []
    if packages:
        lines += [
            "# hadolint ignore=DL3008",
            "RUN apt-get update \\",
            f"    && apt-get install --yes --no-install-recommends {' '.join(packages)} \\",
            "    && rm -rf /var/lib/apt/lists/*",
        ]
    if "cuda" in facts.backends:
        lines += [
            "# NVIDIA's images carry a newer libcuda that shadows the host's driver: GeForce cards reject it (error",
            "# 804), and llama.cpp then runs on the CPU without a word. Harmless where BASE has none.",
            "RUN for package in $(dpkg-query -W -f '${Package} ' 'cuda-compat-*' 2>/dev/null); do \\",
            '        apt-get purge --yes "$package" || exit 1; \\',
            "    done; \\",
            "    rm -rf /usr/local/cuda*/compat",
        ]
    return lines


def _environment(facts: BuildFacts) -> dict[str, str]:
    env = {"LLAMA_ARG_HOST": "0.0.0.0", "LLAMA_ARG_PORT": str(_PORT)}  # noqa: S104 - the container's own network
    if "cuda" in facts.backends or "vulkan" in facts.backends:
        capabilities = "compute,utility,graphics" if "vulkan" in facts.backends else "compute,utility"
        env |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": capabilities}
    return env


def _labels(facts: BuildFacts, archives: Sequence[Artifact], vcs: str) -> list[str]:
    labels = {
        "org.opencontainers.image.title": facts.name,
        "org.opencontainers.image.description": facts.summary,
        "org.opencontainers.image.version": f"{facts.ref}-b{facts.build_number}",
        "org.opencontainers.image.revision": facts.patched_commit,
        "org.opencontainers.image.source": vcs or facts.repository,
        "org.opencontainers.image.licenses": "MIT",
        "llamabuild.upstream.commit": facts.commit,
        "llamabuild.upstream.tree": facts.tree,
        **{
            f"llamabuild.archive.{index}": f"{each.path.name} sha256:{each.sha256}"
            for index, each in enumerate(archives)
        },
    }
    pairs = [f"{name}={_quoted(value)}" for name, value in labels.items()]
    return ["LABEL " + " \\\n      ".join(pairs)]


def _quoted(value: str) -> str:
    """A label's value: no variable is expanded in it, and no line ends in it."""
    return json.dumps(" ".join(value.split()), ensure_ascii=False).replace("$", "\\$")
