"""Drives a dialect without a server: a body in, scripted events through its encoder, JSON out."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest
from attrs import evolve, frozen
from hypothesis import strategies as st

from stages.errors import RequestError
from stages.ingress.dialect import Call, Collected, Dialect, Parsed
from stages.messages import (
    Delta,
    Ended,
    Event,
    Finish,
    Prompt,
    Sampling,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from stages.settings import ModelSettings

EOS = 7
MODEL = ModelSettings(
    served_model_name="glm",
    model_path="/models/glm",
    model_type="glm5_next",
    architectures=("Glm5NextForCausalLM",),
    context_length_tokens=4096,
    vocab_size=1000,
    eos_token_ids=frozenset({EOS}),
    reasoning_parser="glm45",
    tool_call_parser="glm47",
    default_sampling=Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01),
)
# A server whose graphs take masks and changed logits.
ABLE = evolve(MODEL, structured_outputs=True, penalties=True)
PROMPT = Prompt((11, 12, 13), in_reasoning=True)

Events = Sequence[tuple[int, Event]]


def call_of(body: Mapping[str, Any], **more: Any) -> Call:
    return Call(body=dict(body), headers={}, path="/", request_id="f" * 32, created_s=1_700_000_000, **more)


def parse(dialect: Dialect, body: Mapping[str, Any], model: ModelSettings = MODEL) -> Parsed:
    return dialect.parse(call_of(body), model)


def refusal(dialect: Dialect, body: Mapping[str, Any], model: ModelSettings = MODEL) -> RequestError:
    with pytest.raises(RequestError) as caught:
        dialect.parse(call_of(body), model)
    return caught.value


def error_body(dialect: Dialect, body: Mapping[str, Any]) -> Any:
    error = refusal(dialect, body)
    return dialect.error(error, error.status, "f" * 32)


def whole(dialect: Dialect, body: Mapping[str, Any], events: Events, model: ModelSettings = MODEL) -> Any:
    parsed = parse(dialect, body, model)
    collected = [
        Collected(PROMPT, tuple(event for index, event in events if index == ask)) for ask in range(len(parsed.asks))
    ]
    status, value = parsed.encoder.body(collected)
    assert status == 200
    return orjson.loads(orjson.dumps(value))


def frames(dialect: Dialect, body: Mapping[str, Any], events: Events, model: ModelSettings = MODEL) -> list[bytes]:
    encoder = parse(dialect, {**body, "stream": True}, model).encoder
    out = encoder.start()
    for ask_index, event in events:
        out += encoder.event(ask_index, PROMPT, event)
    return out + encoder.finish()


def streamed(dialect: Dialect, body: Mapping[str, Any], events: Events, model: ModelSettings = MODEL) -> list[Any]:
    return values_of(frames(dialect, body, events, model))


def values_of(out: Sequence[bytes]) -> list[Any]:
    assert out[-1] == b"data: [DONE]\n\n"
    for one in out[:-1]:
        assert one.startswith(b"data: {")
        assert one.endswith(b"}\n\n")
        assert one.count(b"\n") == 2
    return [orjson.loads(one[6:]) for one in out[:-1]]


# ---------------------------------------------------------------------------------------------------------------------
# Scripts: what a choice generates, token by token, and ways to split it into events
# ---------------------------------------------------------------------------------------------------------------------


@frozen
class Token:
    """One generated token and what it shows."""

    token_id: int
    data: bytes
    logprob: float
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@frozen
class Script:
    """One choice: its tokens and its end."""

    tokens: tuple[Token, ...]
    finish: Finish


def merged(choice: int, tokens: Sequence[Token], so_far: int, *, logprobs: bool) -> Delta:
    reasoning_tokens = 0
    return Delta(
        choice=choice,
        token_ids=tuple(token.token_id for token in tokens),
        text="".join(token.text for token in tokens),
        reasoning="".join(token.reasoning for token in tokens),
        tool_calls=tuple(piece for token in tokens for piece in token.tool_calls),
        logprobs=tuple(_logprob(token) for token in tokens) if logprobs else (),
        usage=Usage(len(PROMPT.token_ids), so_far, 1, reasoning_tokens),
    )


def _logprob(token: Token) -> TokenLogprob:
    top = ((token.token_id, token.logprob, token.data), (1, float("-inf"), b"\xf0\x9f"), (2, -3.5, b"b"))
    return TokenLogprob(token.token_id, token.logprob, token.data, top)


@st.composite
def scripts(draw: st.DrawFn, *, chat: bool) -> Script:
    """Draw a choice: reasoning, text and calls for chat, text alone otherwise."""
    parts: list[Token] = []
    if chat:
        parts += [Token(0, b"", 0, reasoning=draw(_TEXT)) for _ in range(draw(st.integers(0, 3)))]
    parts += [Token(0, b"", 0, text=draw(_TEXT)) for _ in range(draw(st.integers(0, 4)))]
    cut_off = False
    for index in range(draw(st.integers(0, 2)) if chat else 0):
        text = draw(st.sampled_from(['{"city": "Paris"}', "{}", '{"a": {"b": [1, "é"]}}']))
        cut_off = draw(st.booleans()) if index == 1 else False
        text = text[:-1] if cut_off else text
        parts.append(Token(0, b"", 0, tool_calls=(ToolCallDelta(index, f"tool_{index}"),)))
        at = draw(st.integers(0, len(text)))
        parts += [Token(0, b"", 0, tool_calls=(ToolCallDelta(index, None, piece),)) for piece in (text[:at], text[at:])]
    tokens = tuple(
        evolve(part, token_id=20 + number, data=draw(st.binary(max_size=3)), logprob=draw(_LOGPROB))
        for number, part in enumerate(parts)
    )
    kinds = [Finish("stop", EOS), Finish("stop", "END"), Finish("length"), Finish("abort", message="Aborted")]
    return Script(tokens, draw(st.sampled_from(kinds)))


_TEXT = st.sampled_from(["", "", "a", " wörld", "𠮷é", "\n", "Ω 한글"])
_LOGPROB = st.sampled_from([-0.25, -1.5, float("-inf")])


@st.composite
def splits(draw: st.DrawFn, by_choice: Sequence[tuple[int, int, Script]], *, logprobs: bool = False) -> list[Any]:
    """Draw one order of events for (ask index, choice, script): each script cut into deltas, all interleaved."""
    queues = []
    for ask_index, choice, script in by_choice:
        events: list[Event] = []
        at = 0
        while at < len(script.tokens):
            size = draw(st.integers(1, 3))
            group = script.tokens[at : at + size]
            at += len(group)
            events.append(merged(choice, group, at, logprobs=logprobs))
        events.append(Ended(choice, script.finish, Usage(len(PROMPT.token_ids), len(script.tokens), 1, 0)))
        queues.append([(ask_index, event) for event in events])
    order = []
    while queues:
        queue = draw(st.sampled_from(queues))
        order.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    return order


def one_by_one(by_choice: Sequence[tuple[int, int, Script]], *, logprobs: bool = False) -> list[tuple[int, Event]]:
    order: list[tuple[int, Event]] = []
    for ask_index, choice, script in by_choice:
        for number, token in enumerate(script.tokens):
            order.append((ask_index, merged(choice, [token], number + 1, logprobs=logprobs)))
        order.append((ask_index, Ended(choice, script.finish, Usage(len(PROMPT.token_ids), len(script.tokens), 1, 0))))
    return order
