"""The questions that a running server is asked, one function each.

Each check returns what it saw, or raises: `CheckFailed` with the reason, `CheckSkipped` where the question does not
arise. Nothing here starts or ends the server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llamabuild.runtime.server import ask_at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from llamabuild.runtime.server import Answer, RunningServer

EFFORTS = ("low", "medium", "high", "xhigh")
"""``reasoning_effort`` levels that clients send; some model families' templates raise on one of them."""

_SENTENCE = "The quick brown fox jumps over the lazy dog. "
_TOOL = {
    "type": "function",
    "function": {
        "name": "set_unit",
        "description": "Set the unit of temperature that the answer uses.",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["unit"],
        },
    },
}
_SPARE_TOKENS = 32
"""Left free below the window by the long prompt: its answer has to fit."""


class CheckFailed(Exception):  # noqa: N818 - it is an outcome, named as one
    """The server answered, and not as it must."""


class CheckSkipped(Exception):  # noqa: N818
    """The question does not arise for this model or these flags."""


@dataclass
class Exam:
    """What the checks share: the server, what it was started with, and what was learned on the way."""

    server: RunningServer
    slots: int
    """How many were asked for."""
    slot_context: int
    """Positions each slot must have."""
    drafted: bool
    """Whether a drafter, or drafting from the model's own layers, was asked for."""
    tiny: bool
    """A random model knows no tools by itself: its tool call is nudged into being."""
    deep: int | None = None
    """Tokens of the long prompt; the whole window when None."""
    timeout: float = 600.0
    """Of one request, in seconds."""
    efforts: dict[str, str] = field(default_factory=dict)
    """By level: ``accepted``, or the status and the server's message."""
    drafts: list[tuple[int, int]] = field(default_factory=list)
    """Drafted and accepted tokens of each answer that told them."""

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """POST and note the draft statistics."""
        answer = self.server.post(path, body, timeout=self.timeout)
        timings = answer.body.get("timings") if isinstance(answer.body, dict) else None
        if isinstance(timings, dict) and "draft_n" in timings:
            self.drafts.append((int(timings["draft_n"]), int(timings.get("draft_n_accepted", 0))))
        return answer


def check_health(exam: Exam) -> str:
    """``/health`` says ok."""
    answer = _good(exam.server.get("/health"), "/health")
    _demand(answer.body == {"status": "ok"}, f"/health says {answer.text[:80]}")
    return f"loaded in {exam.server.load_seconds:.1f} s"


def check_models(exam: Exam) -> str:
    """``/v1/models`` names the model."""
    answer = _good(exam.server.get("/v1/models"), "/v1/models")
    models = answer.body.get("data") or []
    _demand(bool(models), "/v1/models names no model")
    meta = models[0].get("meta") or {}
    return f"{models[0].get('id')}: {meta.get('n_params', '?')} parameters, trained for {meta.get('n_ctx_train', '?')}"


def check_slots(exam: Exam) -> str:
    """``/slots`` shows the slots that were asked for, each with its share of the context."""
    answer = _good(exam.server.get("/slots"), "/slots")
    contexts = [slot.get("n_ctx") for slot in answer.body]
    ids = [slot.get("id") for slot in answer.body]
    _demand(ids == list(range(exam.slots)), f"/slots shows ids {ids}, wanted {exam.slots} slots")
    _demand(
        all(context == exam.slot_context for context in contexts),
        f"/slots shows n_ctx {contexts}, wanted {exam.slot_context} each",
    )
    return f"{exam.slots} slots of {exam.slot_context} positions"


def check_completion(exam: Exam) -> str:
    """A plain completion comes with tokens and timings."""
    answer = _good(exam.post("/completion", {"prompt": _SENTENCE, "n_predict": 16, "temperature": 0}), "/completion")
    count = answer.body.get("tokens_predicted", 0)
    _demand(count > 0, "/completion predicted no token")
    return f"{count} tokens, {answer.body['timings']['predicted_per_second']:.0f} tokens/s"


def check_chat(exam: Exam) -> str:
    """A chat completion comes through the model's template."""
    answer = _good(exam.post("/v1/chat/completions", _chat("Say hello.", 16)), "/v1/chat/completions")
    reason = answer.body["choices"][0].get("finish_reason")
    _demand(reason in {"stop", "length"}, f"the chat answer finished by {reason}")
    return f"finished by {reason}, {answer.body['usage']['completion_tokens']} tokens"


