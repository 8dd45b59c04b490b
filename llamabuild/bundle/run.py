"""The bundle stage as a whole: planned, staged, its device files looked up as the libraries will, and described."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.bundle.archs import arch_order, base_arch
from llamabuild.bundle.asked import check_asked, date_asked
from llamabuild.bundle.foreign import foreign_build
from llamabuild.bundle.kpack import simulate_kpack
from llamabuild.bundle.manifest import write_build_info
from llamabuild.bundle.names import bundle_name, check_name, name_from
from llamabuild.bundle.options import BundleOptions
from llamabuild.bundle.plan import own_vendor, plan_bundle
from llamabuild.bundle.stage import stage, told_as_bundling
from llamabuild.bundle.tensile import SearchResult, simulate_hipblaslt, simulate_rocblas
from llamabuild.bundle.trees import cuda_vendor, rocm_vendor
from llamabuild.core.errors import BundleError

if TYPE_CHECKING:
    from llamabuild.build.model import BuildTree
    from llamabuild.bundle.model import BundlePlan, StagedBundle
    from llamabuild.bundle.options import Runtime
    from llamabuild.bundle.trees import Vendor
    from llamabuild.core.context import Context
    from llamabuild.source.lock import PatchedSource


def bundle_build(
    build: BuildTree,
    folder: Path,
    *,
    name: str,
    date: int,
    context: Context,
    strip_tool: Path | None,
    patched: PatchedSource | None = None,
    vendor: Vendor | None = None,
    runtime: Runtime = "bundled",
    root: Path | None = None,
) -> tuple[StagedBundle, BundlePlan]:
    """Make ``folder/<name>`` of a build, with BUILD_INFO in it.

    ``vendor``, ``runtime``, ``root``: as ``plan_bundle`` takes them; ``date``, ``strip_tool``: as ``stage`` does;
    ``patched``: None for a build that this tool did not make. Raises BundleError; nothing half-made is left.
    """
    more = {} if root is None else {"root": root}
    with told_as_bundling(folder / name):
        plan = plan_bundle(build, name=name, context=context, vendor=vendor, runtime=runtime, **more)
        for note in plan.notes:
            context.console.note(note)
        staged = stage(plan, folder, date=date, context=context, strip_tool=strip_tool, share=True)
        facts: dict[str, str] = {}
        if "hip" in build.target.backends and runtime != "system":
            facts = check_device_files(staged.root, build.target.arch, plan=plan)
        runtime_info = {
            "kind": runtime,
            "device_files": facts,
            "parts": sorted({entry.part for entry in plan.entries} - {""}),
        }
        write_build_info(staged, build=build, plan=plan, patched=patched, runtime=runtime_info)
    return staged, plan


def bundle_folder(
    folder: Path,
    out: Path,
    *,
    arch: str,
    context: Context,
    rocm: Path | None = None,
    cuda: Path | None = None,
    options: BundleOptions | None = None,
    name: str | None = None,
) -> tuple[StagedBundle, BundlePlan]:
    """Bundle a build folder that this tool did not make, into ``out/<name>``.

    ``rocm``, ``cuda``: the vendor's tree; by default the one that the build was linked with. ``name`` defaults to
    ``llama-<folder>-<target>[-<arch>]``. The date of its files is ``SOURCE_DATE_EPOCH``, else that of the newest
    program, so that bundling twice gives the same archive.

    Raises UsageError for a name that is no plain one, a folder without programs, and options or a date that do not
    fit it; BundleError for all else.
    """
    options = options or BundleOptions()
    if name is not None:
        check_name(name)
    with told_as_bundling(folder):
        build = foreign_build(folder.absolute(), arch=arch, note=context.console.note)
        check_asked(build, arch=arch, keep=options.keep_archs, rocm=rocm, cuda=cuda)
        vendor = _vendor(build, rocm=rocm, cuda=cuda, options=options)
        date = _date(build, context)
    return bundle_build(
        build,
        out,
        name=name or bundle_name(name_from(folder.resolve().name), build.target.name, arch),
        date=date,
        context=context,
        strip_tool=_strip(context),
        vendor=vendor,
        runtime=options.runtime_for(build.target.backends),
    )


def _vendor(build: BuildTree, *, rocm: Path | None, cuda: Path | None, options: BundleOptions) -> Vendor | None:
    if rocm is not None:
        arch = build.target.arch
        return rocm_vendor(rocm.absolute(), arch=arch, keep=options.keep_archs, thin=options.thin)
    if cuda is not None:
        return cuda_vendor(cuda.absolute())
    found = own_vendor(build)
    return found and replace(found, keep=options.keep_archs, thin=found.thin and options.thin)


def _date(build: BuildTree, context: Context) -> int:
    given = date_asked(context.env)
    return given if given is not None else int(max(built.path.stat().st_mtime for built in build.files))


def _strip(context: Context) -> Path | None:
    found = shutil.which("strip", path=context.env.get("PATH"))
    if found is None:
        context.console.note("binutils' strip is not installed: debug sections stay in")
    return Path(found) if found else None


def check_device_files(root: Path, arch: str, *, plan: BundlePlan | None = None) -> dict[str, str]:
    """Look for device files as the libraries in ``root/lib`` will; returns which index each opens, by library.

    Raises BundleError when rocBLAS would not find its kernels, or would find others than those beside it, and for a
    library that was split from device code that is not there. hipBLASLt without the arch is an error only where the
    plan has kernels of its for the arch: not every GPU that rocBLAS serves is served by it.
    """
    planned = {entry.destination for entry in plan.entries} if plan else set()
    index = f"TensileLibrary_lazy_{base_arch(arch)}.dat"
    served = any(name.startswith("lib/hipblaslt/") and index in name for name in planned)
    found: dict[str, str] = {}
    for library in sorted((root / "lib").glob("librocblas*.so.[0-9]*")):
        if not library.is_symlink() and library.name.startswith("librocblas."):
            found[library.name] = _judge(simulate_rocblas(root, library, arch), required=True)
    for library in sorted((root / "lib").glob("libhipblaslt.so.[0-9]*")):
        if not library.is_symlink():
            found[library.name] = _judge(simulate_hipblaslt(root, library, arch), required=served)
    for library in sorted((root / "lib").glob("lib*.so*")):
        if library.is_symlink():
            continue
        packs = simulate_kpack(root, library, arch)
        if not packs.ok:
            raise BundleError(
                f"{library.name} was split from its device code, and {', '.join(packs.wanted)} is not in the bundle.",
                hint="Take the .kpack folder of the same release along.",
            )
    return found


def _judge(result: SearchResult, *, required: bool) -> str:
    if required and (errors := [problem for problem in result.problems if problem.severity == "error"]):
        raise BundleError(
            f"{result.library} would not find its own device files: {errors[0].message}",
            hint=f"Remove {errors[0].path} from what is bundled, or report the layout.",
            details=tuple(f"{problem.path}: {problem.message}" for problem in errors),
        )
    if required and result.opened is None:
        has = ", ".join(sorted(result.archs, key=arch_order)) or "none"
        raise BundleError(
            f"{result.library} would find none of {', '.join(result.candidates)} in "
            f"{result.folder or 'the current folder'} for {result.arch}; "
            f"the bundle has kernels for {has}.",
            hint="Take the device files for this arch along.",
            details=tuple(f"looked for {folder}" for folder in result.tried),
        )
    return result.opened or "none for this arch"
