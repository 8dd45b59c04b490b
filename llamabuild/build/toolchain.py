"""Preflight: find a target's tools and try them, so that what is missing shows in the first seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.build.cuda import check_cuda
from llamabuild.build.drivers import note_old_driver
from llamabuild.build.hip import check_hip
from llamabuild.build.host import Host
from llamabuild.build.launchers import check_options, warn_idle_farm, warn_unreachable
from llamabuild.build.model import BuildOptions, Tool, Toolchain
from llamabuild.build.packages import install_line
from llamabuild.build.probe import Checked, Problem, find_tool, first_errors
from llamabuild.build.targets import cpu_target, folder_name
from llamabuild.build.vulkan import check_vulkan
from llamabuild.core.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.build.cuda_wheels import WheelToolkit
    from llamabuild.build.model import Target
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe

__all__ = ["Host", "Problem", "find_problems", "find_tool", "lacking", "look", "preflight"]

_MIB = 1024 * 1024
_BUILD_BYTES = {"cpu": 700 * _MIB, "cuda": 6144 * _MIB, "hip": 6144 * _MIB, "vulkan": 1024 * _MIB}
"""Source tree, build folder and cache for one more build with a backend, with room to spare.

Measured on v0.5.0: source 230 MB, a CPU build folder 61 MB, its compile cache 12 MB.
"""

_C_TRIAL = "#include <stdatomic.h>\nint main(void) { atomic_int n = 0; return atomic_load(&n); }\n"
_CXX_TRIAL = """#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
int main() {
    std::optional<std::string_view> word;
    if (auto path = std::filesystem::path("a") / "b"; path.empty()) { word = "a"; }
    std::thread([] {}).join();
    return word.has_value();
}
"""


def find_problems(
    target: Target, *, host: Host, options: BuildOptions | None = None, context: Context | None = None
) -> tuple[Problem, ...]:
    """All that this host lacks for a target; empty when it can be built.

    A toolkit of wheels is assembled in ``context``'s home; without a context it counts as not there.
    """
    chosen = options or BuildOptions()
    if context is not None:
        return look(target, host=host, context=context, options=chosen).problems
    return tuple(problem for part in _check(target, host, chosen) for problem in part.problems)


def look(target: Target, *, host: Host, context: Context, options: BuildOptions) -> Checked:
    """All that was found for a target, and all that is wrong; raises only where ``options`` cannot be used."""
    parts = _check(target, host, options, cuda=_wheel_toolkit(target, options, host, context))
    return Checked(
        tools=tuple(tool for part in parts for tool in part.tools),
        problems=tuple(problem for part in parts for problem in part.problems),
        runtime_folders=tuple(folder for part in parts for folder in part.runtime_folders),
    )


def preflight(
    target: Target,
    *,
    host: Host,
    context: Context,
    options: BuildOptions | None = None,
    recipe: Recipe | None = None,
) -> Toolchain:
    """Find and try everything that building ``target`` needs, the disk space included.

    Raises ToolError with the command that installs what is missing and, where ``recipe`` is given, with the name of
    a target that this host could build.
    """
    chosen = options or BuildOptions()
    check_options(chosen)
    warn_unreachable(chosen, context.console)
    built = recipe is not None and (context.home.src / recipe.name / folder_name(target)).exists()
    if (chosen.cuda_toolkit or "").startswith("wheels:"):
        # Whatever else is missing is told before half a gigabyte is fetched.
        rest = replace(target, backends=tuple(name for name in target.backends if name != "cuda"))
        _refuse(_check(rest, host, chosen), target, host=host, recipe=recipe, options=chosen)
        if not built:
            _check_space(target, host, context)
    parts = _check(target, host, chosen, cuda=_wheel_toolkit(target, chosen, host, context))
    _refuse(parts, target, host=host, recipe=recipe, options=chosen)
    if not built:
        # What is built already may be checked and used on a full disk.
        _check_space(target, host, context)
    warn_idle_farm(chosen, host, context.console)
    tools = tuple(tool for part in parts for tool in part.tools)
    paths = {tool.name: tool.path for tool in tools}
    for nvcc in (tool for tool in tools if tool.name == "nvcc"):
        note_old_driver(target, nvcc.version, host, context.console)
    return Toolchain(
        tools=tools,
        cc=paths["cc"],
        cxx=paths["cxx"],
        entries=_merged(parts),
        env=tuple(sorted(entry for part in parts for entry in part.env)),
        options=chosen,
        runtime_folders=tuple(dict.fromkeys(folder for part in parts for folder in part.runtime_folders)),
        checksums=tuple(sorted({item for part in parts for item in part.checksums})),
    )


def _check(
    target: Target, host: Host, options: BuildOptions, *, cuda: WheelToolkit | None = None
) -> tuple[Checked, ...]:
    compilers = _check_compilers(host)
    parts = [_check_drivers(host, options), compilers]
    if "cuda" in target.backends:
        parts.append(check_cuda(target, host, options, root=_cuda_root(options, cuda)))
        parts += [Checked(checksums=cuda.checksums)] if cuda else []
    if "vulkan" in target.backends:
        parts.append(check_vulkan(target, host, options, cxx=compilers.path_of("cxx")))
    if "hip" in target.backends:
        parts.append(check_hip(target, host, options))
    return tuple(parts)


def _merged(parts: tuple[Checked, ...]) -> tuple[tuple[str, str], ...]:
    """The entries of all parts; prefix paths of two parts are one list."""
    entries: dict[str, str] = {}
    for name, value in (entry for part in parts for entry in part.entries):
        both = name == "CMAKE_PREFIX_PATH" and name in entries
        entries[name] = f"{entries[name]};{value}" if both else value
    return tuple(sorted(entries.items()))


def _cuda_root(options: BuildOptions, cuda: WheelToolkit | None) -> Path | None:
    if cuda is not None:
        return cuda.root
    return None if options.cuda_toolkit in {None, "system"} else Path(str(options.cuda_toolkit)).absolute()


def _wheel_toolkit(target: Target, options: BuildOptions, host: Host, context: Context) -> WheelToolkit | None:
    """Assemble the toolkit that ``--cuda-toolkit wheels:…`` asks for, where the target has CUDA at all."""
    kind, _, version = (options.cuda_toolkit or "").partition(":")
    if "cuda" not in target.backends or kind != "wheels":
        return None
    from llamabuild.build.cuda_wheels import assemble_toolkit

    compiler = _check_compilers(host).path_of("cc")
    # Without a C compiler the check that follows says so.
    return assemble_toolkit(version, compiler, context) if compiler else None


def _check_drivers(host: Host, options: BuildOptions) -> Checked:
    """CMake, Ninja, strip, and the compiler's launchers."""
    launchers = [name for name in (options.launcher, options.farm) if name not in {None, "none"}]
    tools: list[Tool] = []
    problems: list[Problem] = []
    for name in ("cmake", "ninja", "strip", *launchers):
        tool = find_tool(str(name), host=host)
        if tool is None:
            problems.append(Problem(str(name), f"{name} was not found", package=str(name)))
        else:
            tools.append(tool)
    return Checked(tools=tuple(tools), problems=tuple(problems))


