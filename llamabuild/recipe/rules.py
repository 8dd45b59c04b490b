"""Rules that go over more than one key. They look at the raw values, so that they speak beside the model's errors."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from llamabuild.recipe.archs import arch_fault
from llamabuild.recipe.decided import decided_by
from llamabuild.recipe.problems import Problem, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def recipe_problems(values: dict[str, Any]) -> list[Problem]:
    """What is wrong with a recipe beyond the types of its keys."""
    problems = list(_source(_table(values.get("source"))))
    targets = _table(values.get("targets"))
    if isinstance(values.get("targets"), dict) and not targets:
        problems.append(Problem(("targets",), "empty; a recipe has at least one target"))
    for name, target in targets.items():
        problems += _target(("targets", name), _table(target))
    default = values.get("default-target", "auto")
    if isinstance(default, str) and default != "auto" and targets and default not in targets:
        problems.append(Problem(("default-target",), f"names no target of this recipe{nearest(default, targets)}"))
    names = [_table(use).get("name") for use in values.get("series") or () if isinstance(use, dict)]
    problems += [
        Problem(("series", index, "name"), f"{name!r} is used twice")
        for index, name in enumerate(names)
        if isinstance(name, str) and name in names[:index]
    ]
    return problems


def series_problems(values: dict[str, Any], path: Path) -> list[Problem]:
    """What is wrong with a series manifest beyond the types of its keys; ``path`` is its file."""
    problems: list[Problem] = []
    groups = values.get("groups") or []
    parts = values.get("part")
    for index, part in enumerate(parts if isinstance(parts, list) else []):
        place = ("part", index)
        for where, group in _groups(place, _table(part)):
            if isinstance(group, str) and group and group not in groups:
                problems.append(Problem(where, f"{group!r} is not one of this series' groups{nearest(group, groups)}"))
        if _table(part).get("kind") == "files":
            problems += _files(place, part.get("files"), path.with_suffix(""))
        if _table(part).get("kind") == "range":
            problems += _range(place, part)
    return problems


def _source(source: dict[str, Any]) -> Iterator[Problem]:
    if "ref" in source and "pr" in source:
        yield Problem(("source", "pr"), "given beside ref; a source is one or the other")
    if source and not {"ref", "pr", "commit"} & set(source):
        yield Problem(("source",), "names no ref, pr or commit")
    date = source.get("date")
    if date is not None and getattr(date, "tzinfo", None) is None and hasattr(date, "hour"):
        yield Problem(("source", "date"), "has no time zone; write it as 2026-09-23T00:00:00Z")
    repository = source.get("repository")
    if isinstance(repository, str) and not repository.strip():
        yield Problem(("source", "repository"), "empty")
    mirrors = source.get("mirror")
    for index, mirror in enumerate(mirrors if isinstance(mirrors, list) else []):
        member = _table(mirror).get("member")
        if isinstance(member, str) and _leaves(member):
            yield Problem(("source", "mirror", index, "member"), f"{member!r} is not a path inside the package")


def _target(place: tuple[str, ...], target: dict[str, Any]) -> Iterator[Problem]:
    backends = target.get("backends")
    if not isinstance(backends, list):
        return
    if not backends:
        yield Problem((*place, "backends"), "empty; the least is cpu")
    if {"cuda", "hip"} <= set(map(str, backends)):
        yield Problem((*place, "backends"), "CUDA and HIP in one target; upstream cannot build both, make two targets")
    if len(set(map(str, backends))) != len(backends):
        yield Problem((*place, "backends"), "names a backend twice")
    for key, backend in (("rccl", "hip"), ("nccl", "cuda")):
        if target.get(key) is True and backend not in backends:
            yield Problem((*place, key), f"needs the {backend} backend")
    for name in _table(target.get("cmake")):
        reason = decided_by(name)
        if reason:
            yield Problem((*place, "cmake", name), f"not for cmake: {reason}")
    arch = target.get("arch")
    if isinstance(arch, str) and (wrong := _arch(arch, target)):
        yield Problem((*place, "arch"), wrong)


def _arch(arch: str, target: dict[str, Any]) -> str | None:
    """What is wrong with a target's arch."""
    backends = target.get("backends") or ()
    backend = next((backend for backend in ("cuda", "hip") if backend in backends), None)
    if backend is None:
        return "has no meaning without the cuda or hip backend"
    if arch == "auto":
        return "a recipe names its arch, or leaves it to --arch: auto is for the command line alone"
    fault = arch_fault(arch, backend=backend, single=target.get("single-arch", True) is not False)
    return f"{fault.message}; {fault.advice}" if fault else None


def _groups(place: tuple[str | int, ...], part: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    yield (*place, "group"), part.get("group")
    commits = part.get("commit")
    for number, note in enumerate(commits if isinstance(commits, list) else []):
        yield (*place, "commit", number, "group"), _table(note).get("group")


def _files(place: tuple[str | int, ...], files: Any, folder: Path) -> Iterator[Problem]:
    for name in files if isinstance(files, list) else []:
        if not isinstance(name, str):
            continue
        if _leaves(name):
            yield Problem((*place, "files"), f"{name!r} is not a path inside {folder}")
        elif not (folder / name).is_file():
            present = [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()]
            yield Problem((*place, "files"), f"there is no {folder / name}{nearest(name, present)}")


def _range(place: tuple[str | int, ...], part: dict[str, Any]) -> Iterator[Problem]:
    commits = part.get("commit")
    ids = [str(_table(note).get("id")) for note in commits] if isinstance(commits, list) else []
    for number, each in enumerate(ids):
        if each in ids[:number]:
            yield Problem((*place, "commit", number, "id"), f"{each!r} is listed twice")
    tip = part.get("tip")
    if isinstance(tip, str) and ids and not (tip.startswith(ids[-1]) or ids[-1].startswith(tip)):
        yield Problem((*place, "tip"), f"is not the last commit that is listed ({ids[-1]})")
    for group in part.get("together") or ():
        for each in group if isinstance(group, list) else ():
            if each not in ids:
                yield Problem((*place, "together"), f"{each!r} is not a commit of this range{nearest(str(each), ids)}")


def _leaves(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or not path.parts


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
