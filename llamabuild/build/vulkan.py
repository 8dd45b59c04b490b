"""Preflight for Vulkan: a shader and a line of C++ that v0.5.0 needs, compiled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llamabuild.build.probe import Checked, Problem, find_tool, first_errors

if TYPE_CHECKING:
    from llamabuild.build.host import Host
    from llamabuild.build.model import BuildOptions, Target

# glslc 2023.2 (Debian 12) passes CMake's configure, and fails minutes later on this extension.
_SHADER = """#version 450
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 32) in;
void main() {
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a = coopmat<float16_t, gl_ScopeSubgroup, 16, 16,
        gl_MatrixUseA>(0.0);
}
"""
# Headers of 1.3.239 (Debian 12) compile all shaders, and then lack both of these.
_PROGRAM = """#if !__has_include(<vulkan/vulkan.hpp>)
#error no Vulkan headers
#endif
#if !__has_include(<spirv/unified1/spirv.hpp>)
#error no SPIR-V headers
#endif
#include <vulkan/vulkan.hpp>
#include <spirv/unified1/spirv.hpp>
int trial() {
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR features{};
    vk::LayerSettingEXT setting{};
    uint32_t version = 0;
    return features.cooperativeMatrix + setting.valueCount + vkEnumerateInstanceVersion(&version) + spv::MagicNumber;
}
"""


def check_vulkan(target: Target, host: Host, options: BuildOptions, *, cxx: Path | None) -> Checked:
    """Try glslc, the Vulkan and SPIR-V headers, and libvulkan; ``cxx`` is the C++ compiler, where there is one.

    Places: what the recipe gives as CMake entries, else ``--vulkan-sdk`` or ``VULKAN_SDK``, else the system's.
    """
    sdk, wrong = _sdk(host, options)
    given = dict(target.entries)
    entries = _entries(sdk, host) if sdk else {}
    problems = [wrong] if wrong else []
    program = given.get("Vulkan_GLSLC_EXECUTABLE") or entries.get("Vulkan_GLSLC_EXECUTABLE") or "glslc"
    glslc = find_tool("glslc", program, host=host)
    if glslc is None:
        problems.append(Problem("glslc", f"no shader compiler: {program} was not found", package="glslc"))
    else:
        flags = ["--target-env=vulkan1.3", "-fshader-stage=compute", "{source}", "-o", "{out}"]
        done = host.attempt([str(glslc.path), *flags], name="trial.comp", text=_SHADER)
        if not done.ok:
            message = f"glslc {glslc.version} does not know GL_KHR_cooperative_matrix: v0.5.0 needs 2023.8 or later"
            problems.append(Problem("glslc", message, "glslc-newer", first_errors(done.tail)))
    if cxx is not None:
        include = given.get("Vulkan_INCLUDE_DIR") or entries.get("Vulkan_INCLUDE_DIR")
        library = given.get("Vulkan_LIBRARY") or entries.get("Vulkan_LIBRARY") or "-lvulkan"
        flags = ["-std=c++17", "-shared", "-fPIC", *([f"-I{include}"] if include else [])]
        argv = [str(cxx), *flags, "{source}", "-o", "{out}", library]
        done = host.attempt(argv, name="trial.cpp", text=_PROGRAM)
        if not done.ok:
            problems += _explain(done.tail)
    return Checked(tools=(glslc,) if glslc else (), problems=tuple(problems), entries=tuple(entries.items()))


def _sdk(host: Host, options: BuildOptions) -> tuple[Path | None, Problem | None]:
    """The SDK's folder where one is named; what is wrong with the name rather than, silently, the system's Vulkan."""
    named = str(options.vulkan_sdk or host.env.get("VULKAN_SDK", ""))
    if not named:
        return None, None
    sdk = Path(named).absolute()
    if host.which(str(sdk / "bin/glslc")) or host.names(str(sdk / "include/vulkan")):
        return sdk, None
    what = f"{'--vulkan-sdk ' if options.vulkan_sdk else 'VULKAN_SDK='}{named}"
    message = f"{what} is no Vulkan SDK: neither bin/glslc nor include/vulkan is in it"
    return None, Problem("Vulkan SDK", message, "vulkan-sdk")


def _entries(sdk: Path, host: Host) -> dict[str, str]:
    """What points CMake at an SDK folder: LunarG's, or a distribution's packages unpacked."""
    entries = {"CMAKE_PREFIX_PATH": str(sdk), "Vulkan_INCLUDE_DIR": str(sdk / "include")}
    glslc = host.which(str(sdk / "bin/glslc"))
    if glslc is not None:
        entries["Vulkan_GLSLC_EXECUTABLE"] = str(glslc)
    folders = ("lib", *(f"lib/{name}" for name in host.names(str(sdk / "lib")) if name.endswith("-linux-gnu")))
    for folder in folders:
        if "libvulkan.so" in host.names(str(sdk / folder)):
            entries["Vulkan_LIBRARY"] = str(sdk / folder / "libvulkan.so")
            break
    for folder in ("share/cmake/SPIRV-Headers", "lib/cmake/SPIRV-Headers"):
        if host.names(str(sdk / folder)):
            entries["SPIRV-Headers_DIR"] = str(sdk / folder)
    return entries


def _explain(output: tuple[str, ...]) -> list[Problem]:
    text, evidence = "\n".join(output), first_errors(output)
    missing = [
        Problem(tool, f"{tool} were not found", package)
        for tool, package in (("Vulkan headers", "vulkan-headers"), ("SPIR-V headers", "spirv-headers"))
        if f"no {tool}" in text
    ]
    if missing:
        return missing
    if "LayerSetting" in text or "CooperativeMatrix" in text:
        message = "the Vulkan headers are too old for v0.5.0: 1.3.272 or later is needed"
        return [Problem("Vulkan headers", message, "vulkan-headers-newer", evidence)]
    if "cannot find" in text or "undefined reference" in text:
        return [Problem("libvulkan", "libvulkan does not link", "vulkan-headers", evidence)]
    # They are there, or the program's own #error would have said so.
    return [Problem("Vulkan headers", "a line of Vulkan C++ does not compile", "vulkan-headers-newer", evidence)]
