"""The choice that ``auto`` makes among a recipe's targets: by the GPUs and the toolkits of this host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.build.archs import listed
from llamabuild.build.devices import find_gpus, without_arch
from llamabuild.build.model import BuildOptions
from llamabuild.build.targets import arch_backend, arch_of, cpu_target, machine_of, make_target
from llamabuild.build.toolchain import find_problems, lacking
from llamabuild.core.errors import UsageError

if TYPE_CHECKING:
    from llamabuild.build.devices import Gpu
    from llamabuild.build.host import Host
    from llamabuild.build.model import Target
    from llamabuild.build.probe import Problem
    from llamabuild.core.context import Context
    from llamabuild.core.errors import LlamabuildError
    from llamabuild.recipe.model import Recipe, TargetSpec
    from llamabuild.source.lock import Lock


@dataclass(frozen=True)
class _Passed:
    """A GPU target that was passed over although its GPU is in this host."""

    name: str
    reason: str
    backends: tuple[str, ...]
    target: Target | None = None
    """None where the GPU's arch decided, before any tool was tried."""
    problems: tuple[Problem, ...] = ()


def choose_target(
    recipe: Recipe,
    lock: Lock,
    *,
    arch: str | None,
    host: Host,
    options: BuildOptions | None = None,
    context: Context | None = None,
) -> Target:
    """The first GPU target whose GPU is in this host and whose toolchain passes preflight, else a CPU one.

    Says on ``context``'s console why a target whose GPU is here was passed over. Raises UsageError when no target
    fits, and ToolError when a target fails that ``options`` name a toolkit for: another one is not what was meant.
    """
    chosen = options or BuildOptions()
    passed: list[_Passed] = []
    target = _first_that_works(recipe, lock, arch=arch, host=host, options=chosen, context=context, passed=passed)
    named = _named_toolkits(chosen)
    for each in passed:
        meant = named.keys() & set(each.backends)
        if meant and not (target and meant & set(target.backends)):
            raise _refusal(each, recipe, host, chosen)
    if context is not None:
        for each in passed:
            context.console.note(f"target {each.name} was passed over: {each.reason}")
    if target is None:
        target = _plain(recipe, lock, arch=arch, host=host)
    if context is not None:
        for option in (option for backend, option in named.items() if backend not in target.backends):
            context.console.note(f"{option} is of no use to target {target.name}, which fits this host")
    return target


def _first_that_works(
    recipe: Recipe,
    lock: Lock,
    *,
    arch: str | None,
    host: Host,
    options: BuildOptions,
    context: Context | None,
    passed: list[_Passed],
) -> Target | None:
    gpus = find_gpus(host)
    for name, spec in recipe.targets.items():
        backends = tuple(spec.backends)
        reason = _unfit(spec, gpus, arch, host)
        if reason is None:
            given = arch or (None if spec.arch or arch_backend(spec) is None else "auto")
            target = make_target(name, spec, lock, arch=arch_of(name, spec, given, host), machine=machine_of(host))
            problems = find_problems(target, host=host, options=options, context=context)
            if not problems:
                return target
            reason = "; ".join(problem.message for problem in problems)
            passed.append(_Passed(name, reason, backends, target, problems))
        elif reason:
            passed.append(_Passed(name, reason, backends))
    return None


def _plain(recipe: Recipe, lock: Lock, *, arch: str | None, host: Host) -> Target:
    names = listed(sorted(recipe.targets))
    if arch is not None:
        raise UsageError(
            f"--arch {arch}: no target of recipe {recipe.name} for that arch fits this host.",
            hint=f"Name the target too, with --target: {names}.",
        )
    plain = cpu_target(recipe)
    if plain is None:
        raise UsageError(
            f"Recipe {recipe.name} has no target for the CPU alone, and none of its others fits this host.",
            hint=f"Name one with --target: {names}.",
        )
    return make_target(plain, recipe.targets[plain], lock, arch="", machine=machine_of(host))


def _named_toolkits(options: BuildOptions) -> dict[str, str]:
    """The backends that a person named a toolkit for, and the option each was named with."""
    given = (
        ("cuda", "--cuda-toolkit", options.cuda_toolkit),
        ("hip", "--rocm", options.rocm),
        ("vulkan", "--vulkan-sdk", options.vulkan_sdk),
    )
    return {backend: option for backend, option, value in given if value is not None}


def _refusal(passed: _Passed, recipe: Recipe, host: Host, options: BuildOptions) -> LlamabuildError:
    if passed.target is not None:
        return lacking(passed.target, passed.problems, host=host, recipe=recipe, options=options)
    return UsageError(
        f"Target {passed.name} does not fit this host: {passed.reason}.",
        hint=f"Name a target with --target ({listed(sorted(recipe.targets))}), and its arch with --arch.",
    )


def _unfit(spec: TargetSpec, gpus: tuple[Gpu, ...], arch: str | None, host: Host) -> str | None:
    """None where the target's GPU is in this host; else why not, or nothing where no such GPU is here at all."""
    backend = arch_backend(spec)
    if backend is None:
        return None if gpus and "vulkan" in spec.backends and arch is None else ""
    here = [gpu for gpu in gpus if gpu.vendor == ("nvidia" if backend == "cuda" else "amd")]
    if not here or (arch not in {None, "auto"} and str(arch).startswith("gfx") != (backend == "hip")):
        return ""
    present = sorted({gpu.arch for gpu in here if gpu.arch})
    return _unfit_arch(backend, present, arch or spec.arch or "auto") if present else without_arch(backend, host)


def _unfit_arch(backend: str, present: list[str], wanted: str) -> str | None:
    gpu = f"this host's {'NVIDIA' if backend == 'cuda' else 'AMD'} GPU"
    if wanted == "auto":
        # Several different GPUs are a choice that a person makes.
        return None if len(present) == 1 else f"{gpu}s are of the archs {' and '.join(present)}: choose with --arch"
    if set(present) & {_bare(one, backend) for one in wanted.split(",")}:
        return None
    return f"it is for arch {wanted}, and {gpu} is {' and '.join(present)}"


def _bare(arch: str, backend: str) -> str:
    """``86`` of ``86-real``, ``120`` of ``120a``: what a GPU calls itself."""
    return re.sub(r"[af]?(-real|-virtual)?$", "", arch) if backend == "cuda" else arch