def check_tool_call(exam: Exam) -> str:
    """A chat completion that must call a tool calls it with arguments that parse."""
    import json

    if not _capabilities(exam).get("supports_tools"):
        raise CheckSkipped("the template has no tools")
    body = _chat("Use fahrenheit from now on.", 256) | {"tools": [_TOOL], "tool_choice": "required"}
    if exam.tiny:
        opening = _good(
            exam.server.post("/tokenize", {"content": "<tool_call>", "parse_special": True}), "/tokenize"
        ).body["tokens"]
        body["logit_bias"] = [[opening[0], 200.0]]
    message = _good(exam.post("/v1/chat/completions", body), "a chat with tools").body["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    _demand(bool(calls), f"no tool was called; the answer begins {str(message.get('content'))[:60]!r}")
    arguments = json.loads(calls[0]["function"]["arguments"])
    _demand(
        calls[0]["function"]["name"] == "set_unit" and arguments.get("unit") in {"celsius", "fahrenheit"},
        f"the call is {calls[0]['function']}",
    )
    return f"set_unit({arguments['unit']})"


def check_reasoning_efforts(exam: Exam) -> str:
    """Every level of ``reasoning_effort`` is asked once.

    A template that raises on one of them is the model's doing and not the bundle's: it becomes a warning.
    """
    for level in EFFORTS:
        answer = exam.post("/v1/chat/completions", _chat("Say hello.", 4) | {"reasoning_effort": level})
        exam.efforts[level] = "accepted" if answer.ok else f"{answer.status}: {_reason(answer)}"
    refused = [level for level, result in exam.efforts.items() if result != "accepted"]
    _demand(len(refused) < len(EFFORTS), f"reasoning_effort is refused at every level: {exam.efforts[EFFORTS[0]]}")
    accepted = ", ".join(level for level in EFFORTS if level not in refused)
    return f"{accepted} accepted" + (f"; {', '.join(refused)} REFUSED" if refused else "")


def check_prefix_cache(exam: Exam) -> str:
    """The same prompt again is mostly taken from the cache: ``timings.prompt_n`` collapses."""
    # Long enough to tell, short enough to fit a small window.
    prompt = _tokens(exam, max(16, min(384, exam.slot_context // 2)))
    body = {"prompt": prompt, "n_predict": 2, "temperature": 0, "id_slot": 0, "cache_prompt": True}
    first, second = (_good(exam.post("/completion", body), "/completion").body["timings"] for _ in range(2))
    before, after = first["prompt_n"], second["prompt_n"]
    _demand(after * 2 <= max(before, len(prompt)), f"the same prompt took {before} tokens and then {after}")
    return f"{before} tokens, then {after}"


def check_two_at_once(exam: Exam) -> str:
    """Two requests at once run on two slots."""
    if exam.slots < 2:
        raise CheckSkipped("there is one slot")

    def ask(number: int) -> Answer:
        return exam.server.post(
            "/completion",
            {"prompt": f"{number}: {_SENTENCE}", "n_predict": 48, "ignore_eos": True},
            timeout=exam.timeout,
        )

    used = {_good(answer, "one of two requests").body.get("id_slot") for answer in ask_at_once(ask, 2)}
    _demand(len(used) == 2, f"both requests ran on slot {used}")
    return f"slots {' and '.join(map(str, sorted(used)))}"


def check_long_prompt(exam: Exam) -> str:
    """A prompt near the window is taken: the window is real."""
    size = min(exam.deep or exam.slot_context, exam.slot_context) - _SPARE_TOKENS
    _demand(size > 0, f"a window of {exam.slot_context} holds no prompt")
    body = {"prompt": _tokens(exam, size), "n_predict": 8, "ignore_eos": True, "id_slot": 0, "cache_prompt": False}
    answer = _good(exam.post("/completion", body), f"a prompt of {size} tokens")
    _demand(answer.body["tokens_evaluated"] >= size, f"only {answer.body['tokens_evaluated']} tokens were evaluated")
    _demand(not answer.body.get("truncated"), "the prompt was truncated")
    return f"{size} of {exam.slot_context} tokens, {answer.body['timings']['prompt_per_second']:.0f} tokens/s"


def check_metrics(exam: Exam) -> str:
    """``/metrics`` counted what was asked so far."""
    answer = _good(exam.server.get("/metrics"), "/metrics")
    counted = metric(answer.text, "llamacpp:tokens_predicted_total")
    _demand(counted > 0, f"/metrics counts {counted:.0f} predicted tokens after all these requests")
    return f"{counted:.0f} predicted tokens counted"


def check_drafts(exam: Exam) -> str:
    """With a drafter, tokens are really drafted."""
    if not exam.drafted:
        raise CheckSkipped("no drafter was given")
    drafted = sum(count for count, _ in exam.drafts)
    accepted = sum(count for _, count in exam.drafts)
    _demand(drafted > 0, "a drafter was given, and no token was drafted")
    return f"{drafted} tokens drafted, {accepted} accepted ({100 * accepted / drafted:.0f} %)"


BATTERY: tuple[tuple[str, Callable[[Exam], str]], ...] = (
    ("health", check_health),
    ("models", check_models),
    ("slots", check_slots),
    ("completion", check_completion),
    ("chat", check_chat),
    ("tool-call", check_tool_call),
    ("reasoning-effort", check_reasoning_efforts),
    ("prefix-cache", check_prefix_cache),
    ("two-at-once", check_two_at_once),
    ("long-prompt", check_long_prompt),
    ("metrics", check_metrics),
    ("drafts", check_drafts),
)
"""In this order: ``completion`` is the first request, after which memory is sampled."""


def metric(text: str, name: str) -> float:
    """A value of Prometheus' text format; 0 when it is not there."""
    for line in text.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def _chat(text: str, tokens: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}


def _tokens(exam: Exam, count: int) -> list[int]:
    """A prompt of exactly ``count`` tokens."""
    once = _good(exam.server.post("/tokenize", {"content": _SENTENCE}), "/tokenize").body["tokens"]
    _demand(bool(once), "/tokenize gives no tokens")
    return [int(token) for token in (once * (count // len(once) + 1))[:count]]


def _capabilities(exam: Exam) -> dict[str, Any]:
    found = _good(exam.server.get("/props"), "/props").body.get("chat_template_caps")
    return found if isinstance(found, dict) else {}


def _good(answer: Answer, what: str) -> Answer:
    if not answer.ok or (answer.body is None and what != "/metrics"):
        raise CheckFailed(f"{what} was answered with status {answer.status}: {_reason(answer)}")
    return answer


def _reason(answer: Answer) -> str:
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    text = error.get("message") if isinstance(error, dict) else answer.text
    shown = " ".join(str(text).split())
    # A template's error begins with where it was raised and ends with what it says.
    return shown if len(shown) <= 240 else f"{shown[:80]} … {shown[-150:]}"


def _demand(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise CheckFailed(otherwise)
