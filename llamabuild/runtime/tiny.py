"""Tiny random models that the real loader takes, so that a server can be tried without a download.

What each architecture must hold is read off llama.cpp's own loaders (``src/models/llama.cpp``, ``qwen3moe.cpp``,
``qwen35.cpp``, ``dflash.cpp`` of v0.5.0) and off its converter (``conversion/qwen.py``).
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

TinyKind = Literal["dense", "moe", "hybrid", "sliding", "dflash2"]

_ARCHITECTURE = {"dense": "llama", "moe": "qwen3moe", "hybrid": "qwen35", "sliding": "gemma3", "dflash2": "dflash"}

TINY_NAME = "tiny random"
"""How ``general.name`` of these models begins."""

_TOOL_TOKENS = ("<tool_call>", "</tool_call>")
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")

_STEER = 4.0
"""The first element of every embedding, and (with a sign) of every output row: see `_tensors`."""

CHAT_TEMPLATE = (
    "{%- if reasoning_effort is defined and reasoning_effort == 'refuse-me' %}"
    "{{- raise_exception('unsupported reasoning effort') }}{%- endif %}"
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content %}{{- message.content }}{%- endif %}"
    "{%- if message.tool_calls %}{%- for call in message.tool_calls %}"
    "{{- '<tool_call>' }}{{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "{{- '</tool_call>' }}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""A ChatML template with tools; ``CHAT_TEMPLATE.replace("refuse-me", "high")`` raises on that level."""


@dataclass(frozen=True)
class TinyShape:
    """The sizes of a tiny model. Every width is in elements, ``context`` in positions."""

    kind: TinyKind = "dense"
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    feed_forward: int = 128
    context: int = 4096
    vocab: int = 280
    """At least the 256 bytes, a few merges and the special tokens; the rest are filler tokens."""
    experts: int = 4
    experts_used: int = 2
    attention_interval: int = 4
    """A hybrid's every so-manieth layer is attention; the others are recurrent (qwen35: 4)."""
    state_size: int = 16
    state_heads: int = 4
    """Value heads of a recurrent layer; it has half as many key heads."""
    conv_kernel: int = 2
    """Of a drafter's convolutions. v0.5.0 budgets its graph for about 8.6 nodes a tensor (``graph_max_nodes``), which
    is a kernel of 2: with 3, five layers and two slots it runs out of nodes and aborts."""
    block_size: int = 8
    """Of a drafter: it drafts one token less."""
    selector_top_k: int = 4
    selector_rank: int = 16
    target_layers: tuple[int, ...] = (1, 2)
    window: int = 0
    """The sliding window of a drafter (0 is none) or of a sliding model (0 is 512)."""
    quantisation: Literal["F32", "F16", "Q8_0", "Q4_0"] = "F32"
    """Of the matrices; norms and small vectors stay F32. The quantised types want widths divisible by 32."""
    chat_template: str = CHAT_TEMPLATE
    seed: int = 0

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return _ARCHITECTURE[self.kind]


def write_tiny_model(path: Path, *, kind: TinyKind = "dense", shape: TinyShape | None = None, **sizes: Any) -> Path:
    """Write a random model of ``kind`` to ``path`` and return it; ``sizes`` are fields of `TinyShape`.

    The same shape gives the same bytes. ``hybrid`` is a qwen35 with gated delta net layers and an attention layer
    every fourth, ``sliding`` a gemma3 whose embedding is its output too (so that what it says is not steered to be
    text), ``dflash2`` a drafter whose width and vocabulary must be its target's.
    """
    if shape is None:
        # A hybrid of fewer layers than its interval would have no attention layer at all.
        shape = TinyShape(kind=kind, **{"layers": 4 if kind == "hybrid" else 2, **sizes})
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        part = Path(folder) / path.name
        writer = gguf.GGUFWriter(part, shape.architecture)
        _write_header(writer, shape)
        for name, value, kind_of in _tensors(shape):
            writer.add_tensor(name, value, raw_dtype=kind_of)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        part.replace(path)
    return path


