"""Inspect binaries: a bundle's folder or archive, or a single ELF file, ours or anybody's."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llamabuild.build.option_names import BACKENDS
from llamabuild.verify.build_info import claimed_by, read_build_info
from llamabuild.verify.checks.floors import floors_of
from llamabuild.verify.inspect.model import Backend, Inspection
from llamabuild.verify.inspect.symbols import build_identity, linked_backends
from llamabuild.verify.patterns import Patterns
from llamabuild.verify.scan import Tree, read_file, scan_tree
from llamabuild.verify.subject import Subject, backend_of, is_plugin_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llamabuild.verify.subject import File

_USES = {
    "cuda": ("libcuda.so.*", "libcudart.so.*", "libcublas.so.*"),
    "hip": ("libamdhip64.so.*", "librocblas.so.*", "libhipblas.so.*"),
    "vulkan": ("libvulkan.so.*",),
    "sycl": ("libsycl.so.*",),
    "opencl": ("libOpenCL.so.*",),
    "musa": ("libmusa.so.*", "libmusart.so.*"),
}
_MAIN = ("cpu", "cuda", "hip", "vulkan")
"""Backends that are told about even where there is no sign of them."""


def inspect_folder(
    root: Path, *, subject: str, kind: Literal["bundle", "archive"], workers: int | None = None
) -> Inspection:
    """Inspect every ELF file of a folder; BUILD_INFO is held against them where there is one."""
    root = root.resolve()
    info, problem = read_build_info(root)
    tree = scan_tree(root, patterns=Patterns(searching=False), workers=workers, digests=False)
    seen = Subject.of(tree, root=root, name=root.name, info=info, info_error=problem)
    inspection = from_binaries(seen, subject=subject, kind=kind)
    if info is None:
        return inspection
    return _with_claims(inspection, info)


def inspect_elf(path: Path) -> Inspection:
    """Inspect one ELF file. Raises OSError where it cannot be read, ElfError where it is damaged."""
    from llamabuild.elf.read import read_elf

    read_elf(path)
    file = read_file(path.name, path, path.stat(), patterns=Patterns(searching=False), digests=False)
    tree = Tree(files={path.name: file}, links={}, folders={}, special=(), unreadable={})
    seen = Subject.of(tree, root=path.parent, name="", info=None, info_error="")
    inspection = from_binaries(seen, subject=str(path), kind="elf")
    elf = file.elf
    if elf is None:
        return inspection
    details = {
        **inspection.details,
        "machine": elf.machine,
        "soname": elf.soname,
        "needed": list(elf.needed),
        "rpath": elf.rpath,
        "runpath": elf.runpath,
        "relro": elf.relro,
    }
    return Inspection(**{**vars(inspection), "details": details})


def from_binaries(seen: Subject, *, subject: str, kind: Literal["bundle", "archive", "elf"]) -> Inspection:
    """What the ELF files of a folder, or one alone, tell."""
    backends = _backends(seen)
    number, commit = _identity(seen.elves)
    device = {
        file.path: {
            key: [arch for arch, _ in getattr(file.device, key)]
            for key in ("sass", "ptx", "gfx", "emptied")
            if getattr(file.device, key)
        }
        for file in seen.elves
        if file.device is not None and file.device.carried
    }
    needs = {name for file in seen.elves if file.elf for name in file.elf.needed}
    return Inspection(
        subject=subject,
        kind=kind,
        backends=backends,
        archs=tuple(_archs(seen)),
        rccl=_uses(needs, "librccl.so.*") if backends.get("hip", _OFF).state == "on" else None,
        nccl=_uses(needs, "libnccl.so.*") if backends.get("cuda", _OFF).state == "on" else None,
        missing_tools=(),
        details={
            "build_number": number,
            "commit": commit,
            "device_code": device,
            "floors": {family: version for family, (version, _) in sorted(floors_of(seen).items())},
            "programs": [file.path for file in seen.programs],
            "plugins": any(backend.kind == "plugin" for backend in backends.values()),
            "damaged": sorted(path for path, file in seen.files.items() if file.elf_error),
        },
    )


_OFF = Backend("off")


def _uses(needs: set[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in needs)


def _backends(seen: Subject) -> dict[str, Backend]:
    needed = {name for file in seen.elves if file.elf for name in file.elf.needed}
    found: dict[str, Backend] = {}
    for file in seen.elves:
        if is_plugin_name(file.name) or file.name.startswith("libggml-"):
            name = backend_of(file.name)
            if name in BACKENDS and name not in found:
                linked = bool(needed & {file.name, (file.elf.soname if file.elf else None) or file.name})
                found[name] = Backend("on", file.path, "linked" if linked else "plugin")
    for file in seen.elves:
        if not file.of_llama and len(seen.files) > 1:
            continue
        for name, defined in linked_backends(file.real).items():
            # HIP builds compile CUDA's sources, registration function and all: what the file needs tells them apart.
            real = "hip" if name == "cuda" and _is_hip(file) else name
            if defined and real in BACKENDS and real not in found and not is_plugin_name(file.name):
                found[real] = Backend("on", file.path, "linked")
    for name in _MAIN:
        found.setdefault(name, _OFF)
    return dict(sorted(found.items()))


def _is_hip(file: File) -> bool:
    needed = file.elf.needed if file.elf else ()
    return any(fnmatchcase(name, pattern) for name in needed for pattern in _USES["hip"]) or bool(
        file.device and file.device.gfx
    )


def _archs(seen: Subject) -> Iterator[str]:
    """Archs of llama.cpp's own files: SASS as ``86-real``, PTX as ``80-virtual``, both as ``86``, gfx by name."""
    told: dict[str, None] = {}
    for file in seen.elves:
        if file.device is None or not (file.of_llama or len(seen.files) == 1):
            continue
        sass = {arch for arch, _ in file.device.sass}
        ptx = {arch for arch, _ in file.device.ptx}
        for arch in sorted(sass | ptx, key=lambda each: (int(each.rstrip("af")), each)):
            told[arch if arch in sass & ptx else f"{arch}-real" if arch in sass else f"{arch}-virtual"] = None
        told.update((arch, None) for arch, _ in file.device.gfx)
    yield from told


