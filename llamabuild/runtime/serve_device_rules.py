"""The rules of ``serve-check`` about devices and splits."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from llamabuild.runtime.gguf_text import format_bytes
from llamabuild.runtime.serve_case import Case, Rule
from llamabuild.runtime.serve_rules import OFF

if TYPE_CHECKING:
    from collections.abc import Iterator

    Seen = Iterator[tuple[str, str, str]]

_OVERRIDES = {"--override-tensor", "--spec-draft-override-tensor"}
_NAMING = {"--device", "--spec-draft-device", *_OVERRIDES}
_NCMOE_BUILD = 9876


def _overrides(case: Case) -> Iterator[tuple[str, str, str]]:
    """Word, value and place of each override that names another place than the CPU."""
    for one in case.line.given:
        if one.flag is None or not _OVERRIDES & set(one.flag.names) or not one.values:
            continue
        places = [pair.rpartition("=")[2] for pair in re.split(r"[,;]", one.values[0]) if "=" in pair]
        away = [place for place in places if place.upper() != "CPU"]
        if away and not (case.used is not None and len(case.used) == 1):
            yield one.word, one.values[0], away[0]


def _backends(case: Case, place: str) -> set[str]:
    return {re.sub(r"\d.*$", "", name) for name in (*(case.used or ()), place)}


def _override_backends(case: Case) -> Seen:
    for word, value, place in _overrides(case):
        if len(_backends(case, place)) > 1:
            yield (
                f"{word} puts tensors on {place} beside devices of another backend: only the CPU can be named.",
                f"{word} {value}",
                "The load aborts (pre-allocated tensor … cannot run the operation). Use a layer split, or =CPU.",
            )


def _override_devices(case: Case) -> Seen:
    for word, value, place in _overrides(case):
        if len(_backends(case, place)) == 1:
            yield (
                f"{word} puts tensors on {place}: that turns pipeline parallelism off, and aborts on some devices.",
                f"{word} {value}",
                "Use a layer split, or =CPU; try it before relying on it.",
            )


def _late_rpc(case: Case) -> Seen:
    """Names of RPC devices exist only once --rpc was read, and the line is read from left to right."""
    named = None
    for one in case.line.given:
        if one.flag and _NAMING & set(one.flag.names) and one.values and "RPC" in one.values[0]:
            named = named or one.word
        elif one.flag and "--rpc" in one.flag.names and named:
            yield f"{named} names an RPC device before --rpc makes it known.", named, "Write --rpc first."


def _device_names(case: Case) -> Seen:
    if case.devices is None:
        return
    for flag in ("--device", "--spec-draft-device"):
        value = case.line.value(flag)
        for name in re.split(r"[,/]", value) if value else ():
            if name not in {*case.devices, "none"}:
                near = difflib.get_close_matches(name, case.devices, n=1)
                listed = ", ".join(case.devices) or "none besides the CPU"
                hint = f"Did you mean {near[0]}?" if near else "A missing device is a plugin that failed to load."
                yield f"{flag} names {name}, which this build does not see: it sees {listed}.", f"{flag} {value}", hint


def _split_count(case: Case) -> Seen:
    value = case.line.value("--tensor-split")
    shares = [share for share in re.split(r"[,/]", value or "") if share]
    if case.used is not None and len(shares) > max(1, len(case.used)):
        yield (
            f"--tensor-split has {len(shares)} shares for {len(case.used)} device(s); the rest counts for nothing.",
            f"--tensor-split {value}",
            "Give one share a device, in the order of --device.",
        )


def _atomics(case: Case) -> Seen:
    if case.split_mode == "tensor" and case.atomics is False:
        yield (
            "--split-mode tensor needs a collective, and this host's links have no PCIe atomics.",
            "AtomicOpsCtl: ReqEn-",
            "Use --split-mode layer, or GGML_CUDA_ALLREDUCE=internal on a build that has it.",
        )


def _tensor_moe(case: Case) -> Seen:
    if case.split_mode != "tensor" or not (case.line.has("--n-cpu-moe") or case.line.has("--cpu-moe")):
        return
    if 0 < case.flags.build < _NCMOE_BUILD:
        yield (
            f"--split-mode tensor with experts on the CPU needs build {_NCMOE_BUILD}; this is {case.flags.build}.",
            "",
            "Use a later build, or --split-mode layer.",
        )


def _tensor_flash(case: Case) -> Seen:
    if case.split_mode == "tensor" and case.line.value("--flash-attn") in OFF:
        yield "--split-mode tensor requires flash attention.", "--flash-attn off", "Give --flash-attn on or auto."


def _pinned_memory(case: Case) -> Seen:
    on_cpu = any(case.line.has(flag) for flag in ("--n-cpu-moe", "--cpu-moe", "--n-cpu-ffn")) or "=CPU" in (
        case.line.value("--override-tensor") or ""
    )
    cuda = any(name.startswith("CUDA") for name in case.used or ())
    if on_cpu and cuda and "GGML_CUDA_NO_PINNED" not in case.line.env:
        yield (
            "Weights that stay on the CPU may end up page-locked.",
            "",
            "Set GGML_CUDA_NO_PINNED=1 where memory is short.",
        )


def _bench_lists(case: Case) -> Seen:
    if case.line.program != "llama-bench":
        return
    for flag, what in (("--device", "devices"), ("--tensor-split", "shares")):
        value = case.line.value(flag)
        if value and "," in value and "/" not in value:
            yield (
                f"{flag} {value} is {value.count(',') + 1} runs in turn, and not one run over several {what}.",
                f"{flag} {value}",
                f"Write {flag} {value.replace(',', '/')}; check the table's own dev column.",
            )


def _expert_layers(case: Case) -> Seen:
    count = case.line.number("--n-cpu-moe")
    if case.model and count and not case.model.experts:
        yield f"--n-cpu-moe {count}: {case.model.architecture} has no experts.", "", "Leave it out, or use --n-cpu-ffn."
    elif case.model and count:
        bytes_kept = sum(layer.expert_bytes for layer in case.model.layers[:count])
        if count > len(case.model.layers):
            shown = format_bytes(bytes_kept)
            yield f"--n-cpu-moe {count} is more than the model's {len(case.model.layers)} layers.", shown, "Lower it."


DEVICE_RULES = (
    Rule("override.backend", "error", "field report (CUDA with Vulkan); src/llama-context.cpp turns pipeline "
         "parallelism off where there are overrides, ggml-backend.cpp aborts",
         "a load with such an override answers a request", _override_backends),
    Rule("override.device", "warning", "field report; two RPC devices of one backend did serve on v0.5.0",
         "pipeline parallelism stays enabled with the override", _override_devices),
    Rule("rpc.order", "error", "common/arg.cpp: arguments are read in order", "the server starts with --rpc last",
         _late_rpc),
    Rule("device.unknown", "error", "the bundle's own --list-devices", "the server starts with the name",
         _device_names),
    Rule("split.shares", "warning", "src/llama-model.cpp: one share a device", "another share changes the placement",
         _split_count),
    Rule("split.atomics", "error", "field report: no collective without PCIe atomics (AtomicOpsCtl: ReqEn-)",
         "a tensor split answers a request on such a host", _atomics),
    Rule("split.tensor-experts", "error", "llama.cpp pull request 25028 (build 9876), issue 24886",
         "an older build loads it", _tensor_moe),
    Rule("split.tensor-attention", "error", "src/llama-context.cpp: SPLIT_MODE_TENSOR requires flash_attn",
         "the server starts with these flags", _tensor_flash),
    Rule("memory.pinned", "note", "field report: overridden tensors end up page-locked",
         "locked memory (VmLck, VmPin) does not grow by the weights", _pinned_memory),
    Rule("bench.lists", "warning", "llama-bench --help: several values are separated by ','; its devices by '/'",
         "the table shows one row whose dev column names all devices", _bench_lists),
    Rule("experts.layers", "warning", "the file's header", "memory on the CPU rises by the flag", _expert_layers),
)  # fmt: skip