def byte_tokens() -> list[str]:
    """The 256 bytes as byte-level BPE spells them (printable bytes as themselves, the others from U+0100 on)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spelled, shift = [], 0
    for byte in range(256):
        if byte in printable:
            spelled.append(chr(byte))
        else:
            spelled.append(chr(0x100 + shift))
            shift += 1
    return spelled


def _write_header(writer: Any, shape: TinyShape) -> None:
    arch = shape.architecture
    writer.add_name(f"{TINY_NAME} {shape.kind}")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.head_size)
    if shape.kind == "moe":
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.feed_forward)
    if shape.kind == "hybrid":
        # IMRoPE needs the sections; their sum is half of the rotated width.
        half = shape.head_size // 2
        writer.add_array(f"{arch}.rope.dimension_sections", [half - half // 4 * 2, half // 4, half // 4, 0])
        writer.add_uint32(f"{arch}.full_attention_interval", shape.attention_interval)
        writer.add_uint32(f"{arch}.ssm.conv_kernel", 4)
        writer.add_uint32(f"{arch}.ssm.inner_size", shape.state_size * shape.state_heads)
        writer.add_uint32(f"{arch}.ssm.state_size", shape.state_size)
        writer.add_uint32(f"{arch}.ssm.time_step_rank", shape.state_heads)
        writer.add_uint32(f"{arch}.ssm.group_count", shape.state_heads // 2)
    if shape.kind == "sliding":
        writer.add_sliding_window(shape.window or 512)
    if shape.kind == "dflash2":
        writer.add_uint32(f"{arch}.block_size", shape.block_size)
        writer.add_uint32(f"{arch}.conv_kernel_size", shape.conv_kernel)
        writer.add_uint32(f"{arch}.conv_group_size", 16)
        writer.add_uint32(f"{arch}.selector_rank", shape.selector_rank)
        writer.add_uint32(f"{arch}.selector_top_k", shape.selector_top_k)
        writer.add_array(f"{arch}.target_layers", list(shape.target_layers))
        writer.add_array(f"{arch}.rope.dimension_sections", [shape.head_size // 2, 0, 0, 0])
        if shape.window:
            writer.add_sliding_window(shape.window)
            writer.add_array(f"{arch}.attention.sliding_window_pattern", [True] * shape.layers)
    _write_tokenizer(writer, shape)


def _write_tokenizer(writer: Any, shape: TinyShape) -> None:
    import gguf

    merged = ["Ġt", "he", "in"]
    normal = byte_tokens() + merged
    filler_count = shape.vocab - len(normal) - len(_TOOL_TOKENS) - len(_SPECIAL_TOKENS)
    tokens = [*normal, *(f"<filler{number}>" for number in range(filler_count)), *_TOOL_TOKENS, *_SPECIAL_TOKENS]
    kinds = [gguf.TokenType.NORMAL] * len(normal) + [gguf.TokenType.UNUSED] * filler_count
    kinds += [gguf.TokenType.USER_DEFINED] * len(_TOOL_TOKENS)
    first_special = len(tokens) - len(_SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds + [gguf.TokenType.CONTROL] * len(_SPECIAL_TOKENS))
    writer.add_token_merges(["Ġ t", "h e", "i n"])
    writer.add_bos_token_id(first_special)
    writer.add_eos_token_id(first_special + 2)
    writer.add_mask_token_id(first_special + 3)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)  # noqa: FBT003 - the package's signature
    writer.add_chat_template(shape.chat_template)


def _tensors(shape: TinyShape) -> Iterator[tuple[str, Any, Any]]:
    """Names, values and storage types. A numpy shape is the reverse of ggml's.

    The model is random but for one direction: the first element of the residual stream is large for every token, and
    the output rows of printable ASCII agree with it while all others oppose it. So what it says is text (a server in
    debug mode answers 500 to bytes that are no UTF-8), and it goes on until it has said as much as was asked for.
    """
    import gguf
    import numpy as np

    chance = np.random.default_rng(shape.seed)
    stored = gguf.GGMLQuantizationType[shape.quantisation]

    def matrix(name: str, *dims: int) -> tuple[str, Any, Any]:
        value = chance.standard_normal(dims, dtype=np.float32) * np.float32(dims[-1] ** -0.5)
        return name, gguf.quants.quantize(value, stored), stored

    def vector(name: str, *dims: int, value: float = 1.0) -> tuple[str, Any, Any]:
        return name, np.full(dims, value, dtype=np.float32), gguf.GGMLQuantizationType.F32

    width = shape.width
    yield vector("output_norm.weight", width)
    if shape.kind == "dflash2":
        # Embeddings and the head are the target's: the loader shares them where the drafter has none.
        yield matrix("fc.weight", width, width * len(shape.target_layers))
        yield vector("enc.output_norm.weight", width)
        yield matrix("selector_predecessor.weight", shape.vocab, shape.selector_rank)
        yield matrix("selector_successor.weight", shape.vocab, shape.selector_rank)
        yield matrix("selector_hidden.weight", shape.selector_rank, width)
    else:
        steered = np.full((shape.vocab, 1), -_STEER, dtype=np.float32)
        steered[0x20:0x7F] = _STEER
        named: list[tuple[str, Any]] = [("token_embd.weight", np.float32(_STEER)), ("output.weight", steered)]
        for name, first in named[:1] if shape.kind == "sliding" else named:
            rows = chance.standard_normal((shape.vocab, width), dtype=np.float32) * np.float32(width**-0.5)
            rows[:, :1] = first
            yield name, gguf.quants.quantize(rows, stored), stored
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        yield vector(f"{at}attn_norm.weight", width)
        if shape.kind == "hybrid" and (layer + 1) % shape.attention_interval:
            yield from _recurrent(shape, at, matrix, vector)
        else:
            yield from _attention(shape, at, matrix, vector)
        yield from _feed_forward(shape, at, matrix, vector)


def _attention(shape: TinyShape, at: str, matrix: Any, vector: Any) -> Iterator[tuple[str, Any, Any]]:
    width, keys = shape.width, shape.head_size * shape.kv_heads
    queries = shape.head_size * shape.heads
    # qwen35 computes the query and its gate in one product.
    yield matrix(f"{at}attn_q.weight", queries * (2 if shape.kind == "hybrid" else 1), width)
    yield matrix(f"{at}attn_k.weight", keys, width)
    yield matrix(f"{at}attn_v.weight", keys, width)
    yield matrix(f"{at}attn_output.weight", width, queries)
    if shape.kind != "dense":
        yield vector(f"{at}attn_q_norm.weight", shape.head_size)
        yield vector(f"{at}attn_k_norm.weight", shape.head_size)


def _recurrent(shape: TinyShape, at: str, matrix: Any, vector: Any) -> Iterator[tuple[str, Any, Any]]:
    width, values = shape.width, shape.state_size * shape.state_heads
    mixed = values * 2  # two key heads for four value heads: keys and queries together are as wide as the values
    yield matrix(f"{at}attn_qkv.weight", mixed, width)
    yield matrix(f"{at}attn_gate.weight", values, width)
    # The convolution and the small per-head projections are F32 in published files too.
    yield vector(f"{at}ssm_conv1d.weight", mixed, 4, value=0.25)
    yield vector(f"{at}ssm_dt.bias", shape.state_heads, value=0.1)
    yield vector(f"{at}ssm_a", shape.state_heads, value=-0.5)
    yield matrix(f"{at}ssm_beta.weight", shape.state_heads, width)
    yield matrix(f"{at}ssm_alpha.weight", shape.state_heads, width)
    yield vector(f"{at}ssm_norm.weight", shape.state_size)
    yield matrix(f"{at}ssm_out.weight", width, values)


def _feed_forward(shape: TinyShape, at: str, matrix: Any, vector: Any) -> Iterator[tuple[str, Any, Any]]:
    width, inner = shape.width, shape.feed_forward
    yield vector(f"{at}{'post_attention_norm' if shape.kind == 'hybrid' else 'ffn_norm'}.weight", width)
    if shape.kind == "sliding":
        yield vector(f"{at}post_attention_norm.weight", width)
        yield vector(f"{at}post_ffw_norm.weight", width)
    if shape.kind == "moe":
        yield vector(f"{at}ffn_gate_inp.weight", shape.experts, width, value=0.01)
        yield matrix(f"{at}ffn_gate_exps.weight", shape.experts, inner, width)
        yield matrix(f"{at}ffn_down_exps.weight", shape.experts, width, inner)
        yield matrix(f"{at}ffn_up_exps.weight", shape.experts, inner, width)
    else:
        yield matrix(f"{at}ffn_gate.weight", inner, width)
        yield matrix(f"{at}ffn_down.weight", width, inner)
        yield matrix(f"{at}ffn_up.weight", inner, width)
    if shape.kind == "dflash2":
        taps = 2 * shape.conv_kernel * (width // 16)
        for part in ("attn", "ffn"):
            yield vector(f"{at}{part}_conv_base", 2, shape.conv_kernel, width, value=0.2)
            yield matrix(f"{at}{part}_conv_proj.weight", taps, width)
