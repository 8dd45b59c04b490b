"""An inspection in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llamabuild.verify.inspect.model import Inspection

_NATIVE = {True: "native (for the building machine's own processor)", False: "portable", None: "not told"}
_SHOWN = ("build_type", "generator", "toolkit", "source", "commit", "build_number", "recipe", "target")


def render_inspection(inspection: Inspection, *, everything: bool) -> str:
    """One line a fact; backends that are off are one line together unless ``everything`` is asked for."""
    return "\n".join(_lines(inspection, everything=everything))


def _lines(inspection: Inspection, *, everything: bool) -> Iterator[str]:
    yield f"{inspection.subject} ({inspection.kind})"
    off = []
    for name, backend in inspection.backends.items():
        if backend.state == "off" and not everything:
            off.append(name)
            continue
        parts = [part for part in (backend.kind, backend.option, backend.note) if part]
        yield f"  {name:<12} {backend.state:<8} {', '.join(parts)}".rstrip()
    if off:
        yield f"  off          {', '.join(off)}"
    if inspection.archs:
        yield f"  archs        {', '.join(inspection.archs)}"
    source = f", by {inspection.native_from}" if inspection.native_from else ""
    yield f"  processor    {_NATIVE[inspection.native]}{source}"
    collectives = ((name, getattr(inspection, name)) for name in ("nccl", "rccl"))
    told = [f"{name} {'on' if state else 'off'}" for name, state in collectives if state is not None]
    if told:
        yield f"  collectives  {', '.join(told)}"
    yield from _told(inspection)
    yield from _wrong(inspection)


def _told(inspection: Inspection) -> Iterator[str]:
    for key in _SHOWN:
        if value := inspection.details.get(key):
            yield f"  {key.replace('_', ' '):<12} {value}"
    for language, path in (inspection.details.get("compilers") or {}).items():
        yield f"  {language + ' compiler':<12} {path}"


def _wrong(inspection: Inspection) -> Iterator[str]:
    if inspection.kind == "build" and not inspection.details.get("configured"):
        yield "  not configured: CMake did not get to the end, so nothing is built by what stands here"
    for each in inspection.ignored_options:
        meant = f"; this tree reads {each.suggestion}" if each.suggestion else "; nothing here reads it"
        yield f"  ignored: {each.name}={each.value}{meant}{f' ({each.note})' if each.note else ''}"
    for tool in inspection.missing_tools:
        yield f"  not found: {tool}"
    for text in inspection.leftovers:
        yield f"  left over: {text}"
    for text in inspection.disagreements:
        yield f"  disagree: {text}"
