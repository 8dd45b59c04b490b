"""The stages in order: recipe to lock, patched source, build, staged bundle, verified archives in ``out``.

Each stage's result is recorded under a key of its inputs, the key of the stage before it included; a stage whose key is
unchanged, and whose files still are as it left them, is skipped. Everything is made under ``context.home`` and moved to
``out`` at the end, so that nothing half-made or unverified is ever found there.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from llamabuild import __version__
from llamabuild.build.cmake import configure_and_build
from llamabuild.build.host import Host
from llamabuild.build.model import BuildOptions, BuildTree, Target, Toolchain
from llamabuild.build.targets import resolve_target
from llamabuild.build.toolchain import preflight
from llamabuild.bundle.model import Artifact, BundlePlan, StagedBundle
from llamabuild.bundle.names import bundle_name
from llamabuild.bundle.options import BundleOptions
from llamabuild.core.errors import BundleError, ToolError
from llamabuild.core.files import key_of, locked, sha256_file
from llamabuild.core.stages import StageStore
from llamabuild.recipe.features import load_features
from llamabuild.recipe.load import load_recipe
from llamabuild.release.publish import check_new_folder, publish, publish_folder, require_verified
from llamabuild.source.apply import patched_source
from llamabuild.source.lock import PatchedSource
from llamabuild.source.resolve import record_toolkit, resolve
from llamabuild.source.worktree import check_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llamabuild.bundle.trees import Vendor
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe
    from llamabuild.source.lock import Lock
    from llamabuild.verify.findings import Report

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What a user asked to be made."""

    recipe: str
    target: str | None = None
    arch: str | None = None
    options: BuildOptions = field(default_factory=BuildOptions)
    bundle: BundleOptions = field(default_factory=BundleOptions)
    keep_conflict: Path | None = None
    """Where a tree with conflict markers goes when a patch does not fit."""


@dataclass(frozen=True)
class Bundled:
    """A staged bundle with the plan it was made by."""

    staged: StagedBundle
    plan: BundlePlan

    @property
    def sources(self) -> list[Path]:
        """The files it was copied from: a vendor's or the system's may be replaced by an update."""
        return [entry.source for entry in self.plan.entries if entry.source is not None]


@dataclass(frozen=True)
class Job:
    """A request with everything decided that decides the result, and the keys of its stages."""

    recipe: Recipe
    lock: Lock
    target: Target
    toolchain: Toolchain
    bundle: BundleOptions
    keep_conflict: Path | None
    vendor: Vendor | None
    """The ROCm tree that the target is built with; None where the build's own libraries are to be followed."""
    source_key: str
    build_key: str
    bundle_key: str

    @property
    def name(self) -> str:
        """The top folder's and the archives' name, by the bundle contract."""
        return bundle_name(self.lock.recipe, self.target.name, self.target.arch)


@dataclass(frozen=True)
class Made:
    """What ``make`` published."""

    name: str
    artifacts: tuple[Artifact, ...]
    unchanged: bool
    """Whether everything was there already, with the right digests."""


def open_job(request: Request, context: Context) -> Job:
    """Load and resolve the recipe, choose the target, try the tools: every mistake that can be told early is told here.

    Raises RecipeError, UsageError (2), SourceError (3), ToolError (5).
    """
    from llamabuild.bundle.trees import target_vendor

    recipe = load_recipe(request.recipe, context)
    lock = resolve(recipe, context)
    host = Host.of(context)
    target = resolve_target(
        recipe, lock, name=request.target, arch=request.arch, host=host, options=request.options, context=context
    )
    toolchain = preflight(target, host=host, context=context, options=request.options, recipe=recipe)
    if toolchain.checksums:
        record_toolkit(recipe.name, dict(toolchain.checksums), context)
    known = load_features(context)
    source_key = key_of(
        {
            "stage": "source",
            "rules": rules_digest("recipe", "source"),
            "lock": asdict(lock),
            "features": [known[name].model_dump(mode="json") for name in lock.features if name in known],
        }
    )
    build_key = key_of(
        {
            "stage": "build",
            "rules": rules_digest("build"),
            "source": source_key,
            "target": asdict(target),
            "tools": [[tool.name, str(tool.path), tool.version] for tool in toolchain.tools],
            "entries": toolchain.entries,
            "checksums": toolchain.checksums,
        }
    )
    vendor = target_vendor(
        target,
        rocm=toolchain.options.rocm,
        folders=toolchain.runtime_folders,
        keep=request.bundle.keep_archs,
        thin=request.bundle.thin,
    )
    return Job(
        recipe=recipe,
        lock=lock,
        target=target,
        toolchain=toolchain,
        bundle=request.bundle,
        keep_conflict=request.keep_conflict,
        vendor=vendor,
        source_key=source_key,
        build_key=build_key,
        bundle_key=key_of(
            {
                "stage": "bundle",
                "rules": rules_digest("elf", "bundle"),
                "build": build_key,
                "options": asdict(request.bundle),
                # What is taken from the tree is looked at when the stage's record is; these may have come since.
                "vendor": [str(path) for path in vendor.always()] if vendor else [],
            }
        ),
    )


def rules_digest(*parts: str) -> str:
    """A digest of this program's own rules in some of its packages (all of them by default).

    A changed program never takes over what an older one made; one whose report page alone changed takes over the build.
    """
    package = Path(__file__).parent
    folders = [package / part for part in ("core", *parts)] if parts else [package]
    patterns = ("*.py", "*.sh", "*.toml", "*.json")
    files = sorted(path for folder in folders for pattern in patterns for path in folder.rglob(pattern))
    return key_of([__version__, [[str(path.relative_to(package)), sha256_file(path)] for path in files]])


