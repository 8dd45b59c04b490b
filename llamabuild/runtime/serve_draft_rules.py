"""The rules of ``serve-check`` about drafters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.runtime.gguf_text import format_bytes
from llamabuild.runtime.serve_case import Case, Rule
from llamabuild.runtime.sizing import Serving, draft_kv_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    Seen = Iterator[tuple[str, str, str]]

_LARGE_CACHE = 1 << 30


def _block_size(case: Case) -> Seen:
    drafted = case.line.number("--spec-draft-n-max")
    if case.draft and case.draft.block_size and drafted > case.draft.block_size - 1:
        most = case.draft.block_size - 1
        yield (
            f"--spec-draft-n-max {drafted} is more than the drafter's block of {case.draft.block_size} gives: {most}.",
            f"{case.draft.architecture}.block_size = {case.draft.block_size}",
            f"Give --spec-draft-n-max {most}.",
        )


def _pinned_under_tensor_split(case: Case) -> Seen:
    pinned = case.line.value("--spec-draft-device")
    if case.drafts and case.split_mode == "tensor" and pinned and pinned != "none" and not _is_self_contained(case):
        yield (
            f"The drafter is pinned to {pinned} while the target is split by tensors: the load aborts.",
            f"--split-mode tensor --spec-draft-device {pinned}",
            "Leave --spec-draft-device out: the drafter must inherit the split.",
        )


def _is_self_contained(case: Case) -> bool:
    """A drafter with its own embeddings and head uses none of the target's tensors, and may go anywhere."""
    return bool(case.draft and case.draft.input_bytes and case.draft.vocab)


def _unpinned_under_layer_split(case: Case) -> Seen:
    if not case.drafts or case.split_mode != "layer" or not case.several:
        return
    pinned = case.line.value("--spec-draft-device")
    last = case.used[-1] if case.used else "the last device"
    if pinned is None:
        yield (
            f"The drafter is not pinned: under a layer split it belongs on {last}, beside the target's last layers.",
            "--split-mode layer",
            f"Give --spec-draft-device {last if case.used else 'NAME'}.",
        )


def _pinned_elsewhere(case: Case) -> Seen:
    pinned = case.line.value("--spec-draft-device")
    if not case.drafts or case.split_mode != "layer" or not case.several or not case.used or pinned is None:
        return
    last = case.used[-1]
    if pinned not in {last, "none"} and not _is_self_contained(case):
        yield (
            f"The drafter is pinned to {pinned}, away from the output layer that it shares with the target on {last}.",
            f"--spec-draft-device {pinned}",
            f"The load aborts. Give --spec-draft-device {last}.",
        )


def _tensor_series(case: Case) -> Seen:
    if not case.drafts or case.split_mode != "tensor" or case.symbols is None:
        return
    if case.draft and not case.draft.selector_top_k:
        return
    if "llama_model_get_split_mode" not in case.symbols:
        yield (
            "A DFlash2 drafter with --split-mode tensor aborts on this build: it lacks the dflash2-tensor series.",
            "libllama exports no llama_model_get_split_mode",
            "Build with the series dflash2-tensor, or use --split-mode layer.",
        )


def _draft_context(case: Case) -> Seen:
    if not case.draft or not case.context:
        return
    serving = Serving(
        context=case.context,
        parallel=case.line.number("--parallel", 1),
        unified=case.line.has("--kv-unified"),
        ubatch=case.line.number("--ubatch-size", 512),
        draft_cache_k=case.line.value("--spec-draft-type-k") or "f16",
        draft_cache_v=case.line.value("--spec-draft-type-v") or "f16",
    )
    size = sum(draft_kv_bytes(case.draft, layer, serving) for layer in case.draft.main_layers)
    if size >= _LARGE_CACHE and not case.draft.sliding_window:
        yield (
            f"The drafter's cache is as long as the target's: {format_bytes(size)} for {case.context} positions.",
            f"{case.draft.file} declares no sliding window",
            "No flag caps it: take a drafter that declares one, lower --ctx-size, or quantise with -ctkd and -ctvd.",
        )


def _fits_target(case: Case) -> Seen:
    if not case.draft or not case.model:
        return
    beyond = [number for number in case.draft.target_layers if number > len(case.model.main_layers)]
    if beyond:
        yield (
            f"The drafter reads the input of layer {beyond[0]}, and the target has {len(case.model.main_layers)}.",
            f"target_layers = {', '.join(map(str, case.draft.target_layers))}",
            "This drafter was made for another target.",
        )
    if case.draft.architecture == "dflash" and case.draft.vocab != case.model.vocab and not case.draft.input_bytes:
        yield (
            f"The drafter's vocabulary has {case.draft.vocab} tokens and the target's {case.model.vocab}.",
            "",
            "This drafter was made for another target.",
        )


def _no_drafter(case: Case) -> Seen:
    kind = case.line.value("--spec-type") or ""
    wanting = {"draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"} & set(kind.split(","))
    if wanting and not case.drafts:
        yield f"--spec-type {kind} drafts with a model, and none is given.", f"--spec-type {kind}", "Give -md FILE."
    if "draft-mtp" in kind.split(",") and case.model and not case.model.nextn_layers and not case.drafts:
        yield (
            "--spec-type draft-mtp needs layers that predict ahead, and the model has none.",
            f"{case.model.architecture}.nextn_predict_layers is 0",
            "Use a file that was converted with them.",
        )


def _known_drafter(case: Case) -> Seen:
    selects = case.draft and case.draft.selector_top_k
    if selects and case.symbols is not None and "llama_model_dflash_selector_top_k" not in case.symbols:
        yield (
            "The drafter is a DFlash2, and this build does not know DFlash2: it finds fewer tensors than there are.",
            "libllama exports no llama_model_dflash_selector_top_k",
            "Use a build with the feature dflash2 (b10658 or later).",
        )


DRAFT_RULES = (
    Rule("draft.block-size", "warning", "common/speculative.cpp: clamped to block_size - 1",
         "draft_n of a step exceeds the block", _block_size),
    Rule("draft.pinned", "error", "field report; v0.5.0 over two RPC devices: pre-allocated tensor in a buffer (Meta) "
         "that cannot run the operation", "the server answers with a pinned drafter",
         _pinned_under_tensor_split),
    Rule("draft.unpinned", "warning", "field report: an unpinned drafter is split too, or sits on the wrong card",
         "tokens/s and graph splits do not change with --spec-draft-device", _unpinned_under_layer_split),
    Rule("draft.elsewhere", "error", "v0.5.0 over two RPC devices: pre-allocated tensor (output.weight) in a buffer "
         "that cannot run the operation", "the server answers with the drafter there", _pinned_elsewhere),
    Rule("draft.tensor-series", "error", "llama.cpp issue 27833, pull request 27858; v0.5.0 over two RPC devices: "
         "GGML_ASSERT in ggml-backend-meta.cpp",
         "this build answers a drafted request under a tensor split", _tensor_series),
    Rule("draft.context", "warning", "common/speculative.cpp: the draft context takes the target's n_ctx",
         "the loader's KV line of the drafter shows fewer cells", _draft_context),
    Rule("draft.target", "error", "the files' headers", "the server drafts with this pair", _fits_target),
    Rule("draft.missing", "error", "common/speculative.cpp", "the server drafts with these flags", _no_drafter),
    Rule("draft.unknown", "error", "field report: wrong number of tensors; expected 81, got 58",
         "the build loads the drafter", _known_drafter),
)  # fmt: skip
