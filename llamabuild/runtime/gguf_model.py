"""What a header says about a model: what has to be known to serve it, most important first."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from llamabuild.runtime.gguf_cursor import Array, GgufError
from llamabuild.runtime.gguf_header import GgufFile, Tensor, read_gguf
from llamabuild.runtime.gguf_source import short_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAYER = re.compile(r"^blk\.(\d+)\.(.+)$")
_MOST_LAYERS = 4096
_INPUT_TENSORS = ("token_embd.", "per_layer_token_embd.", "position_embd.", "token_types.", "token_embd_norm.")
"""Looked up by row and therefore kept on the CPU (``src/llama-arch.cpp``, LLM_TENSOR_LAYER_INPUT; the layer that
``src/llama-model.cpp`` never offloads)."""
_RECURRENT = re.compile(r"^(ssm_|time_mix_|shortconv\.)")
_SLIDING_PATTERN = {
    "afmoe": 4, "cohere2": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2,
    "mellum": 4, "muse-glimmer": 4, "olmo2": 4, "plamo3": 8,
}  # fmt: skip
"""Where the header only declares a window, the architecture says which layers slide: all but every so-manieth
(``load_swa_pattern`` in ``src/models/``)."""
_FULL_FIRST_PATTERN = {"cohere2moe": 4, "laguna": 4, "smallthinker": 4}
"""The same with the full layer at the front."""
_ATTENTION_INTERVAL = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4}


@dataclass(frozen=True)
class Layer:
    """One repeating layer. Sizes in bytes."""

    number: int
    bytes: int
    expert_bytes: int
    """Of ``bytes``, what its experts take: a whole layer carries them."""
    heads: int
    kv_heads: int
    """0 where the layer keeps no keys and values."""
    recurrent: bool
    """Whether it keeps a state of fixed size."""
    sliding: bool
    """Whether its keys and values are kept for the sliding window alone."""


@dataclass(frozen=True)
class Model:
    """A model file's header, summed up. Absent keys are 0, empty or None."""

    file: str
    architecture: str
    name: str
    layers: tuple[Layer, ...]
    """Those that run in the main pass and, after them, ``nextn_layers`` that predict ahead."""
    nextn_layers: int
    width: int
    feed_forward: int
    heads: int
    head_count_kv: int | tuple[int, ...]
    key_length: int
    value_length: int
    latent_attention: bool
    """MLA: one latent vector a position instead of keys and values."""
    sliding_window: int
    context: int
    """The context it was trained with, in positions."""
    vocab: int
    experts: int
    experts_used: int
    expert_feed_forward: int
    block_size: int
    """Of a block drafter: it drafts one token less."""
    selector_top_k: int
    """Above 0 in a DFlash2 drafter."""
    target_layers: tuple[int, ...]
    conv_state: int
    """Elements of a recurrent layer's convolution state, a sequence."""
    recurrent_state: int
    """Elements of a recurrent layer's state, a sequence."""
    quantisation: dict[str, int]
    """Bytes by storage type, the largest first."""
    layer_bytes: int
    input_bytes: int
    """Embeddings that are looked up by row: they stay on the CPU."""
    output_bytes: int
    """Everything else that does not repeat; a tied embedding counts here too, because the loader duplicates it."""
    tied_bytes: int
    """Of ``output_bytes``, the embedding that serves as output too: on the CPU it is not duplicated."""
    bytes: int
    """All tensors as the file has them."""
    version: int
    big_endian: bool
    files: int
    complete: bool
    """Whether the file is as long as its tensors need."""
    chat_template: str | None

    @property
    def main_layers(self) -> tuple[Layer, ...]:
        """The layers of the main pass."""
        return self.layers[: len(self.layers) - self.nextn_layers]

    @property
    def attention_layers(self) -> tuple[Layer, ...]:
        """The layers that keep keys and values."""
        return tuple(layer for layer in self.main_layers if layer.kv_heads)

    @property
    def is_drafter(self) -> bool:
        """Whether it only makes sense beside a target."""
        return self.architecture in {"dflash", "eagle3"}

    def to_json(self) -> dict[str, Any]:
        """The document of ``gguf --json``, without the chat template's text."""
        document = asdict(self)
        document["layer_count"] = len(self.layers)
        document["chat_template"] = self.chat_template is not None
        return document


