"""How many bytes a model takes while it is served: weights and caches exactly, compute buffers by estimate.

Read off llama.cpp v0.5.0: ``src/llama-context.cpp`` (padding, outputs), ``src/llama-kv-cache.cpp``,
``src/llama-kv-cache-iswa.cpp`` and ``src/llama-memory-recurrent.cpp`` (caches), ``common/speculative.cpp`` (the draft
context is as large as the target's; a drafted recurrent target keeps a state a drafted token, to roll back).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.core.errors import UsageError
from llamabuild.runtime.ggml_types import BY_NAME

if TYPE_CHECKING:
    from llamabuild.runtime.ggml_types import GgmlType
    from llamabuild.runtime.gguf_model import Layer, Model

_F32 = 4
_STEP = 256
"""Contexts and windows are padded to this many positions (llama.cpp pull request 17046, issue 17037)."""

_ROLLBACK = frozenset({
    "kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe",
    "bailingmoe3",
})  # fmt: skip
"""``llm_arch_supports_rs_rollback``."""

_GATED_QUERY = frozenset({"qwen35", "qwen35moe", "qwen3next"})
"""Architectures whose query comes with a gate of the same width."""

COPIES = 4
"""GGML_SCHED_MAX_COPIES: how often inputs are kept with pipeline parallelism, which is on where several devices share
all layers of a layer split (CUDA, HIP, Vulkan, SYCL and RPC can do it) and there are no tensor overrides."""

COMPUTE_UNCERTAINTY = 0.25
"""Of a compute buffer: the estimate stays within this of 285 loads with random shapes (dense, mixture of experts,
hybrid) of v0.5.0 on the CPU; other backends pad more."""


@dataclass(frozen=True)
class Serving:
    """How a model is to be served: the server's flags by their meaning."""

    context: int
    """``--ctx-size``: positions of all slots together."""
    parallel: int = 1
    unified: bool = False
    """``--kv-unified``: one cache for all slots. The server turns it on when the number of slots is automatic."""
    batch: int = 2048
    ubatch: int = 512
    cache_k: str = "f16"
    cache_v: str = "f16"
    draft_cache_k: str = "f16"
    draft_cache_v: str = "f16"
    draft_tokens: int = 0
    """``--spec-draft-n-max`` when there is a drafter."""
    flash_attention: bool = True
    swa_full: bool = False

    @property
    def streams(self) -> int:
        """Separate caches."""
        return 1 if self.unified else max(1, self.parallel)

    @property
    def positions(self) -> int:
        """Of one stream, padded as the context is."""
        whole = _pad(self.context)
        return whole if self.unified else _pad(whole // self.streams)

    @property
    def tokens(self) -> int:
        """Of one micro-batch."""
        return min(self.positions * self.streams, self.batch, self.ubatch)


def cell_bytes(model: Model, layer: Layer, cache_k: str, cache_v: str) -> int:
    """Bytes of keys and values that a layer keeps for one position; 0 for a layer without."""
    if not layer.kv_heads:
        return 0
    keys = _cache_type(cache_k).row_bytes(model.key_length * layer.kv_heads)
    if model.latent_attention:
        return keys
    return keys + _cache_type(cache_v).row_bytes(model.value_length * layer.kv_heads)


def cells(model: Model, layer: Layer, serving: Serving) -> int:
    """Positions that a layer keeps, all streams together."""
    kept = serving.positions
    if layer.sliding and not serving.swa_full:
        sequences = serving.parallel if serving.unified else 1
        kept = _pad(min(kept, model.sliding_window * sequences + serving.tokens))
    return kept * serving.streams


def kv_bytes(model: Model, layer: Layer, serving: Serving) -> int:
    """A layer's keys and values, exactly."""
    return cell_bytes(model, layer, serving.cache_k, serving.cache_v) * cells(model, layer, serving)


def draft_kv_bytes(draft: Model, layer: Layer, serving: Serving) -> int:
    """A drafter layer's keys and values: the target's context, unless the drafter's header declares a window."""
    return cell_bytes(draft, layer, serving.draft_cache_k, serving.draft_cache_v) * cells(draft, layer, serving)


def state_bytes(model: Model, layer: Layer, serving: Serving) -> int:
    """A recurrent layer's states in F32, one for each sequence and one more for each drafted token."""
    if not layer.recurrent:
        return 0
    kept = serving.draft_tokens if model.architecture in _ROLLBACK else 0
    return (model.conv_state + model.recurrent_state) * _F32 * max(1, serving.parallel) * (1 + kept)


def output_bytes(model: Model, serving: Serving, draft: Model | None = None) -> int:
    """The buffer in host memory that logits are read from; with a DFlash drafter, the layers' inputs too."""
    rows = max(1, serving.parallel) * (1 + serving.draft_tokens)
    taken = len(draft.target_layers) if draft else 0
    batch = min(serving.positions * serving.streams, serving.batch)
    return (model.vocab * rows + taken * model.width * batch) * _F32


@dataclass(frozen=True)
class Share:
    """What a device's part of the graph has, as far as its compute buffer goes."""

    output: bool = True
    """The output layer, and with it the logits."""
    attention: bool = True
    recurrent: bool = True
    layers: bool = True
    """False where there is the output layer alone."""
    copies: int = 0
    """Of the inputs that come from host memory: 0 where the device is host memory itself, 1 on a device, `COPIES` with
    pipeline parallelism."""


def compute_bytes(model: Model, serving: Serving, share: Share | None = None) -> int:
    """The compute buffer of a device that runs some layers, by estimate.

    The largest of what lives at once in attention, in the feed-forward part and (where the output layer is) for the
    logits. The coefficients are what ggml's allocator gives, its fragmentation included, on the CPU of v0.5.0; what a
    device adds (copies of the mask and of what comes from the device before) is from loads over two RPC devices.
    """
    share = share or Share()
    queries = model.key_length * model.heads
    keys = model.key_length * max((layer.kv_heads for layer in model.main_layers), default=0)
    mask = mask_bytes(model, serving) / serving.tokens / _F32 if share.attention else 0
    scores = 0 if serving.flash_attention else 2 * model.heads * serving.positions
    if not share.layers:
        layer: float = 0
    elif model.is_drafter and model.selector_top_k:
        inner = 16 * model.width
        layer = inner if 3 * model.feed_forward < inner else 14 * model.width + 3 * model.feed_forward
    else:
        attention = _attention(model, queries, keys) + scores if share.attention else 0
        recurrent = _recurrent(model) if share.recurrent else 0
        layer = 3 * model.width + max(attention, recurrent, _inner(model, queries, keys))
    # A drafter's outputs are not limited to those that are sampled: its encoder takes every token.
    rows = serving.tokens if model.is_drafter else max(1, serving.parallel) * (1 + serving.draft_tokens)
    beside = (9 if model.is_drafter else 2) * model.width
    logits = model.vocab * rows / max(1, serving.tokens) + beside if share.output else 0
    if not share.copies:
        # In host memory the mask is freed before the logits are made.
        return int(serving.tokens * _F32 * max(mask + layer, logits))
    kept = share.copies * mask + (share.copies - 1) * model.width
    return int(serving.tokens * _F32 * (kept + max(layer, logits)))


def input_bytes(model: Model, serving: Serving, copies: int) -> int:
    """The compute buffer of the host beside devices: the inputs, once for each copy that the devices take."""
    return copies * mask_bytes(model, serving) + min(copies, 2) * model.width * serving.tokens * _F32


def mask_bytes(model: Model, serving: Serving) -> int:
    """The attention mask of a micro-batch: two bytes with flash attention, four without."""
    seen = {layer.sliding: cells(model, layer, serving) // serving.streams for layer in model.attention_layers}
    return sum(seen.values()) * serving.tokens * (2 if serving.flash_attention else 4)


def _attention(model: Model, queries: int, keys: int) -> int:
    if model.architecture in _GATED_QUERY:
        return 4 * queries
    return 4 * queries if keys == queries else 2 * queries + min(model.feed_forward, 2 * keys)


def _recurrent(model: Model) -> int:
    """A gated delta net: queries, keys and values together, three times over."""
    return 3 * (model.conv_state // 3) if any(layer.recurrent for layer in model.main_layers) else 0


def _inner(model: Model, queries: int, keys: int) -> int:
    used = max(1, model.experts_used) if model.experts else 1
    wide = (model.expert_feed_forward or model.feed_forward) * used if model.experts else model.feed_forward
    # The freed block of the queries is lost where the wider one does not fit into it.
    lost = queries if queries < wide and queries + keys < wide and model.architecture not in _GATED_QUERY else 0
    inner = (3 if wide > model.width else 2) * wide + lost
    return max(inner, used * model.width + queries) if model.experts else inner


def _cache_type(name: str) -> GgmlType:
    kind = BY_NAME.get(name.lower())
    if kind is None:
        raise UsageError(f"{name} is not a cache type.", hint="Use f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.")
    return kind


def _pad(count: int) -> int:
    return -(-count // _STEP) * _STEP
