"""The rules of ``serve-check`` about flags, context and caches."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from llamabuild.runtime.ggml_types import BY_NAME
from llamabuild.runtime.serve_case import Case, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    Seen = Iterator[tuple[str, str, str]]

_SWITCHES = {"on", "off", "auto", "true", "false", "1", "0", "enabled", "disabled", "yes", "no"}
"""``common/arg.cpp`` takes all of these where the help says on, off or auto."""
OFF = {"off", "0", "false", "disabled"}
_UNQUANTISED = {"f32", "f16", "bf16"}


def _unknown_flags(case: Case) -> Seen:
    for one in case.line.given:
        if one.flag is not None:
            continue
        name, equals, value = one.word.partition("=")
        if equals and case.flags.find(name):
            yield f"{one.word} is not a flag: values follow a space.", one.word, f"Write {name} {value}."
            continue
        near = difflib.get_close_matches(name, case.flags.by_name, n=1, cutoff=0.5)
        yield (
            f"This build has no {one.word}.",
            " ".join((one.word, *one.values)),
            f"The nearest is {near[0]}." if near else "llama-server --help lists them.",
        )
    for word in case.line.stray:
        yield f"{word} belongs to no flag.", word, "Check the quotes and the flag before it."


def _bad_values(case: Case) -> Seen:
    for one in case.line.given:
        if one.missing:
            yield f"{one.word} is given without its value.", one.word, "Give one."
        elif one.flag and one.flag.choices and one.values:
            wrong = [word for word in one.values[0].split(",") if not _is_choice(word, one.flag.choices)]
            if wrong:
                listed = ", ".join(one.flag.choices)
                yield f"{one.word} does not take {wrong[0]!r}.", f"{one.word} {one.values[0]}", f"It takes {listed}."


def _is_choice(word: str, choices: tuple[str, ...]) -> bool:
    return word in choices or ({"on", "off"} <= set(choices) and word in _SWITCHES)


def _removed_flags(case: Case) -> Seen:
    for one in case.line.given:
        if one.flag and one.flag.removed:
            yield f"{one.word} no longer does anything: {one.flag.removed}.", one.word, "Use what the help names."


def _repeated_flags(case: Case) -> Seen:
    lists = {"--override-tensor", "--override-kv", "--lora", "--spec-draft-override-tensor", "--control-vector"}
    seen: dict[str, str] = {}
    for one in case.line.given:
        if one.flag is None or not one.values or lists & set(one.flag.names):
            continue
        before = seen.get(one.flag.canonical)
        if before is not None and before != one.values[0]:
            yield f"{one.word} is given twice; the last counts.", f"{before}, then {one.values[0]}", "Keep one."
        seen[one.flag.canonical] = one.values[0]


def _models(case: Case) -> Seen:
    for flag, why in case.problems:
        yield f"{flag}: {why}", flag, "Check the path."
    for flag, model in (("--model", case.model), ("--spec-draft-model", case.draft)):
        if model and not model.complete:
            yield f"{flag}: {model.file} is cut short.", model.file, "Fetch it again."


def _divided_context(case: Case) -> Seen:
    parallel = case.line.number("--parallel", 1)
    if parallel < 2 or not case.context or case.line.has("--kv-unified"):
        return
    each = -(-case.context // parallel // 256) * 256
    yield (
        f"--parallel {parallel} divides the context: each slot has {each} positions of {case.context}.",
        f"--ctx-size {case.context} --parallel {parallel}",
        f"For {case.context} positions in each slot give --ctx-size {case.context * parallel}, or --kv-unified.",
    )


def _trained_context(case: Case) -> Seen:
    if case.model and case.model.context and not case.line.has("--rope-scaling"):
        parallel = 1 if case.line.has("--kv-unified") else max(1, case.line.number("--parallel", 1))
        each = case.line.number("--ctx-size") // parallel
        if each > case.model.context:
            yield (
                f"A slot of {each} positions is capped at the {case.model.context} that the model was trained for.",
                f"--ctx-size {case.line.number('--ctx-size')}",
                "Lower --ctx-size: the rest of the cache is never used.",
            )


def _fit(case: Case) -> Seen:
    if case.line.value("--fit") in OFF or case.flags.find("--fit") is None:
        return
    if not case.line.has("--ctx-size") or case.line.number("--ctx-size") == 0:
        yield (
            "--fit is on and no context is given: the server lowers it to what fits, without an error.",
            "",
            "Give --ctx-size, or --fit off to fail instead.",
        )
    elif case.line.has("--tensor-split") or case.line.has("--n-gpu-layers"):
        yield (
            "--fit is on beside an explicit split: what is set stays, and fitting gives up where it does not fit.",
            "",
            "Give --fit off with an explicit context and split, so that what runs is what is written.",
        )


def _cache_types(case: Case) -> Seen:
    if case.line.value("--flash-attn") not in OFF:
        return
    kind = (case.line.value("--cache-type-v") or "f16").lower()
    if kind not in _UNQUANTISED:
        yield (
            f"--cache-type-v {kind} needs flash attention, which is off: the context is not created.",
            f"--flash-attn {case.line.value('--flash-attn')} --cache-type-v {kind}",
            "Give --flash-attn on, or an f16 cache for values.",
        )


def _cache_blocks(case: Case) -> Seen:
    model = case.model
    if model is None:
        return
    kinds = {"k": (model.key_length, "keys"), "v": (model.value_length, "values")}
    given = {letter: (case.line.value(f"--cache-type-{letter}") or "f16").lower() for letter in kinds}
    if model.latent_attention and given["k"] != given["v"]:
        yield (
            f"{model.architecture} keeps one latent vector, and the cache types of keys and values differ.",
            f"--cache-type-k {given['k']} --cache-type-v {given['v']}",
            "Give both the same.",
        )
    if case.line.value("--flash-attn") in OFF:
        return
    for letter, (size, what) in kinds.items():
        kind = BY_NAME.get(given[letter])
        if kind and size % kind.block_size:
            yield (
                (
                    f"--cache-type-{letter} {given[letter]} has blocks of {kind.block_size}, which do not divide the "
                    f"{size} elements of the model's {what}."
                ),
                f"{model.architecture}: {what} {size}",
                "Use f16 for it.",
            )


RULES = (
    Rule("flag.unknown", "error", "the bundle's own --help", "the program takes the flag", _unknown_flags),
    Rule("flag.value", "error", "the bundle's own --help", "the program takes the value", _bad_values),
    Rule("flag.removed", "error", "the bundle's own --help", "the flag changes what the program does", _removed_flags),
    Rule("flag.repeated", "note", "common/arg.cpp: a later value overwrites", "the first value is used",
         _repeated_flags),
    Rule("model.unreadable", "error", "the file's header", "the server loads it", _models),
    Rule("context.divided", "note", "src/llama-context.cpp: n_ctx_seq = n_ctx / n_seq_max",
         "/slots shows the whole context in each slot", _divided_context),
    Rule("context.capped", "warning", "tools/server/server-context.cpp: n_ctx_slot",
         "/slots shows more than the trained context", _trained_context),
    Rule("context.fit", "warning", "common/fit.cpp: unset arguments are adjusted",
         "a server started so keeps the model's context where it does not fit", _fit),
    Rule("cache.flash-attention", "error", "src/llama-context.cpp: quantized V cache requires flash_attn",
         "the server starts with these flags", _cache_types),
    Rule("cache.block", "error", "src/llama-context.cpp: block size does not divide n_embd_head; one type for MLA",
         "the server starts with these flags", _cache_blocks),
)  # fmt: skip
"""Rules that need no device and no drafter."""
