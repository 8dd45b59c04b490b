"""GPUs, their facts and what follows, on recorded machines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build.devices import detect_arch, find_gpus
from llamabuild.build.drivers import driver_floor, host_driver
from llamabuild.build.hostfacts import read_host_facts
from llamabuild.build.model import BuildOptions
from llamabuild.build.targets import resolve_target
from llamabuild.core.errors import ToolError, UsageError

if TYPE_CHECKING:
    from llamabuild.build.host import RecordedHost
    from llamabuild.core.context import Context
    from llamabuild.recipe.model import Recipe
    from llamabuild.source.lock import Lock

PCI = "/sys/bus/pci/devices"
KFD = "/sys/class/kfd/kfd/topology/nodes"
SMI = "nvidia-smi --query-gpu=pci.bus_id,name,compute_cap,memory.total,driver_version --format=csv,noheader,nounits"
GIB = 1024**3


def pci(bus: str, vendor: str, device: str, klass: str = "0x030000", **more: str) -> dict[str, str]:
    return {
        f"{PCI}/{bus}/{name}": text
        for name, text in {"class": klass, "vendor": vendor, "device": device, **more}.items()
    }


def link(bus: str, width: str, max_width: str, speed: str = "16.0 GT/s PCIe") -> dict[str, str]:
    names = {
        "current_link_width": width,
        "max_link_width": max_width,
        "current_link_speed": speed,
        "max_link_speed": speed,
    }
    return {f"{PCI}/{bus}/{name}": text for name, text in names.items()}


def lspci(bus: str, requester: str) -> dict[str, str]:
    text = (
        f"{bus[5:]} VGA compatible controller: AMD\n\tCapabilities: [64] Express (v2) Legacy Endpoint\n"
        f"\t\t\t AtomicOpsCap: 32bit+ 64bit+ 128bitCAS-\n\t\t\t AtomicOpsCtl: ReqEn{requester}\n"
    )
    return {f"lspci -vv -s {bus}": text}


@pytest.fixture
def dual_amd(machines: Any) -> RecordedHost:
    """Two RX 9070 XT, the second behind four lanes of the chipset, and no PCIe atomics."""
    files = {
        **pci("0000:03:00.0", "0x1002", "0x7550", mem_info_vram_total=str(16 * GIB), mem_info_gtt_total=str(31 * GIB)),
        **pci("0000:0b:00.0", "0x1002", "0x7550", mem_info_vram_total=str(16 * GIB), mem_info_gtt_total=str(31 * GIB)),
        # The board's own display controller is no GPU of ours.
        **pci("0000:10:00.0", "0x1a03", "0x2000"),
        **link("0000:03:00.0", "16", "16", "32.0 GT/s PCIe"),
        **link("0000:01:00.0", "16", "16", "32.0 GT/s PCIe"),
        **link("0000:0b:00.0", "16", "16", "32.0 GT/s PCIe"),
        **link("0000:09:00.0", "4", "16"),
        **link("0000:08:00.0", "4", "4"),
        f"{KFD}/0/properties": "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0",
        f"{KFD}/1/properties": "simd_count 128\ngfx_target_version 120001\nlocation_id 768\ndomain 0",
        f"{KFD}/2/properties": "simd_count 128\ngfx_target_version 120001\nlocation_id 2816\ndomain 0",
        "/proc/meminfo": "MemTotal:       65000000 kB\nMemAvailable:   60000000 kB",
        "/proc/sys/kernel/osrelease": "6.12.0",
    }
    root = "/sys/devices/pci0000:00"
    links = {
        f"{PCI}/0000:03:00.0": f"{root}/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0",
        f"{PCI}/0000:0b:00.0": f"{root}/0000:00:02.1/0000:08:00.0/0000:09:00.0/0000:0a:00.0/0000:0b:00.0",
    }
    outputs = {**lspci("0000:03:00.0", "-"), **lspci("0000:0b:00.0", "-")}
    return machines.plain(files=files, links=links, outputs=outputs)


@pytest.fixture
def cuda_and_integrated_amd(machines: Any) -> RecordedHost:
    """An RTX 3090 and the GPU inside a Ryzen; not run as root."""
    files = {
        **pci("0000:01:00.0", "0x10de", "0x2204"),
        **pci("0000:10:00.0", "0x1002", "0x164e", mem_info_vram_total=str(GIB // 2), mem_info_gtt_total=str(31 * GIB)),
        **link("0000:01:00.0", "8", "16"),
        f"{KFD}/1/properties": "simd_count 4\ngfx_target_version 100306\nlocation_id 4096\ndomain 0",
    }
    denied = "01:00.0 VGA compatible controller: NVIDIA\n\tCapabilities: <access denied>\n"
    outputs = {
        SMI: "00000000:01:00.0, NVIDIA GeForce RTX 3090, 8.6, 24576, 570.86.10",
        "lspci -vv -s 0000:01:00.0": denied,
        "lspci -vv -s 0000:10:00.0": denied,
    }
    return machines.plain(files=files, outputs=outputs)


def test_two_amd_cards_without_atomics(dual_amd: RecordedHost) -> None:
    facts = read_host_facts(dual_amd)
    assert [gpu.gpu.arch for gpu in facts.gpus] == ["gfx1201", "gfx1201"]
    assert [gpu.atomics for gpu in facts.gpus] == ["off", "off"]
    assert [gpu.unified for gpu in facts.gpus] == [False, False]
    first, second = (gpu.link for gpu in facts.gpus)
    assert first is not None
    assert second is not None
    assert (first.width, first.reduced) == (16, False)
    assert (second.width, second.max_width, second.reduced) == (4, 16, True)
    notes = "\n".join(facts.notes)
    assert "0000:03:00.0, 0000:0b:00.0 (AtomicOpsCtl: ReqEn-)" in notes
    assert "rccl = false" in notes
    assert "--split-mode layer" in notes
    assert "4 of 16 PCIe lanes" in notes
    assert facts.unread == ()
    assert detect_arch("hip", dual_amd) == "gfx1201"


def test_atomics_that_are_enabled_give_no_note(dual_amd: RecordedHost, machines: Any) -> None:
    good = machines.change(dual_amd, outputs={**lspci("0000:03:00.0", "+"), **lspci("0000:0b:00.0", "+")})
    facts = read_host_facts(good)
    assert [gpu.atomics for gpu in facts.gpus] == ["enabled", "enabled"]
    assert not any("atomics" in note for note in facts.notes)


def test_cards_in_a_host_with_much_memory_are_cards(dual_amd: RecordedHost, machines: Any) -> None:
    sizes = {"mem_info_vram_total": 32 * GIB, "mem_info_gtt_total": 128 * GIB}
    buses = ("0000:03:00.0", "0000:0b:00.0")
    files = {f"{PCI}/{bus}/{name}": str(size) for bus in buses for name, size in sizes.items()}
    facts = read_host_facts(machines.change(dual_amd, files=files))
    assert [gpu.unified for gpu in facts.gpus] == [False, False]
    assert "no PCIe atomics on 0000:03:00.0, 0000:0b:00.0" in "\n".join(facts.notes)
    unnamed = {f"{KFD}/{node}/properties": "gfx_target_version 0" for node in (1, 2)}
    facts = read_host_facts(machines.change(dual_amd, files={**files, **unnamed}))
    assert "no PCIe atomics on 0000:03:00.0, 0000:0b:00.0" in "\n".join(facts.notes)


@pytest.mark.parametrize(
    ("version", "vram", "gtt", "unified"),
    [(110501, 96, 16, True), (110501, 1, 62, True), (90402, 192, 500, False), (130000, 1, 62, True)],
)
def test_unified_memory_goes_by_arch_and_by_sizes_where_the_arch_does_not_tell(
    version: int, vram: int, gtt: int, unified: bool, machines: Any
) -> None:
    sizes = {"mem_info_vram_total": str(vram * GIB), "mem_info_gtt_total": str(gtt * GIB)}
    files = pci("0000:c1:00.0", "0x1002", "0x1586", **sizes)
    files[f"{KFD}/1/properties"] = f"gfx_target_version {version}\nlocation_id {0xC1 << 8}\ndomain 0"
    (gpu,) = read_host_facts(machines.plain(files=files)).gpus
    assert gpu.unified is unified


def test_cuda_with_an_integrated_amd(cuda_and_integrated_amd: RecordedHost) -> None:
    facts = read_host_facts(cuda_and_integrated_amd, toolkit="13.0.88")
    nvidia, amd = facts.gpus
    assert (nvidia.gpu.name, nvidia.gpu.arch, nvidia.gpu.memory_bytes) == ("NVIDIA GeForce RTX 3090", "86", 24 * GIB)
    assert (amd.gpu.arch, amd.unified) == ("gfx1036", True)
    assert (nvidia.driver_floor, nvidia.driver_ok) == ("580.65.06", False)
    notes = "\n".join(facts.notes)
    assert "driver 570.86.10 is older than 580.65.06" in notes
    assert "GTT 31.0 GiB against VRAM 0.5 GiB" in notes
    assert "cuda-vulkan" in notes
    assert "8 of 16 PCIe lanes" in notes
    assert facts.unread == (
        "AtomicOpsCtl of 0000:01:00.0: PCI capabilities are shown to root alone",
        "AtomicOpsCtl of 0000:10:00.0: PCI capabilities are shown to root alone",
    )
    assert read_host_facts(cuda_and_integrated_amd, toolkit="12.8.1").gpus[0].driver_ok is True


def test_no_gpu_and_no_lspci(machines: Any) -> None:
    facts = read_host_facts(machines.plain())
    assert (facts.gpus, facts.notes, facts.unread) == ((), (), ())
    for backend, asked in (("cuda", "nvidia-smi"), ("hip", "rocminfo")):
        with pytest.raises(UsageError, match=asked):
            detect_arch(backend, machines.plain())


def test_without_lspci_or_rights_the_facts_say_what_is_missing(dual_amd: RecordedHost, machines: Any) -> None:
    denied = f"{PCI}/0000:03:00.0/mem_info_gtt_total"
    host = machines.change(dual_amd, denied=frozenset({denied}))
    host = machines.change(host, outputs={})
    bare = type(host)(**{**vars(host), "outputs": {"uname -m": "x86_64"}})
    facts = read_host_facts(bare)
    assert facts.gpus[0].gtt_bytes is None
    assert facts.gpus[0].atomics == "unknown"
    assert facts.unread == (f"{denied}: no permission", "AtomicOpsCtl: lspci was not found (package pciutils)")


def test_different_gpus_are_a_choice_for_a_person(dual_amd: RecordedHost, machines: Any) -> None:
    other = {f"{KFD}/2/properties": "simd_count 96\ngfx_target_version 110000\nlocation_id 2816\ndomain 0"}
    with pytest.raises(UsageError, match="different AMD GPUs") as caught:
        detect_arch("hip", machines.change(dual_amd, files=other))
    assert caught.value.hint == "One target is for one arch: give --arch gfx1100 or gfx1201."


def test_where_the_topology_cannot_be_read_the_tools_are_asked(machines: Any) -> None:
    rocminfo = "  Name:          AMD Ryzen 9\n  Name:          gfx1100\n  Name:     amdgcn-amd-amdhsa--gfx1100\n"
    assert detect_arch("hip", machines.plain(outputs={"rocminfo": rocminfo})) == "gfx1100"
    assert detect_arch("hip", machines.plain(outputs={"amdgpu-arch": "gfx90a\ngfx90a"})) == "gfx90a"


def test_a_broken_nvidia_driver_is_quoted(
    cuda_and_integrated_amd: RecordedHost, recipe: Recipe, lock: Lock, context: Context, machines: Any
) -> None:
    answer = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95"
    files = {"/sys/module/nvidia/version": "570.86.10"}
    outputs = {line: text for line, text in cuda_and_integrated_amd.outputs.items() if line != SMI}
    silent = replace(machines.change(cuda_and_integrated_amd, files=files), outputs=outputs)
    broken = replace(silent, failures={SMI: answer})
    quoted = "nvidia-smi says 'Failed to initialize NVML: Driver/library version mismatch'"
    facts = read_host_facts(broken)
    assert (facts.gpus[0].gpu.arch, facts.gpus[0].gpu.driver) == ("", "570.86.10")
    assert f"arch and memory of 0000:01:00.0: {quoted}" in facts.unread
    with pytest.raises(UsageError, match=re.escape(quoted)):
        detect_arch("cuda", broken)
    assert resolve_target(only(recipe, "cuda", "cpu"), lock, name=None, arch=None, host=broken, context=context)
    assert quoted in "".join(said(context))
    assert "arch and memory of 0000:01:00.0: nvidia-smi was not found" in read_host_facts(silent).unread


@pytest.mark.parametrize(
    "program",
    ["rocminfo", "/data/rocm/bin/rocminfo", "/opt/rocm/bin/rocminfo", "/opt/rocm/lib/llvm/bin/amdgpu-arch"],
)
def test_what_a_tool_names_is_the_card_that_the_bus_shows(program: str, machines: Any) -> None:
    text = "  Name:          gfx1100\n" if program.endswith("rocminfo") else "gfx1100\n"
    files = pci("0000:03:00.0", "0x1002", "0x744c", mem_info_vram_total=str(24 * GIB))
    host = machines.plain(files=files, outputs={program: text}, env={"ROCM_PATH": "/data/rocm"})
    (gpu,) = find_gpus(host)
    assert (gpu.bus, gpu.name, gpu.arch, gpu.memory_bytes) == ("0000:03:00.0", "amd 0x744c", "gfx1100", 24 * GIB)
    two = machines.change(host, outputs={program: text * 2})
    assert [gpu.bus for gpu in find_gpus(two)] == ["0000:03:00.0", "", ""]


@pytest.mark.parametrize(("version", "name"), [("90010", "gfx90a"), ("90402", "gfx942"), ("110501", "gfx1151")])
def test_the_kernels_target_versions_are_named_as_compilers_name_them(version: str, name: str, machines: Any) -> None:
    files = {f"{KFD}/1/properties": f"gfx_target_version {version}\nlocation_id 256\ndomain 0"}
    assert [gpu.arch for gpu in find_gpus(machines.plain(files=files))] == [name]


@pytest.mark.parametrize(
    ("toolkit", "archs", "floor"),
    [
        ("12.4.1", ("86-real",), "525.60.13"),
        ("12.4.1", ("86",), "525.60.13"),
        ("12.4.1", ("86-virtual",), "550.54.14"),
        ("12.9.1", ("120a-real",), "570"),
        ("12.8", ("86-real", "90-virtual"), "570.26"),
        ("13.0.88", ("120a",), "580.65.06"),
        ("13.2", ("86-virtual",), "595.45.04"),
        # An older toolkit's floor would be too low for this one's PTX, so it is not known.
        ("12.3", ("86-virtual",), ""),
        ("13.9", ("86-virtual",), ""),
        ("11.8", ("86",), ""),
        ("", ("86",), ""),
    ],
)
def test_driver_floors(toolkit: str, archs: tuple[str, ...], floor: str) -> None:
    assert driver_floor(toolkit, archs) == floor


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        (None, ""),
    ],
)
def test_the_kernel_module_says_which_driver_is_loaded(text: str | None, driver: str, machines: Any) -> None:
    files = {"/proc/driver/nvidia/version": text} if text else {}
    assert host_driver(machines.plain(files=files)) == driver


def test_auto_takes_a_gpu_target_only_when_its_toolchain_works(
    cuda_and_integrated_amd: RecordedHost, recipe: Recipe, lock: Lock, machines: Any
) -> None:
    host = cuda_and_integrated_amd
    assert resolve_target(recipe, lock, name=None, arch=None, host=host).name == "cpu"
    nvcc = "/usr/local/cuda/bin/nvcc"
    trial = (
        f"{nvcc} -gencode=arch=compute_86,code=[compute_86,sm_86] -L/usr/local/cuda/lib64/stubs"
        " {source} -o {out} -lcublas -lcuda"
    )
    stray = machines.change(
        host,
        programs={"nvcc": nvcc},
        outputs={"nvcc --version": "Cuda compilation tools, release 12.8, V12.8.93"},
        failures={trial: "trial.cu:1:10: fatal error: cublas_v2.h: No such file or directory"},
    )
    assert resolve_target(recipe, lock, name=None, arch=None, host=stray).name == "cpu"
    whole = machines.change(stray, outputs={trial: ""})
    chosen = resolve_target(recipe, lock, name=None, arch=None, host=whole)
    assert (chosen.name, chosen.arch) == ("cuda", "86")


def only(recipe: Recipe, *names: str) -> Recipe:
    return recipe.model_copy(update={"targets": {name: recipe.targets[name] for name in names}})


def said(context: Context) -> list[str]:
    return [line.strip() for line in context.console.stream.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_auto_passes_over_a_target_for_another_arch_and_says_so(
    cuda_and_integrated_amd: RecordedHost, recipe: Recipe, lock: Lock, context: Context
) -> None:
    ada = recipe.targets["cuda"].model_copy(update={"arch": "89"})
    few = recipe.model_copy(update={"targets": {"cuda": ada, "cpu": recipe.targets["cpu"]}})
    target = resolve_target(few, lock, name="auto", arch=None, host=cuda_and_integrated_amd, context=context)
    assert target.name == "cpu"
    assert said(context) == ["target cuda was passed over: it is for arch 89, and this host's NVIDIA GPU is 86"]


def test_auto_says_what_a_gpu_target_lacks_and_is_quiet_without_a_gpu(
    cuda_and_integrated_amd: RecordedHost, recipe: Recipe, lock: Lock, context: Context, machines: Any
) -> None:
    few = only(recipe, "cuda", "cpu")
    assert resolve_target(few, lock, name="auto", arch=None, host=machines.plain(), context=context).name == "cpu"
    assert said(context) == []
    resolve_target(few, lock, name="auto", arch=None, host=cuda_and_integrated_amd, context=context)
    (line,) = said(context)
    assert line.startswith("target cuda was passed over: no CUDA compiler: nvcc was not found in PATH")


def test_auto_looks_where_the_options_say(
    cuda_and_integrated_amd: RecordedHost, recipe: Recipe, lock: Lock, context: Context, machines: Any
) -> None:
    nvcc = "/data/cuda/bin/nvcc"
    trial = (
        f"{nvcc} -gencode=arch=compute_86,code=[compute_86,sm_86] -L/data/cuda/lib64/stubs"
        " {source} -o {out} -lcublas -lcuda"
    )
    host = machines.change(
        cuda_and_integrated_amd,
        programs={"nvcc of data": nvcc},
        outputs={f"{nvcc} --version": "Cuda compilation tools, release 12.8, V12.8.93", trial: ""},
    )
    few, given = only(recipe, "cuda", "cpu"), BuildOptions(cuda_toolkit="/data/cuda")
    assert resolve_target(few, lock, name="auto", arch=None, host=host, context=context).name == "cpu"
    chosen = resolve_target(few, lock, name="auto", arch=None, host=host, options=given, context=context)
    assert chosen.name == "cuda"


def test_auto_refuses_to_replace_a_target_whose_toolkit_was_named(
    cuda_and_integrated_amd: RecordedHost, recipe: Recipe, lock: Lock, context: Context, machines: Any
) -> None:
    given = BuildOptions(cuda_toolkit="/nowhere")
    with pytest.raises(ToolError, match="Target cuda cannot be built") as caught:
        resolve_target(
            only(recipe, "cuda", "cpu"), lock, name=None, arch=None, host=cuda_and_integrated_amd, options=given
        )
    assert any("nvcc was not found in /nowhere" in line for line in caught.value.details)
    with pytest.raises(UsageError, match="Target hip does not fit this host: it is for arch gfx1201"):
        resolve_target(
            only(recipe, "hip", "cpu"),
            lock,
            name=None,
            arch=None,
            host=cuda_and_integrated_amd,
            options=BuildOptions(rocm=Path("/nowhere")),
        )
    # Without a GPU there is nothing to refuse; that the option does nothing is said.
    plain = machines.plain()
    target = resolve_target(recipe, lock, name=None, arch=None, host=plain, options=given, context=context)
    assert target.name == "cpu"
    assert said(context) == ["--cuda-toolkit is of no use to target cpu, which fits this host"]


def test_arch_auto_takes_the_cards(cuda_and_integrated_amd: RecordedHost, recipe: Recipe, lock: Lock) -> None:
    target = resolve_target(recipe, lock, name="cuda", arch="auto", host=cuda_and_integrated_amd)
    assert dict(target.entries)["CMAKE_CUDA_ARCHITECTURES"] == target.arch == "86"
