"""What ``release`` does: the pipeline once for each flavour, then the release folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.build.model import BuildOptions
from llamabuild.core.errors import UsageError
from llamabuild.core.files import scratch_folder, write_text
from llamabuild.pipeline import Job, Request, build, make, open_job
from llamabuild.recipe.load import load_recipe, load_series
from llamabuild.release.assemble import require_absent, write_release
from llamabuild.release.baseline import baseline_recipe, recipe_text
from llamabuild.release.collect import collect_parts
from llamabuild.release.flavours import read_flavours
from llamabuild.release.matrix import target_of
from llamabuild.release.ninja import read_ninja_log
from llamabuild.release.part import Built, Extras, Part, archives_in, is_split, open_together, read_release, write_part
from llamabuild.source.export import export_series
from llamabuild.verify.check import verify_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llamabuild.bundle.model import Artifact
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe
    from llamabuild.release.facts import BuildFacts
    from llamabuild.release.flavours import Flavour


@dataclass(frozen=True)
class Wanted:
    """A release as asked for on the command line."""

    recipe: str
    flavours: tuple[str, ...]
    out: Path
    source: Path | None = None
    """Where finished parts are; None: build them."""
    since: Path | None = None
    baseline: bool = False
    container: bool = False
    wheel: bool = False
    smoke: bool = False
    options: BuildOptions = field(default_factory=BuildOptions)


def run_release(wanted: Wanted, context: Context) -> tuple[Artifact, ...]:
    """Make the release; returns every published file. Whatever can be told early is told before anything is built."""
    require_absent(wanted.out)
    recipe = load_recipe(wanted.recipe, context)
    flavours = read_flavours(wanted.flavours, context.cwd)
    targets = tuple((flavour.target, target_of(recipe, flavour)[1]) for flavour in flavours)
    since = read_release(wanted.since) if wanted.since else ()
    since_name = wanted.since.resolve().name if wanted.since else ""
    if wanted.source is not None:
        source = wanted.source
        if not source.is_dir():
            raise UsageError(f"There is no folder {source}.", hint="Name the folder that the parts were put in.")

        def collect(folder: Path) -> Sequence[Part]:
            return collect_parts(source, folder, recipe=recipe, flavours=targets, since=since)

        return write_release(wanted.out, fill=collect, since=since_name)
    if not flavours:
        raise UsageError(
            f"No flavour of recipe {recipe.name} is named.",
            hint=f"Name each with --flavour TARGET:ARCH, or a file; it has {', '.join(sorted(recipe.targets))}.",
        )
    with scratch_folder(context.home.root, prefix="release-") as scratch:
        requests = list(_requests(wanted, recipe, flavours, context=context, scratch=scratch))
        # The last flavour's missing tool is told now, not after the others were built.
        jobs = [open_job(request, context) for request in requests]

        def fill(folder: Path) -> Sequence[Part]:
            parts = [
                _part(request, job, folder, wanted=wanted, context=context, since=since)
                for request, job in zip(requests, jobs, strict=True)
            ]
            for use in recipe.series:
                name = f"llama-{recipe.name}-patches-{use.name}.tar.gz"
                export_series(use.name, folder / name, context, beside=recipe.file)
            return parts

        return write_release(wanted.out, fill=fill, since=since_name)


def _requests(
    wanted: Wanted, recipe: Recipe, flavours: Sequence[Flavour], *, context: Context, scratch: Path
) -> Iterator[Request]:
    recipes = [wanted.recipe]
    if wanted.baseline and not recipe.series:
        context.console.note(f"recipe {recipe.name} has no series: it is its own baseline")
    elif wanted.baseline:
        brought = {
            name for use in recipe.series for name in load_series(use.name, context, beside=recipe.file)[0].features
        }
        baseline = baseline_recipe(recipe, series_features=brought)
        path = scratch / "recipes" / f"{baseline.name}.toml"
        write_text(path, recipe_text(baseline))
        recipes.append(str(path))
    for name in recipes:
        for flavour in flavours:
            spec, arch = target_of(recipe, flavour)
            toolkit = (flavour.toolkit or wanted.options.cuda_toolkit) if "cuda" in spec.backends else None
            options = replace(wanted.options, cuda_toolkit=toolkit)
            yield Request(recipe=name, target=flavour.target, arch=arch or None, options=options)


def _part(
    request: Request, job: Job, folder: Path, *, wanted: Wanted, context: Context, since: Sequence[BuildFacts]
) -> Part:
    started = context.now()
    with scratch_folder(context.home.root, prefix="release-") as out:
        made = make(request, out, context)
        archives = archives_in(out, made.name)
        whole = archives[0]
        if is_split(archives):
            (out / "whole").mkdir()
            whole = open_together(archives, out / "whole")
        with context.console.step(f"verify {made.name}"):
            report = verify_path(whole, context=context, recipe=job.recipe, target=request.target, arch=request.arch)
        steps = read_ninja_log(build(request, context).folder / ".ninja_log")
        built = Built(archives=archives, report=report, started=started, steps=steps)
        since_name = wanted.since.resolve().name if wanted.since else ""
        extras = Extras(container=wanted.container, wheel=wanted.wheel, smoke=wanted.smoke)
        return write_part(built, folder, context=context, extras=extras, since=since, since_name=since_name)
