"""The CMake driver: configure, build, and read what was built from CMake's own reply."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scikit_build_core.cmake import CMake, CMaker
from scikit_build_core.errors import CMakeNotFoundError

from llamabuild.build.hold import holding
from llamabuild.build.host import Host
from llamabuild.build.jobs import default_jobs
from llamabuild.build.launchers import launcher_entries, launcher_env, needs_network, shader_entries
from llamabuild.build.model import BuildTree, BuiltFile
from llamabuild.build.network import downloads_asked, downloads_found, namespace_prefix
from llamabuild.build.ninja import STATUS, NinjaReader, cmake_errors
from llamabuild.build.options import refuse_unused
from llamabuild.build.stale import stale_reason, stamp_of, write_stamp
from llamabuild.build.targets import folder_name
from llamabuild.core.errors import BuildError, ToolError
from llamabuild.core.files import remove_tree
from llamabuild.core.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scikit_build_core.file_api.model.codemodel import Configuration
    from scikit_build_core.file_api.model.codemodel import Target as ModelTarget

    from llamabuild.build.model import Target, Toolchain
    from llamabuild.core.context import Context
    from llamabuild.core.process import Completed
    from llamabuild.source.lock import PatchedSource

_PASSED = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "USER", "LOGNAME")
"""What the build sees of the caller's environment: no CFLAGS, no CMAKE_*, nothing that would change the result."""

_KINDS = {"EXECUTABLE": "executable", "SHARED_LIBRARY": "shared", "MODULE_LIBRARY": "module"}


def build_folder(source: Path, target: Target) -> Path:
    """Where a target is built: inside its source tree, at the same place in each.

    Then ccache's relative paths are the same for every tree, and two recipes share what they have in common.
    """
    return source / folder_name(target)


def configure_and_build(
    patched: PatchedSource,
    source: Path,
    target: Target,
    toolchain: Toolchain,
    context: Context,
    *,
    jobs: int | None = None,
) -> BuildTree:
    """Configure ``source`` for a target and build its programs, plugins and what they need.

    May be called again after it was killed, and by two processes at once. Raises BuildError with the failing command,
    its first error lines and the log; ToolError when CMake itself cannot be run.
    """
    with _configured(patched, source, target, toolchain, context) as ready:
        options = toolchain.options
        count = jobs or options.jobs or default_jobs(target, Host.of(context), farm=options.farm)
        with context.console.step(f"build {ready.name}") as progress:
            _build(ready.driver, [model.name for model in ready.needed], count, NinjaReader(progress=progress))
        folder = ready.driver.build_dir
        files = tuple(_built_file(model, folder) for model in ready.needed)
    return BuildTree(
        folder=folder,
        source=ready.driver.source_dir,
        target=target,
        files=tuple(sorted(files, key=lambda file: file.target)),
        tools=toolchain.tools,
        cache_entries=ready.entries,
        build_number=patched.lock.build_number,
        build_commit=dict(target.entries).get("LLAMA_BUILD_COMMIT", patched.lock.commit[:9]),
        network="namespace" if ready.driver.build_prefix else "options checked",
        log=ready.driver.log,
        checksums=toolchain.checksums,
        runtime_folders=toolchain.runtime_folders,
    )


def configure(
    patched: PatchedSource, source: Path, target: Target, toolchain: Toolchain, context: Context
) -> tuple[str, ...]:
    """Configure alone, in seconds; returns the names of the CMake targets that a build would make.

    Raises BuildError and ToolError as ``configure_and_build``.
    """
    with _configured(patched, source, target, toolchain, context) as ready:
        return tuple(sorted(model.name for model in ready.needed))


@dataclass(frozen=True)
class _Configured:
    """A configured build folder, held by this process."""

    name: str
    driver: _Driver
    entries: tuple[tuple[str, str], ...]
    needed: tuple[ModelTarget, ...]


