"""Libraries with HIP device code, made by gcc: the section's layout is clang's, the code is random bytes."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path


def offload_bundle(objects: dict[str, bytes]) -> bytes:
    """A bundle as clang-offload-bundler writes it: a host entry without code, each code object on a page."""
    entries = [
        ("host-x86_64-unknown-linux-gnu-", b""),
        *((f"hipv4-amdgcn-amd-amdhsa--{arch}", code) for arch, code in objects.items()),
    ]
    head = len(b"__CLANG_OFFLOAD_BUNDLE__") + 8 + sum(24 + len(name) for name, _ in entries)
    at = -(-head // 4096) * 4096
    table, body = b"", b""
    for name, code in entries:
        table += struct.pack("<QQQ", at, len(code), len(name)) + name.encode()
        if code:
            body += code + bytes(-len(code) % 4096)
            at += len(code) + (-len(code) % 4096)
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries)) + table
    return header.ljust(-(-head // 4096) * 4096, b"\0") + body


def code(seed: int, size: int = 40_000) -> bytes:
    return b"\x7fELF" + random.Random(seed).randbytes(size)


def hip_library(path: Path, *bundles: bytes, flags: tuple[str, ...] = (), section: str = ".hip_fatbin") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.with_name(f".{path.name}.data")
    data.write_bytes(b"".join(bundle.ljust(-(-len(bundle) // 4096) * 4096, b"\0") for bundle in bundles))
    source = f"""
        .globl f
        .type f, @function
    f:  ret
        .size f, .-f
        .section {section},"a",@progbits
        .p2align 12
        .incbin "{data}"
        .section .note.GNU-stack,"",@progbits
    """
    subprocess.run(
        ["gcc", "-shared", "-x", "assembler", "-", "-o", path, f"-Wl,-soname,{path.name}", "-x", "none", *flags],
        input=source,
        text=True,
        check=True,
    )
    data.unlink()
    return path
