"""The stages in order: recipe to lock, patched source, build, staged bundle, verified archives in ``out``.

Each stage's result is recorded under a key of its inputs, the key of the stage before it included; a stage whose key is
unchanged, and whose files still are as it left them, is skipped. Everything is made under ``context.home`` and moved to
``out`` at the end, so that nothing half-made or unverified is ever found there.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
from llamabuild.core.errors import VerificationError
from llamabuild.core.files import key_of, locked, sha256_file
from llamabuild.core.stages import StageStore
from llamabuild.recipe.load import load_recipe
from llamabuild.source.apply import patched_source
from llamabuild.source.lock import PatchedSource
from llamabuild.source.resolve import resolve
from llamabuild.source.worktree import check_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@dataclass(frozen=True)
class Job:
    """A request with everything decided that decides the result, and the keys of its stages."""

    recipe: Recipe
    lock: Lock
    target: Target
    toolchain: Toolchain
    source_key: str
    build_key: str
    bundle_key: str

    @property
    def name(self) -> str:
        """The top folder's and the archives' name, by the bundle contract."""
        arch = f"-{self.target.arch}" if self.target.arch else ""
        return f"llama-{self.lock.recipe}-{self.target.name}{arch}"


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
    recipe = load_recipe(request.recipe, context)
    lock = resolve(recipe, context)
    host = Host.of(context)
    target = resolve_target(recipe, lock, name=request.target, arch=request.arch, host=host)
    toolchain = preflight(target, host=host, context=context, options=request.options, recipe=recipe)
    source_key = key_of({"stage": "source", "lock": asdict(lock), "rules": rules_digest()})
    build_key = key_of(
        {
            "stage": "build",
            "source": source_key,
            "target": asdict(target),
            "tools": [[tool.name, str(tool.path), tool.version] for tool in toolchain.tools],
            "entries": toolchain.entries,
            "checksums": toolchain.checksums,
        }
    )
    return Job(
        recipe=recipe,
        lock=lock,
        target=target,
        toolchain=toolchain,
        source_key=source_key,
        build_key=build_key,
        bundle_key=key_of({"stage": "bundle", "build": build_key}),
    )


def rules_digest() -> str:
    """A digest of this program's own rules: a changed program never takes over what an older one made."""
    package = Path(__file__).parent
    files = sorted(path for pattern in ("*.py", "*.toml", "*.json") for path in package.rglob(pattern))
    return key_of([__version__, [[str(path.relative_to(package)), sha256_file(path)] for path in files]])


def make(request: Request, out: Path, context: Context) -> Made:
    """All stages, to verified archives with their sums in ``out``; what is there already is checked and kept."""
    job = open_job(request, context)
    store = StageStore(context.home.stages)
    key = key_of({"stage": "pack", "bundle": job.bundle_key, "out": str(out.absolute())})
    kept = _recorded(store, key, tuple[Artifact, ...])
    if kept is not None and all(sha256_file(artifact.path) == artifact.sha256 for artifact in kept):
        return Made(name=job.name, artifacts=kept, unchanged=True)
    with _holding(job, context):
        artifacts = _pack(job, out, context)
    store.save(key, _as_json(tuple[Artifact, ...], artifacts), files=[artifact.path for artifact in artifacts])
    return Made(name=job.name, artifacts=artifacts, unchanged=False)


def build(request: Request, context: Context) -> BuildTree:
    """The build stage and what it needs."""
    job = open_job(request, context)
    with _holding(job, context):
        return _build(job, context)


def bundle(request: Request, context: Context, *, to: Path | None = None) -> tuple[StagedBundle, Report]:
    """The bundle stage and what it needs; ``to`` gets a copy of the verified folder under its name."""
    job = open_job(request, context)
    with _holding(job, context):
        staged = _bundle(job, context)
        report = _verify(staged.root, job, context)
        if to is not None:
            _publish_folder(staged, to)
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
            return patched_source(job.recipe, job.lock, context)

    return _stage(job.source_key, PatchedSource, context, work=work, files=lambda _: [])


