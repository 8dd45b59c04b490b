"""What a recipe promises for one target, as verification needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError
from llamabuild.verify.subject import Expected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.recipe.model import Recipe
    from llamabuild.recipe.series import Series


def expected_of(
    recipe: Recipe, *, target: str, arch: str | None, features: Sequence[str] = (), series: Sequence[Series] = ()
) -> Expected:
    """The promises of ``recipe`` for ``target``; ``features`` come on top of the recipe's own.

    ``series``: the manifests of those that the recipe uses. Their flags prove a series that is taken whole.

    Raises UsageError for a target that the recipe does not have.
    """
    spec = recipe.targets.get(target)
    if spec is None:
        raise UsageError(
            f"Recipe {recipe.name} has no target {target!r}.", hint=f"It has {', '.join(sorted(recipe.targets))}."
        )
    taken_whole = {use.name for use in recipe.series if use.groups is None and not use.without}
    whole = [each for each in series if each.name in taken_whole]
    return Expected(
        source=f"recipe {recipe.name}",
        backends=spec.backends,
        arch=spec.arch or "" if arch is None else arch,
        programs=spec.programs,
        features=recipe.source.features,
        more_features=tuple(dict.fromkeys((*features, *(name for each in whole for name in each.features)))),
        flags=tuple(dict.fromkeys(flag for each in whole for flag in each.flags)),
        build_number=recipe.source.build_number,
        commit=recipe.source.commit or "",
        tree=recipe.source.tree or "",
        glibc_floor=spec.glibc_floor,
        rpath=spec.rpath,
        rccl=spec.rccl,
        nccl=spec.nccl,
        cpu_variants=spec.cpu_variants,
        cmake=tuple(sorted(spec.cmake.items())),
    )


def choose_target(recipe: Recipe, *, asked: str | None, claimed: str, name: str) -> str:
    """The target to verify: the one asked for, else the bundle's own claim, else what its name says, else the only one.

    Raises UsageError where none of these tells.
    """
    if asked:
        return asked
    if claimed:
        return claimed
    inside = [each for each in recipe.targets if f"-{recipe.name}-{each}" in f"-{name}"]
    if inside:
        return max(inside, key=len)
    if len(recipe.targets) == 1:
        return next(iter(recipe.targets))
    raise UsageError(
        f"{name} does not tell which of recipe {recipe.name}'s targets it was made for.",
        hint=f"Name one with --target: {', '.join(sorted(recipe.targets))}.",
    )
