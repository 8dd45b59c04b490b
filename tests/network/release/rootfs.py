"""What an image's builder would do with a Containerfile, done to a folder: for machines without a container engine."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Image:
    """A root tree and how it is to be started."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: tuple[str, ...] = ()
    health: tuple[str, ...] = ()

    def script(self, inside: str, *, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run a bash script inside: own network, mounts and processes, the image's user and environment alone.

        ``$@`` is the entry point with ``arguments``; ``$HEALTH`` is run by ``health`` in the script.
        """
        pairs = [f"{name}={value}" for name, value in {"PATH": "/usr/bin:/bin", **self.env}.items()]
        health = f"health() {{ {shlex.join(self.health)}; }}\n"
        outside = 'ip link set lo up && mount -t proc proc "$1/proc" && shift && exec "$@"'
        alone = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", outside, "-")
        entered = ("chroot", f"--userspec={self.user}", self.root, "/usr/bin/env", "-i", *pairs)
        return subprocess.run(
            [*alone, self.root, *entered, "/bin/bash", "-c", health + inside, "-", *self.entrypoint, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )


def build(containerfile: Path, image: Image) -> Image:
    """Do what each line says to ``image.root``, which holds the base image; other instructions are an error."""
    text = re.sub(r"^#.*\n", "", containerfile.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        word, _, rest = line.partition(" ")
        if word == "RUN":
            subprocess.run(["chroot", image.root, "/bin/sh", "-c", rest], check=True)
        elif word == "ADD":
            source, target = rest.split()
            folder = image.root / target.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["tar", "xzf", containerfile.parent / source, "-C", folder, "--no-same-owner"], check=True)
        elif word in {"ENV", "LABEL"}:
            pairs = dict(pair.split("=", 1) for pair in shlex.split(rest))
            (image.env if word == "ENV" else image.labels).update(pairs)
        elif word == "USER":
            image.user = rest
        elif word == "ENTRYPOINT":
            image.entrypoint = tuple(json.loads(rest))
        elif word == "HEALTHCHECK":
            image.health = tuple(json.loads(rest.partition("CMD ")[2]))
        elif word not in {"ARG", "FROM", "EXPOSE", ""}:
            raise ValueError(line)
    return image
