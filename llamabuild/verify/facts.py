"""What was seen in a bundle, beside what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llamabuild.verify.checks.floors import floors_of

if TYPE_CHECKING:
    from llamabuild.verify.subject import Subject


def facts_of(subject: Subject) -> dict[str, Any]:
    """Sizes, version floors, device code by file, and who promised what was checked."""
    return {
        "files": len(subject.files),
        "links": len(subject.links),
        "bytes": sum(file.size for file in subject.files.values()),
        "elf_files": len(subject.elves),
        "floors": {family: number for family, (number, _) in sorted(floors_of(subject).items())},
        "device_code": {
            file.path: {
                "sass": [arch for arch, _ in file.device.sass],
                "ptx": [arch for arch, _ in file.device.ptx],
                "gfx": [arch for arch, _ in file.device.gfx],
            }
            for file in subject.elves
            if file.device is not None and file.device.carried
        },
        "expected_from": subject.expected.source,
    }