def _check_compilers(host: Host) -> Checked:
    tools: list[Tool] = []
    problems: list[Problem] = []
    wanted = (
        ("cc", "C", "CC", ("cc", "gcc", "clang"), ("-std=c11", "trial.c", _C_TRIAL)),
        ("cxx", "C++", "CXX", ("c++", "g++", "clang++"), ("-std=c++17", "trial.cpp", _CXX_TRIAL)),
    )
    for name, language, variable, programs, (standard, file, text) in wanted:
        given = host.env.get(variable, "").strip()
        tool = find_tool(name, *((given,) if given else programs), host=host)
        if tool is None:
            what = f"{variable}={given} is not a program" if given else f"none of {', '.join(programs)} was found"
            problems.append(Problem(name, f"no {language} compiler: {what}", package=name))
            continue
        tools.append(tool)
        argv = [str(tool.path), standard, "-O1", "-pthread", "{source}", "-o", "{out}"]
        done = host.attempt(argv, name=file, text=text)
        if not done.ok:
            message = f"{tool.path} {tool.version} does not compile and link a {standard[5:]} program"
            problems.append(Problem(name, message, package=name, evidence=first_errors(done.tail)))
    return Checked(tools=tuple(tools), problems=tuple(problems))


def _refuse(
    parts: tuple[Checked, ...], target: Target, *, host: Host, recipe: Recipe | None, options: BuildOptions
) -> None:
    problems = [problem for part in parts for problem in part.problems]
    if problems:
        raise lacking(target, problems, host=host, recipe=recipe, options=options)


def lacking(
    target: Target, problems: Sequence[Problem], *, host: Host, recipe: Recipe | None, options: BuildOptions
) -> ToolError:
    """The error that says what a target lacks on this host, what brings it, and which target would work instead."""
    names = ", ".join(dict.fromkeys(problem.tool for problem in problems))
    details = [line for problem in problems for line in (f"{problem.message}.", *problem.evidence)]
    install = install_line((problem.package for problem in problems), host)
    hints = [f"To get what is missing: {install}." if install else "", _alternative(target, recipe, host, options)]
    return ToolError(
        f"Target {target.name} cannot be built on this host: {names} missing or not good enough.",
        hint=" ".join(hint for hint in hints if hint) or None,
        details=tuple(details),
    )


def _alternative(target: Target, recipe: Recipe | None, host: Host, options: BuildOptions) -> str:
    plain = cpu_target(recipe) if recipe is not None else None
    if plain is None or plain == target.name:
        return ""
    parts = (_check_drivers(host, options), _check_compilers(host))
    works = not any(part.problems for part in parts)
    return f"Target {plain} would work here: --target {plain}." if works else ""


def _check_space(target: Target, host: Host, context: Context) -> None:
    needed = sum(_BUILD_BYTES[backend] for backend in dict.fromkeys(("cpu", *target.backends)))
    free = host.free_bytes(context.home.root)
    if free < needed:
        raise ToolError(
            f"{context.home.root} has {free // _MIB} MiB free, and building target {target.name} needs about "
            f"{needed // _MIB} MiB.",
            hint="Free some space, or set LLAMABUILD_HOME to a folder on a larger disk.",
        )
