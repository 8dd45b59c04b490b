"""Write an ELF file anew with another rpath: ``python -m llamabuild.elf.rewrite SOURCE TARGET TAG [RPATH]``.

A program of its own, because LIEF takes twice the file's size in memory, which ends with the process, and because a
damaged file can make it crash, which must not take the caller along.
"""

from __future__ import annotations

import sys


def rewrite(source: str, target: str, tag: str, rpath: str | None) -> None:
    """Write ``target`` with ``rpath`` as its only DT_RPATH or DT_RUNPATH (``tag``), or with neither.

    Raises whatever LIEF does.
    """
    import lief

    lief.logging.disable()
    binary = lief.ELF.parse(source)
    if binary is None:
        raise ValueError("LIEF does not take it for an ELF file")
    tags = lief.ELF.DynamicEntry.TAG
    for kind in (tags.RPATH, tags.RUNPATH):
        while binary.has(kind):
            binary.remove(kind)
    if rpath is not None:
        entry = lief.ELF.DynamicEntryRpath if tag == "rpath" else lief.ELF.DynamicEntryRunPath
        binary.add(entry(rpath))
    binary.write(target)


def main(argv: list[str]) -> int:
    """Run from the command line."""
    source, target, tag, *rpath = argv
    try:
        rewrite(source, target, tag, rpath[0] if rpath else None)
    except Exception as exc:  # noqa: BLE001 - the parent tells the user, whatever LIEF throws at a damaged file
        sys.stdout.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