def make(request: Request, out: Path, context: Context) -> Made:
    """All stages, to verified archives with their sums in ``out``; what is there already is checked and kept.

    Raises what the stages raise, and ToolError (5) before the build for a ROCm tree without kernels for the arch.
    """
    job = open_job(request, context)
    store = StageStore(context.home.stages)
    key = key_of({"stage": "pack", "rules": rules_digest(), "bundle": job.bundle_key, "out": str(out.absolute())})
    kept = _recorded(store, key, tuple[Artifact, ...])
    if kept is not None and all(sha256_file(artifact.path) == artifact.sha256 for artifact in kept):
        return Made(name=job.name, artifacts=kept, unchanged=True)
    with _holding(job, context):
        bundled = _bundle(job, context)
        artifacts = _pack(job, bundled, out, context)
    files = [*(artifact.path for artifact in artifacts), *bundled.sources]
    store.save(key, _as_json(tuple[Artifact, ...], artifacts), files=files)
    return Made(name=job.name, artifacts=artifacts, unchanged=False)


def build(request: Request, context: Context) -> BuildTree:
    """The build stage and what it needs."""
    job = open_job(request, context)
    with _holding(job, context):
        return _build(job, context)


def bundle(request: Request, context: Context, *, to: Path | None = None) -> tuple[StagedBundle, Report]:
    """The bundle stage and what it needs; ``to`` gets a copy of the verified folder under its name."""
    if to is not None:
        check_new_folder(to)
    job = open_job(request, context)
    with _holding(job, context):
        staged = _bundle(job, context).staged
        report = _judge(job, context, staged.root)
        if to is not None:
            publish_folder(staged, to)
    return staged, report


@contextmanager
def _holding(job: Job, context: Context) -> Iterator[None]:
    """Keep two runs for one recipe apart; others go on side by side."""
    guard = context.home.locks / f"make-{job.lock.recipe}.lock"
    with locked(guard, on_wait=f"waiting for another run of recipe {job.lock.recipe}", say=context.console.note):
        yield


def _source(job: Job, context: Context) -> PatchedSource:
    def work() -> PatchedSource:
        with context.console.step(f"source {job.lock.recipe}"):
            return patched_source(job.recipe, job.lock, context, keep_conflict=job.keep_conflict)

    return _stage(job.source_key, PatchedSource, context, work=work, files=lambda _: [])


def _build(job: Job, context: Context) -> BuildTree:
    def work() -> BuildTree:
        patched = _source(job, context)
        tree = check_out(patched, context.home.src / job.lock.recipe, context)
        return configure_and_build(patched, tree, job.target, job.toolchain, context)

    return _stage(job.build_key, BuildTree, context, work=work, files=lambda built: [file.path for file in built.files])


def _bundle(job: Job, context: Context) -> Bundled:
    from llamabuild.bundle.run import bundle_build

    def work() -> Bundled:
        _check_kernels(job)
        built = _build(job, context)
        strip = job.toolchain.tool("strip")
        staged, plan = bundle_build(
            built,
            context.home.root / "bundles",
            name=job.name,
            date=job.lock.date,
            context=context,
            strip_tool=strip.path if strip else None,
            patched=_source(job, context),
            vendor=job.vendor,
            runtime=job.bundle.runtime_for(job.target.backends),
        )
        return Bundled(staged=staged, plan=plan)

    def files(bundled: Bundled) -> list[Path]:
        staged = bundled.staged.root.rglob("*")
        return [*bundled.sources, *(path for path in sorted(staged) if path.is_file() and not path.is_symlink())]

    return _stage(job.bundle_key, Bundled, context, work=work, files=files)


def _check_kernels(job: Job) -> None:
    """Refuse a ROCm tree that cannot serve the bundle before an hour is spent on the build."""
    from llamabuild.bundle.plan import check_kernels

    if job.vendor is None or job.bundle.runtime_for(job.target.backends) == "system":
        return
    try:
        check_kernels(job.vendor)
    except BundleError as failure:
        raise ToolError(failure.message, hint=failure.hint) from failure


def _pack(job: Job, bundled: Bundled, out: Path, context: Context) -> tuple[Artifact, ...]:
    split = job.bundle.runtime_for(job.target.backends) == "split"
    judge = partial(_judge, job, context)
    judge(bundled.staged.root)
    return publish(bundled.staged, bundled.plan, out, split=split, judge=judge, context=context)


def _judge(job: Job, context: Context, path: Path) -> Report:
    return require_verified(path, context=context, recipe=job.recipe, target=job.target.name, arch=job.target.arch)


def _stage(key: str, kind: type[T], context: Context, *, work: Callable[[], T], files: Callable[[T], list[Path]]) -> T:
    store = StageStore(context.home.stages)
    kept = _recorded(store, key, kind)
    if kept is not None:
        return kept
    made = work()
    store.save(key, _as_json(kind, made), files=files(made))
    return made


def _recorded(store: StageStore, key: str, kind: type[T]) -> T | None:
    record = store.load(key)
    return None if record is None else TypeAdapter(kind).validate_python(record)


def _as_json(kind: type[T], value: T) -> object:
    return TypeAdapter(kind).dump_python(value, mode="json")
