"""A model's header as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamabuild.runtime.gguf_header import GgufFile
    from llamabuild.runtime.gguf_model import Model


def format_bytes(count: float) -> str:
    """``1.25 GiB``; three significant figures are enough to size by."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def describe(model: Model) -> str:
    """Several lines, most important first; what a model does not have is left out."""
    rows: list[tuple[str, str]] = [
        ("architecture", model.architecture + (f" ({model.name})" if model.name else "")),
        ("layers", _layer_line(model)),
        ("width", f"{model.width}, feed-forward {model.feed_forward}"),
        ("heads", f"{model.heads}, of keys and values {_heads(model)}"),
        ("head size", f"keys {model.key_length}, values {model.value_length}"),
        ("context", f"{model.context}" + (f", sliding window {model.sliding_window}" if model.sliding_window else "")),
        ("vocabulary", f"{model.vocab}"),
    ]
    if model.experts:
        rows.append(("experts", f"{model.experts}, {model.experts_used} used, {model.expert_feed_forward} wide"))
    if model.block_size:
        kind = "DFlash2" if model.selector_top_k else "block drafter"
        rows.append(("drafter", f"{kind}, block size {model.block_size}: at most {model.block_size - 1} a draft"))
    if model.target_layers:
        rows.append(("target layers", ", ".join(map(str, model.target_layers))))
    rows += [
        ("weights", f"{format_bytes(model.bytes)} in {model.files} file(s), version {model.version}"
                    + (", big-endian" if model.big_endian else "")),
        ("quantisation", ", ".join(f"{kind} {format_bytes(size)}" for kind, size in model.quantisation.items())),
        ("in layers", format_bytes(model.layer_bytes) + _layer_range(model)),
        ("beside them", f"input {format_bytes(model.input_bytes)}, output {format_bytes(model.output_bytes)}"),
        ("chat template", "yes" if model.chat_template else "no"),
    ]  # fmt: skip
    return "\n".join(f"{name:<14} {text}" for name, text in rows)


def list_tensors(files: Sequence[GgufFile]) -> str:
    """A line a tensor: name, type, shape, bytes."""
    return "\n".join(
        f"{tensor.name:<40} {tensor.type:<8} {'x'.join(map(str, tensor.shape)):<24} {tensor.size}"
        for part in files
        for tensor in part.tensors
    )


def tensors_json(files: Sequence[GgufFile]) -> list[dict[str, Any]]:
    """The tensors for ``--json``."""
    return [
        {"name": tensor.name, "type": tensor.type, "shape": list(tensor.shape), "bytes": tensor.size}
        for part in files
        for tensor in part.tensors
    ]


def _layer_line(model: Model) -> str:
    recurrent = sum(layer.recurrent for layer in model.main_layers)
    text = f"{len(model.main_layers)}"
    if recurrent:
        text += f": {len(model.attention_layers)} with keys and values, {recurrent} recurrent"
    sliding = sum(layer.sliding for layer in model.main_layers)
    if sliding:
        text += f"; {sliding} slide"
    return text + (f"; and {model.nextn_layers} that predict ahead" if model.nextn_layers else "")


def _heads(model: Model) -> str:
    if isinstance(model.head_count_kv, int):
        return str(model.head_count_kv)
    return "by layer " + ",".join(map(str, model.head_count_kv))


def _layer_range(model: Model) -> str:
    sizes = [layer.bytes for layer in model.layers]
    if not sizes:
        return ""
    if min(sizes) == max(sizes):
        return f" ({format_bytes(sizes[0])} each)"
    return f" ({format_bytes(min(sizes))} to {format_bytes(max(sizes))} each)"