def _identity(files: Sequence[File]) -> tuple[int | None, str | None]:
    for file in sorted(files, key=lambda each: not each.name.startswith("libllama-common")):
        if file.name.startswith(("libllama-common", "llama-", "libcommon")):
            number, commit = build_identity(file.real)
            if number is not None or commit is not None:
                return number, commit
    return None, None


def _with_claims(inspection: Inspection, info: Mapping[str, Any]) -> Inspection:
    claimed = claimed_by(info)
    details = dict(inspection.details)
    disagreements = []
    for key, told in (("build_number", claimed.build_number), ("commit", claimed.commit or None)):
        read = details.get(key)
        if read is not None and told is not None and not str(told).startswith(str(read)):
            disagreements.append(f"BUILD_INFO.json tells the {key.replace('_', ' ')} {told}, the binaries {read}.")
        details[key] = read if read is not None else told
    disagreements += [
        f"BUILD_INFO.json tells the backend {name}, and no file has it."
        for name in claimed.backends or ()
        if inspection.backends.get(name, _OFF).state != "on"
    ]
    details |= {
        "recipe": info.get("recipe"),
        "target": info.get("target"),
        "features": list(claimed.features),
        "compilers": {"cxx": str(info.get("compiler", ""))},
        "source": info.get("upstream_repo"),
    }
    values = {**vars(inspection), "details": details, "disagreements": tuple(disagreements)}
    config = {entry["name"]: entry["value"] for entry in info.get("cmake_config", []) if isinstance(entry, dict)}
    if "GGML_NATIVE" in config:
        values |= {
            "native": str(config["GGML_NATIVE"]).upper() not in {"OFF", "0", "FALSE"},
            "native_from": "BUILD_INFO",
        }
    return Inspection(**values)