def load_model(name: str) -> Model:
    """Read and sum up the model at a path or address. Raises GgufError, UsageError."""
    return summarise(read_gguf(name))


def summarise(files: Sequence[GgufFile]) -> Model:
    """Sum up one file, or all parts of a split one. Raises GgufError when the keys contradict each other."""
    first = files[0]
    keys = _Keys(first)
    tensors = [tensor for part in files for tensor in part.tensors]
    count = keys.integer("block_count")
    if count > _MOST_LAYERS:
        raise GgufError(
            f"{short_name(first.name)}: block_count is {count}; no model has more than {_MOST_LAYERS} layers.",
            hint="The file is damaged or no model; get it again.",
        )
    nextn = min(keys.integer("nextn_predict_layers"), count)
    heads = keys.per_layer("attention.head_count", count)
    names = {tensor.name for tensor in tensors}
    width = keys.integer("embedding_length")
    most_heads = max(heads, default=0)
    key_length = keys.integer("attention.key_length") or (width // most_heads if most_heads else 0)
    state, inner, groups = (keys.integer(f"ssm.{name}") for name in ("state_size", "inner_size", "group_count"))
    kernel = keys.integer("ssm.conv_kernel")
    shortconv = keys.integer("shortconv.l_cache")
    by_type: Counter[str] = Counter()
    for tensor in tensors:
        by_type[tensor.type] += tensor.size
    fixed = [tensor for tensor in tensors if not _LAYER.match(tensor.name)]
    inputs = sum(tensor.size for tensor in fixed if tensor.name.startswith(_INPUT_TENSORS))
    tied = 0 if "output.weight" in names or keys.architecture == "dflash" else _size_named(fixed, "token_embd.weight")
    kv = first.keys.get(f"{keys.architecture}.attention.head_count_kv")
    return Model(
        file=first.name,
        architecture=keys.architecture,
        name=keys.text("general.name"),
        layers=_layers(keys, tensors, count, heads),
        nextn_layers=nextn,
        width=width,
        feed_forward=max(keys.per_layer("feed_forward_length", count), default=0),
        heads=most_heads,
        head_count_kv=tuple(kv.values or ()) if isinstance(kv, Array) else keys.integer("attention.head_count_kv"),
        key_length=key_length,
        value_length=keys.integer("attention.value_length") or key_length,
        latent_attention=bool(keys.integer("attention.key_length_mla")),
        sliding_window=keys.integer("attention.sliding_window"),
        context=keys.integer("context_length"),
        vocab=keys.vocab(tensors),
        experts=keys.integer("expert_count"),
        experts_used=max(keys.per_layer("expert_used_count", count), default=0),
        expert_feed_forward=max(keys.per_layer("expert_feed_forward_length", count), default=0),
        block_size=keys.integer("block_size"),
        selector_top_k=keys.integer("selector_top_k"),
        target_layers=keys.integers("target_layers"),
        # ``src/llama-hparams.cpp``: n_embd_r and n_embd_s.
        conv_state=width * (shortconv - 1) if shortconv else max(0, kernel - 1) * (inner + 2 * groups * state),
        recurrent_state=0 if shortconv else state * inner,
        quantisation=dict(by_type.most_common()),
        layer_bytes=sum(tensor.size for tensor in tensors if _LAYER.match(tensor.name)),
        input_bytes=inputs,
        output_bytes=sum(tensor.size for tensor in fixed) - inputs + tied,
        tied_bytes=tied,
        bytes=sum(tensor.size for tensor in tensors),
        version=first.version,
        big_endian=first.big_endian,
        files=len(files),
        complete=not any(part.missing for part in files),
        chat_template=keys.text("tokenizer.chat_template") or None,
    )


def _layers(keys: _Keys, tensors: Sequence[Tensor], count: int, heads: tuple[int, ...]) -> tuple[Layer, ...]:
    parts: list[dict[str, int]] = [{} for _ in range(count)]
    for tensor in tensors:
        found = _LAYER.match(tensor.name)
        if found and int(found[1]) < count:
            parts[int(found[1])][found[2]] = tensor.size
    kv_heads = keys.per_layer("attention.head_count_kv", count, default=heads)
    sliding = keys.sliding(count)
    shared = keys.integer("attention.shared_kv_layers")
    interval = keys.integer("full_attention_interval") or _ATTENTION_INTERVAL.get(keys.architecture, 0)
    layers = []
    for number, sizes in enumerate(parts):
        recurrent = any(_RECURRENT.match(name) for name in sizes)
        if not sizes and interval:
            recurrent = bool((number + 1) % interval)
        # A fused attn_qkv beside ssm_* is the recurrent layer's own projection, not attention's.
        attends = any(name.startswith(("attn_k.", "attn_kv_a_mqa.", "attn_k_b.")) for name in sizes) or (
            not recurrent and (not sizes or any(name.startswith("attn_qkv.") for name in sizes))
        )
        layers.append(
            Layer(
                number=number,
                bytes=sum(sizes.values()),
                expert_bytes=sum(size for name, size in sizes.items() if "_exps." in name),
                heads=heads[number],
                # The last of these reuse the keys and values of earlier ones (gemma3n, gemma4).
                kv_heads=kv_heads[number] if attends and number < count - shared else 0,
                recurrent=recurrent,
                sliding=sliding[number],
            )
        )
    return tuple(layers)


def _size_named(tensors: Sequence[Tensor], name: str) -> int:
    return next((tensor.size for tensor in tensors if tensor.name == name), 0)


class _Keys:
    """A header's keys by what they mean; a key of the wrong type is an error that names it."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.architecture = self.text("general.architecture")

    def _error(self, key: str, value: object, wanted: str) -> GgufError:
        return GgufError(
            f"{short_name(self._file.name)}: {key} is {str(value)[:60]!r} and not {wanted}.",
            hint="The file is damaged or from a converter that does not fit; get it again.",
        )

    def text(self, key: str) -> str:
        value = self._file.keys.get(key, "")
        if not isinstance(value, str):
            raise self._error(key, value, "a string")
        return value

    def integer(self, key: str) -> int:
        """0 for an absent key; the largest of an array that has a value a layer."""
        return max(self.integers(key), default=0)

    def integers(self, key: str) -> tuple[int, ...]:
        key = f"{self.architecture}.{key}"
        value = self._file.keys.get(key)
        if isinstance(value, Array):
            if value.values is None or any(not isinstance(item, int) for item in value.values):
                raise self._error(key, value, "numbers")
            found: tuple[int, ...] = value.values
        elif value is None:
            return ()
        elif isinstance(value, int):
            found = (value,)
        else:
            raise self._error(key, value, "a number")
        if any(item < 0 or item >= 1 << 48 for item in found):
            raise self._error(key, value, "a size")
        return found

    def per_layer(self, key: str, count: int, *, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """A value a layer: a scalar counts for all."""
        found = self.integers(key)
        if not found:
            return default or (0,) * count
        if len(found) == 1 and not isinstance(self._file.keys.get(f"{self.architecture}.{key}"), Array):
            return found * count
        if len(found) < count:
            raise self._error(f"{self.architecture}.{key}", found, f"a value for each of {count} layers")
        return found[:count]

    def sliding(self, count: int) -> tuple[bool, ...]:
        """Which layers slide: the pattern is a flag a layer, or every so-manieth layer is full."""
        if not self.integer("attention.sliding_window"):
            return (False,) * count
        key = f"{self.architecture}.attention.sliding_window_pattern"
        pattern = self._file.keys.get(key)
        if isinstance(pattern, Array):
            flags = tuple(bool(item) for item in pattern.values or ())
            return (flags + (False,) * count)[:count]
        first = _FULL_FIRST_PATTERN.get(self.architecture)
        every = pattern if isinstance(pattern, int) else _SLIDING_PATTERN.get(self.architecture, 0) or first or 1
        if every < 1:
            return (True,) * count
        return tuple((number % every != 0) if first else (number + 1) % every != 0 for number in range(count))

    def vocab(self, tensors: Sequence[Tensor]) -> int:
        tokens = self._file.keys.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Array):
            return tokens.count
        shapes = {tensor.name: tensor.shape for tensor in tensors}
        shape = shapes.get("token_embd.weight", ())
        return shape[1] if len(shape) > 1 else self.integer("vocab_size")