@contextlib.contextmanager
def _configured(
    patched: PatchedSource, source: Path, target: Target, toolchain: Toolchain, context: Context
) -> Iterator[_Configured]:
    source = source.resolve()
    folder = build_folder(source, target)
    name = f"{patched.lock.recipe}{folder.name.removeprefix('build')}"
    lock_file = context.home.locks / f"build-{source.name}-{folder.name}.lock"
    waiting = f"waiting for another run that builds {folder}"
    with holding(lock_file, on_wait=waiting, say=context.console.note) as held:
        _prepare_folder(folder, stamp_of(source, target, toolchain), context)
        driver = _driver(source, folder, target, env=_environment(patched, source, toolchain, context))
        # CMake's own trials run the compiler without its launchers, so configuring needs nobody else.
        driver.configure_prefix = namespace_prefix(Host.of(context))
        driver.build_prefix = () if needs_network(toolchain.options) else driver.configure_prefix
        driver.log, driver.held = context.home.logs / f"build-{name}.log", (held,)
        driver.log.unlink(missing_ok=True)
        entries = cache_entries(target, toolchain, source, context)
        if not driver.build_prefix:
            _refuse_downloads(downloads_asked(dict(entries)), None)
        with context.console.step(f"configure {name}"):
            configuration = _configure(driver, target, entries, context)
        if not driver.build_prefix:
            _refuse_downloads(downloads_found(folder), driver.log)
        needed = _needed_targets(configuration, target, folder, driver.log)
        yield _Configured(name=name, driver=driver, entries=entries, needed=tuple(needed))


@dataclass
class _Driver(CMaker):
    """scikit-build-core's CMaker, with its runs going to a log and, where there is one, into a network namespace."""

    log: Path = Path()
    configure_prefix: tuple[str, ...] = ()
    build_prefix: tuple[str, ...] = ()
    """Empty too where the compile step itself needs others."""
    held: tuple[int, ...] = ()
    """Descriptors that the tools keep open."""

    def run_configure(self, defines: dict[str, str]) -> Completed:
        """Configure; the whole output is kept."""
        arguments = self._compute_cmake_args(defines, None)
        argv = [*self.configure_prefix, str(self.cmake.cmake_path), *arguments, "-GNinja", "-Wno-dev"]
        return run(argv, env=self.env, log=self.log, tail_lines=None, pass_fds=self.held)

    def run_build(self, targets: list[str], jobs: int, reader: NinjaReader) -> Completed:
        """Build the named targets."""
        argv = [*self.build_prefix, str(self.cmake.cmake_path), "--build", str(self.build_dir), "-j", str(jobs)]
        return run([*argv, "--target", *targets], env=self.env, log=self.log, on_line=reader.feed, pass_fds=self.held)


def _driver(source: Path, folder: Path, target: Target, *, env: dict[str, str]) -> _Driver:
    try:
        cmake = CMake.default_search(module=True, env=env)
    except CMakeNotFoundError as failure:
        raise ToolError(f"{failure}.", hint="python3 -m pip install cmake") from failure
    build_type = dict(target.entries).get("CMAKE_BUILD_TYPE", "Release")
    driver = _Driver(cmake, source_dir=source, build_dir=folder, build_type=build_type)
    driver.env = env
    return driver


def _prepare_folder(folder: Path, stamp: dict[str, str], context: Context) -> None:
    reason = stale_reason(folder, stamp)
    if reason is not None:
        context.console.note(f"fresh build folder: {reason}")
        remove_tree(folder)
    write_stamp(folder, stamp)


def _environment(patched: PatchedSource, source: Path, toolchain: Toolchain, context: Context) -> dict[str, str]:
    dropped = sorted({"CFLAGS", "CXXFLAGS", "CUDAFLAGS", "HIPFLAGS", "LDFLAGS"} & set(context.env))
    if dropped:
        context.console.note(f"{', '.join(dropped)} of the environment not used: flags are a recipe's to set")
    return {
        **{name: context.env[name] for name in _PASSED if name in context.env},
        **dict(toolchain.env),
        **launcher_env(toolchain.options, source=source, context=context),
        # ggml and llama.cpp ask git about the tree: not about a repository that happens to lie around it.
        "GIT_CEILING_DIRECTORIES": str(source.parent),
        "LC_ALL": "C",
        "NINJA_STATUS": STATUS,
        "SOURCE_DATE_EPOCH": str(patched.lock.date),
        "TZ": "UTC",
    }


def cache_entries(target: Target, toolchain: Toolchain, source: Path, context: Context) -> tuple[tuple[str, str], ...]:
    """Everything that is passed with -D: the target's own, and where this machine's tools are."""
    ninja = toolchain.tool("ninja")
    entries = {
        "CMAKE_C_COMPILER": str(toolchain.cc),
        "CMAKE_CXX_COMPILER": str(toolchain.cxx),
        # Where the kernel gives us no namespace, CMake's own way to fetch nothing has to do.
        "FETCHCONTENT_FULLY_DISCONNECTED": "ON",
        **({"CMAKE_MAKE_PROGRAM": str(ninja.path)} if ninja else {}),
        **launcher_entries(target, toolchain, source=source),
        **dict(toolchain.entries),
        **dict(target.entries),
        **shader_entries(toolchain, context),
    }
    return tuple(sorted(entries.items()))