def _build(job: Job, context: Context) -> BuildTree:
    def work() -> BuildTree:
        patched = _source(job, context)
        tree = check_out(patched, context.home.src / job.lock.recipe, context)
        return configure_and_build(patched, tree, job.target, job.toolchain, context)

    return _stage(job.build_key, BuildTree, context, work=work, files=lambda built: [file.path for file in built.files])


def _bundle(job: Job, context: Context) -> StagedBundle:
    from llamabuild.bundle.manifest import write_build_info
    from llamabuild.bundle.plan import plan_bundle
    from llamabuild.bundle.stage import stage

    def work() -> StagedBundle:
        patched, built = _source(job, context), _build(job, context)
        plan: BundlePlan = plan_bundle(built, name=job.name, context=context)
        for note in plan.notes:
            context.console.note(note)
        strip = job.toolchain.tool("strip")
        staged = stage(
            plan,
            context.home.root / "bundles",
            date=job.lock.date,
            context=context,
            strip_tool=strip.path if strip else None,
        )
        write_build_info(staged, plan=plan, patched=patched, build=built)
        return staged

    def files(staged: StagedBundle) -> list[Path]:
        return [path for path in sorted(staged.root.rglob("*")) if path.is_file() and not path.is_symlink()]

    return _stage(job.bundle_key, StagedBundle, context, work=work, files=files)


def _pack(job: Job, out: Path, context: Context) -> tuple[Artifact, ...]:
    staged = _bundle(job, context)
    _verify(staged.root, job, context)
    with _holding_out(out, context):
        return _publish(staged, job, out, context)


@contextmanager
def _holding_out(out: Path, context: Context) -> Iterator[None]:
    """Keep two runs that publish to one folder apart: its sums cover both."""
    guard = context.home.locks / f"out-{key_of(str(out.resolve()))[:16]}.lock"
    with locked(guard, on_wait=f"waiting for another run that publishes to {out}", say=context.console.note):
        yield


def _publish(staged: StagedBundle, job: Job, out: Path, context: Context) -> tuple[Artifact, ...]:
    from llamabuild.bundle.archive import make_archives, write_sums

    out.mkdir(parents=True, exist_ok=True)
    # In the folder it ends up in, so that publishing is a rename; a killed run's leftovers are swept here.
    for stale in out.glob(".llamabuild-*"):
        shutil.rmtree(stale, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=".llamabuild-", dir=out))
    try:
        archives = make_archives(staged, part, context=context)
        for archive in archives:
            _verify(archive.path, job, context)
        for name in ("BUILD_INFO.json", "BUILD_INFO.txt"):
            shutil.copyfile(staged.root / name, part / name)
        published = [path.replace(out / path.name) for path in sorted(part.iterdir())]
        sums = write_sums(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return tuple(
        Artifact(path=path.absolute(), sha256=sha256_file(path), size=path.stat().st_size)
        for path in (*published, sums.path)
    )


def _verify(path: Path, job: Job, context: Context) -> Report:
    from llamabuild.verify.check import verify_path

    with context.console.step(f"verify {path.name}"):
        report = verify_path(path, context=context, recipe=job.recipe, target=job.target.name, arch=job.target.arch)
    if not report.ok:
        errors = [finding for finding in report.findings if finding.severity == "error"]
        raise VerificationError(
            f"{path.name} is not what recipe {job.recipe.name} asks for: verification found {len(errors)} error"
            f"{'s' if len(errors) > 1 else ''}.",
            hint=f"The findings in full: llamabuild verify {path} --recipe {job.recipe.name}. Nothing was published.",
            details=tuple(f"{finding.name}: {finding.message}" for finding in errors),
        )
    for finding in report.findings:
        context.console.detail(f"{finding.severity}: {finding.name}: {finding.message}")
    return report


def _publish_folder(staged: StagedBundle, to: Path) -> None:
    from llamabuild.core.errors import UsageError
    from llamabuild.core.files import atomic_folder

    if to.exists():
        raise UsageError(f"{to} exists already.", hint="Name a folder that does not exist yet.")
    with atomic_folder(to) as part:
        shutil.copytree(staged.root, part, symlinks=True, dirs_exist_ok=True)


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
