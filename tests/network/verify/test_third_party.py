"""What is found on bundles that nobody here made, written down and argued.

node-llama-cpp 3.22.1 (npm), built from v0.5.0 for CPU, CUDA and Vulkan, is loaded by Node from a folder of its own:

- ``elf.rpath-relative`` is right: the entries are ``$ORIGIN:``, and to the loader the empty one is the current folder.
- ``elf.rpath-absolute`` is right: the Vulkan plugin also looks in ``/opt/vulkan-sdk/x86_64/lib``.
- ``closure.host-library``: libstdc++, libgcc_s, and for a GPU cudart, cuBLAS or the Vulkan loader are left to the host.
- ``program.build-one`` is right: the package is built from a shallow clone, and its library says build 1.
- notes: Node's ``napi_`` functions, which Node brings;
  its own __FILE__ paths, symbol tables, and no BUILD_INFO, which nobody but this project promises.

cyllama-rocm 0.2.18 (PyPI): a wheel repaired with hashed names.

- ``closure.not-bundled`` is right: hipBLAS, rocBLAS and the HIP runtime are neither bundled nor on every host.
- ``elf.rpath-absolute`` is right: one extension module kept the folders of its build (``/project/thirdparty/…``).
- ``closure.symbol-undefined`` (a note): libllama uses pthread_create, and its SQLite extension libm, without naming the
  library; with glibc before 2.34 that relies on whoever loads them.
- no ``plugin.name``: ggml would never open libggml-hip-<hash>.so by itself, but here it is linked.
"""

from __future__ import annotations

import pytest

from llamabuild.verify.check import Options, verify_path
from llamabuild.verify.inspect.run import inspect_path

pytestmark = pytest.mark.network

NODE_NOTES = {"closure.symbol-undefined", "content.build-path", "elf.debug-sections", "metadata.missing"}
CPU_VARIANTS = 14


def judged(path, context, **changes):
    report = verify_path(path, context=context, options=Options(run=False), **changes)
    names = {severity: set() for severity in ("error", "warning", "note")}
    for finding in report.findings:
        names[finding.severity].add(finding.name)
    return report, names


@pytest.mark.parametrize("flavour", ["", "-vulkan", "-cuda"])
def test_node_llama_cpp(flavour, npm_package, context):
    report, names = judged(npm_package(flavour), context)
    assert names["error"] == {"elf.rpath-relative"} | ({"elf.rpath-absolute"} if flavour == "-vulkan" else set())
    assert names["warning"] == {"closure.host-library", "program.build-one"}
    # Node's addon of the Vulkan package needs the missing Vulkan loader itself: what it lacks cannot be told then.
    assert names["note"] == NODE_NOTES - ({"closure.symbol-undefined"} if flavour == "-vulkan" else set())
    left = {
        word.split()[0] for each in report.findings if each.name == "closure.host-library" for word in [each.message]
    }
    expected = {"libstdc++.so.6", "libgcc_s.so.1"}
    if flavour == "-cuda":
        expected |= {"libcudart.so.13", "libcublas.so.13"}
    if flavour == "-vulkan":
        expected = {"libvulkan.so.1"}  # the host's Vulkan drivers need the host's C++ runtime, so that is left to it
    assert left == expected


def test_node_llama_cpp_has_what_inspect_tells(npm_package):
    inspection = inspect_path(npm_package("-cuda"))
    states = {name: backend.state for name, backend in inspection.backends.items()}
    assert states == {"cpu": "on", "cuda": "on", "hip": "off", "vulkan": "off"}
    assert inspection.archs == (
        "75-virtual", "80-virtual", "86-real", "89-real", "90-virtual", "120a-real", "121a-real",
    )  # fmt: skip
    assert inspection.nccl is False
    assert (inspection.details["build_number"], inspection.details["commit"]) == (1, "0ad4a86")


@pytest.mark.parametrize(
    ("arch", "missing"), [("86-real", False), ("120a-real", False), ("120-real", False), ("90-real", True)]
)
def test_an_arch_asked_of_it_is_there_or_told(arch, missing, npm_package, context):
    report, _ = judged(npm_package("-cuda"), context, arch=arch)
    assert any(finding.name == "device.sass-missing" for finding in report.findings) is missing


def test_the_hip_wheel(hip_wheel, context):
    report, names = judged(hip_wheel, context)
    needed = {each.message.split()[2].rstrip(":") for each in report.findings if each.name == "closure.not-bundled"}
    assert needed == {"libhipblas.so.2", "librocblas.so.4", "libamdhip64.so.6", "libgomp.so.1"}
    assert names["error"] == {"closure.not-bundled", "elf.rpath-absolute"}
    assert {each.file.rpartition("/")[2].partition(".")[0] for each in report.findings if "rpath" in each.name} == {
        "embedded"
    }
    assert names["warning"] == {"closure.host-library"}
    inspection = inspect_path(hip_wheel)
    assert inspection.backends["hip"].state == "on"
    assert inspection.backends["hip"].kind == "linked"
    assert inspection.archs == ("gfx1100", "gfx90a", "gfx942")


def test_the_hip_wheel_does_not_serve_another_arch(hip_wheel, context):
    report, _ = judged(hip_wheel, context, arch="gfx1201")
    assert any(finding.name == "device.gfx-missing" for finding in report.findings)
