"""The driver against hand-typed cmake and ninja, and a sibling recipe against the first build: real v0.5.0, CPU target.

Run with ``python benchmarks/build.py --work /some/disk/with/4/GB`` on an idle machine; 15 to 30 minutes on two cores.
The tree is the README recipe's, fetched by the ``source`` verb unless ``--source`` names one. Prints one JSON line:
wall and CPU seconds of each build. Wanted: driver over hand at most 1.02, sibling over first at most 0.08 (wall).

Driver and hand build twice each, in the order driver, hand, hand, driver, and the sums are compared: the same build
done again differs by several per cent, and whatever grows or fades in the run meets both alike this way.

``--side-by-side`` is for a machine that is not idle: hand and driver run at the same time with half of the jobs each,
so that whatever else runs slows both alike; CPU seconds are then not told apart.

Every build but the sibling's starts with an empty compile cache, the same compilers, flags, targets and number of jobs.
The sibling is another tree with three more patches (the server, the graph, the speculative decoder), built by the
driver with the cache that the driver's first build filled.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llamabuild.build.cmake import build_folder, cache_entries, configure_and_build
from llamabuild.build.host import Host
from llamabuild.build.targets import machine_of, make_target
from llamabuild.build.toolchain import preflight
from llamabuild.core.context import Context, Home
from llamabuild.recipe.model import TargetSpec
from llamabuild.source.lock import Lock, PatchedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llamabuild.build.model import Target, Tool

RECIPE = "dflash2-2026-09"
PATCHED = ("tools/server/server-context.cpp", "src/llama-graph.cpp", "common/speculative.cpp")
LOCK = Lock(
    recipe="bench",
    summary="",
    release=True,
    repository="",
    ref="v0.5.0",
    commit="7fe450e19305b828c199d602c23a8337aaa1f03b",
    tree="fd570ef54b10ec5fecb739e7e04c8ce44a6f415a",
    build_number=11146,
    date=1_758_600_000,
    features=(),
    patches=(),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="an empty or missing folder; what is made stays in it")
    parser.add_argument("--source", type=Path, help="a v0.5.0 work tree (default: the recipe's, fetched)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--side-by-side", action="store_true", help="run hand and driver at the same time")
    args = parser.parse_args()
    tree = args.source or fetch(args.work / "fetched")

    context = Context(home=Home(args.work.absolute() / "home"))
    first = copy(tree, context.home.src / "first")
    sibling = copy(tree, context.home.src / "sibling")
    for name in PATCHED:
        file = sibling / name
        file.write_text(
            file.read_text() + "\nint llamabuild_benchmark_patch_" + Path(name).stem.replace("-", "_") + " = 1;\n"
        )

    if args.side_by_side:
        print(json.dumps(side_by_side(tree, first, context, args)))
        return
    again = Context(home=Home(args.work.absolute() / "home-again"))
    trees = [copy(tree, args.work / "hand/tree"), copy(tree, args.work / "hand-again/tree")]
    last = copy(tree, again.home.src / "first")
    # In a home of its own, so that the first build still has to try every tool.
    flags = drive(first, Context(home=Home(args.work.absolute() / "home-flags")), args.jobs, only_flags=True)
    driver = [timed(lambda: drive(first, context, args.jobs))]
    hand = [timed(partial(by_hand, each, flags, args.jobs)) for each in trees]
    driver += [timed(lambda: drive(last, again, args.jobs))]
    alike = timed(lambda: drive(sibling, context, args.jobs))
    figures = {
        "jobs": args.jobs,
        **{name: [each._asdict() for each in runs] for name, runs in (("driver", driver), ("hand", hand))},
        "sibling": alike._asdict(),
        "driver_over_hand": ratio(driver, hand, "wall"),
        "driver_over_hand_cpu": ratio(driver, hand, "cpu"),
        "sibling_over_first": ratio([alike], driver[:1], "wall"),
        "sibling_over_first_cpu": ratio([alike], driver[:1], "cpu"),
        "load_average": os.getloadavg(),
    }
    print(json.dumps(figures))


def ratio(ones: Sequence[Seconds], others: Sequence[Seconds], what: str) -> float:
    return round(sum(getattr(each, what) for each in ones) / sum(getattr(each, what) for each in others), 3)


def side_by_side(tree: Path, first: Path, context: Context, args: argparse.Namespace) -> dict[str, object]:
    """Hand and driver at once; the hand's flags come from a configure that the driver did before."""
    jobs = max(1, args.jobs // 2)
    by_hand_tree = copy(tree, args.work / "hand/tree")
    flags = drive(first, context, jobs, only_flags=True)
    with ThreadPoolExecutor(2) as pool:
        driver = pool.submit(timed, lambda: drive(first, context, jobs))
        hand = pool.submit(timed, lambda: by_hand(by_hand_tree, flags, jobs))
        walls = {"driver": driver.result().wall, "hand": hand.result().wall}
    return {
        "jobs_each": jobs,
        **walls,
        "driver_over_hand": round(walls["driver"] / walls["hand"], 3),
        "load_average": os.getloadavg(),
    }


class Seconds(NamedTuple):
    """What a build took; ``cpu`` is that of its children."""

    wall: float
    cpu: float


def timed(work: Callable[[], object]) -> Seconds:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    work()
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seconds(round(wall, 1), round(cpu, 1))


def fetch(folder: Path) -> Path:
    argv = [sys.executable, "-m", "llamabuild", "source", "--recipe", RECIPE, "--to", str(folder)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return folder


def copy(tree: Path, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(
        tree,
        to,
        symlinks=True,
        ignore=shutil.ignore_patterns(".git", "build", "build-cpu*", "build-cuda*", "build-vulkan*"),
    )
    return to.resolve()


@dataclass(frozen=True)
class Flags:
    """What a person needs to type the same build."""

    target: Target
    tools: tuple[Tool, ...]
    cache_entries: tuple[tuple[str, str], ...]


def drive(source: Path, context: Context, jobs: int, *, only_flags: bool = False) -> Flags:
    """From looking for tools to the last link, as ``make`` does it."""
    host = Host.of(context)
    target = make_target("cpu", TargetSpec(backends=("cpu",)), LOCK, arch="", machine=machine_of(host))
    toolchain = preflight(target, host=host, context=context)
    if only_flags:
        entries = cache_entries(target, toolchain, source.resolve(), context)
    else:
        git = context.home.git
        patched = PatchedSource(
            LOCK, git, provider="cache", base="0" * 40, commit="1" * 40, tree=LOCK.tree, outcomes=()
        )
        entries = configure_and_build(patched, source, target, toolchain, context, jobs=jobs).cache_entries
    return Flags(target, toolchain.tools, entries)


def by_hand(source: Path, flags: Flags, jobs: int) -> None:
    """What a person would type: the same entries and targets, with a compile cache of its own."""
    tools = {tool.name: str(tool.path) for tool in flags.tools}
    folder = build_folder(source, flags.target)
    env = {**os.environ, "CCACHE_DIR": str(source.parent / "ccache"), "CCACHE_BASEDIR": str(source.parent)}
    env |= {"CCACHE_NOHASHDIR": "1", "LC_ALL": "C", "SOURCE_DATE_EPOCH": str(LOCK.date)}
    entries = [f"-D{name}={value}" for name, value in flags.cache_entries]
    argv = [tools["cmake"], "-G", "Ninja", "-S", str(source), "-B", str(folder), *entries]
    subprocess.run(argv, check=True, env=env, stdout=subprocess.DEVNULL)
    argv = [tools["ninja"], "-C", str(folder), "-j", str(jobs), *flags.target.programs, "ggml-cpu"]
    subprocess.run(argv, check=True, env=env, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