def _configure(
    driver: _Driver, target: Target, entries: tuple[tuple[str, str], ...], context: Context
) -> Configuration:
    from scikit_build_core.file_api.query import stateless_query
    from scikit_build_core.file_api.reply import load_reply_dir

    done = driver.run_configure(dict(entries))
    if not done.ok:
        full = "No space left on device" in done.text
        raise BuildError(
            f"CMake could not configure {driver.source_dir} for target {target.name}"
            f"{': the disk is full' if full else ''}.",
            hint="Free some space and start again." if full else "The first error is above; the log has all of it.",
            log=driver.log,
            details=cmake_errors(done.tail),
        )
    refuse_unused(driver.build_dir, target, done, context.console, log=driver.log)
    try:
        model = load_reply_dir(stateless_query(driver.build_dir)).reply.codemodel_v2
    except (ExceptionGroup, IndexError, OSError):
        model = None
    if model is None or not model.configurations:
        raise BuildError(
            f"CMake left no reply about its targets in {driver.build_dir}.",
            hint="Remove the folder and start again; the file API needs CMake 3.15 or later.",
            log=driver.log,
        )
    return model.configurations[0]


def _refuse_downloads(found: tuple[str, ...], log: Path | None) -> None:
    if found:
        raise BuildError(
            f"The build would download from the network: {', '.join(found)}.",
            hint="Set the option behind it OFF in the recipe's target, under cmake.",
            log=log,
        )


def _needed_targets(configuration: Configuration, target: Target, folder: Path, log: Path) -> list[ModelTarget]:
    """The programs, the backend plugins, and every library that they are linked to or ordered after."""
    by_id = {model.id: model for model in configuration.targets}
    by_name = {model.name: model for model in configuration.targets}
    missing = [program for program in target.programs if program not in by_name]
    if missing:
        executables = [model.name for model in configuration.targets if model.type == "EXECUTABLE"]
        near = difflib.get_close_matches(missing[0], executables, n=1)
        raise BuildError(
            f"The tree in {folder.parent} has no program {missing[0]}.",
            hint=f"The nearest that it has is {near[0]}." if near else "See the recipe's programs.",
            log=log,
        )
    roots = [model for model in configuration.targets if model.name in target.programs or _is_plugin(model)]
    needed = {model.id: model for model in roots}
    queue = list(roots)
    while queue:
        for dependency in queue.pop().dependencies:
            model = by_id.get(dependency.id)
            if model is not None and model.id not in needed:
                needed[model.id] = model
                queue.append(model)
    # A tool that only runs while building is an executable too, and nobody's program.
    wanted = set(target.programs)
    return [m for m in needed.values() if m.type in _KINDS and (m.type != "EXECUTABLE" or m.name in wanted)]


def _is_plugin(model: ModelTarget) -> bool:
    return model.type == "MODULE_LIBRARY" and model.name.startswith("ggml-")


def _build(driver: _Driver, targets: list[str], jobs: int, reader: NinjaReader) -> None:
    done = driver.run_build(targets, jobs, reader)
    if done.ok:
        return
    what = f" of {reader.failed_output}" if reader.failed_output else ""
    message, hint = f"The build{what} failed.", "The compiler's first errors are above; the log has all of it."
    if reader.disk_full:
        message, hint = f"The build{what} failed: the disk is full.", "Free some space and start again: it goes on."
    elif reader.out_of_memory:
        message, hint = f"The build{what} ran out of memory.", f"Use fewer jobs at once than {jobs}, with --jobs."
    details = [f"command: {reader.failed_command}"] if reader.failed_command else list(done.tail[-3:])
    raise BuildError(message, hint=hint, log=driver.log, details=(*details, *reader.first_errors))


def _built_file(model: ModelTarget, folder: Path) -> BuiltFile:
    path = (folder / model.artifacts[0].path).resolve() if model.artifacts else folder
    if not path.is_file():
        raise BuildError(f"Target {model.name} was built without an error, and its file {path} is not there.")
    return BuiltFile(target=model.name, kind=_KINDS[model.type], path=path, plugin=_is_plugin(model))  # type: ignore[arg-type]
