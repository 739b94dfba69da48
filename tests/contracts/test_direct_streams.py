"""Every dialect that streams gives the same bytes, whoever writes its deltas: the mailbox's sink or the task."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from stages.ingress.dialect import Call, Dialect, Parsed
from stages.ingress.dialects import find_dialects
from stages.ingress.respond import Serving, respond
from stages.messages import Delta, Ended, Finish, Submit, TokenLogprob, ToolCallDelta, Usage
from stages.settings import IngressSettings
from tests.fakes import FAKE_MODEL, DirectWire, FakeWire, Script, Step, fake_services

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 64, "stream": True}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BODIES: dict[str, list[dict[str, Any]]] = {
    "openai_chat": [
        CHAT,
        {**CHAT, "stream_options": {"include_usage": True}},
        {**CHAT, **USAGE, "logprobs": True, "top_logprobs": 1},
        {**CHAT, "n": 2, "tools": [TOOL], "return_token_ids": True},
        {**CHAT, "stream_reasoning": False},
        {**CHAT, "include_reasoning": False},
        {**CHAT, "separate_reasoning": False},
    ],
    "openai_completions": [
        {"prompt": "hi", "max_tokens": 64, "stream": True, "n": 2, "logprobs": 1, **USAGE},
    ],
    "openai_responses": [{"input": "hi", "stream": True, "max_output_tokens": 64}],
    "anthropic_messages": [{**CHAT, "model": "fake"}],
    "ollama_chat": [{"model": "fake", "messages": CHAT["messages"]}],
    "ollama_generate": [{"model": "fake", "prompt": "hi"}],
    "sglang_generate": [{"text": "hi", "stream": True, "sampling_params": {"n": 2}, "return_logprob": True}],
}
BATCH = {"prompt": ["hi", "ho"], "max_tokens": 64, "stream": True}
STREAMING = [(name, index) for name, bodies in BODIES.items() for index in range(len(bodies))]
TEXTS = ["plain", ' "quoted" \\ \n\0', "🧑‍🚀𠮷é한글", "", "</script>\u2028", "x" * 5000]


def told(finish: Finish | None) -> Script:
    """Return a script of a delta of every kind, one a second, and how it ends; None never ends."""

    def script(submit: Submit) -> Iterable[Step]:
        pieces: list[dict[str, Any]] = [{"reasoning": text} for text in TEXTS] if submit.form.parse_reasoning else []
        pieces += [{"text": text} for text in TEXTS]
        if submit.form.parse_tools:
            calls = [ToolCallDelta(0, name="f"), ToolCallDelta(0, arguments='{"a'), ToolCallDelta(0, arguments='": 1}')]
            pieces += [{"tool_calls": (call,)} for call in calls]
            pieces.append({"text": "both", "tool_calls": (ToolCallDelta(1, "f", "{}"),)})
        for number, piece in enumerate(pieces, start=1):
            logprobs = (TokenLogprob(number, -0.5, b"ab", ((2, -1.0, b"c"),)),) if submit.logprobs else ()
            usage = Usage(2, number)
            # The second choice a quarter of a second behind the first, so that there is an order.
            delay_s = 1.0 + (submit.key.choice / 4 if number == 1 else 0.0)
            yield delay_s, Delta(submit.key.choice, (number,), logprobs=logprobs, usage=usage, **piece)
        if finish is not None:
            yield 1.0, Ended(submit.key.choice, finish, Usage(2, len(pieces)))
        else:
            yield float("inf"), Ended(submit.key.choice, Finish("length"), Usage(2, len(pieces)))

    return script


def dialect_of(name: str) -> Dialect:
    return next(dialect for dialect in find_dialects() if dialect.name == name)


async def streamed(dialect: Dialect, body: dict[str, Any], finish: Finish | None, wire: FakeWire) -> bytes:
    call = Call(dict(body), {"anthropic-version": "2023-06-01"}, dialect.routes[0].path, "f" * 32, 1_700_000_000)
    parsed = dialect.parse(call, FAKE_MODEL)
    assert isinstance(parsed, Parsed)
    assert parsed.stream
    settings = IngressSettings(request_timeout_s=None if finish else 5.6)
    async with fake_services(told(finish)) as fakes:
        await respond(parsed, dialect, "id", Serving(fakes.services, settings), wire)
        assert not fakes.engine.running
    assert wire.ended
    return b"".join(wire.chunks)


def ever_less() -> Callable[[], int]:
    """Return what gives 40, 39, ... and then nothing: a connection that fills up."""
    rooms = iter(range(40, 0, -1))
    return lambda: next(rooms, 0)


@pytest.mark.parametrize(
    "finish",
    [Finish("length"), Finish("stop", matched=1), Finish("abort", message="no"), Finish("error", status=500), None],
    ids=lambda finish: finish.kind if finish else "deadline",
)
@pytest.mark.parametrize(("name", "index"), STREAMING, ids=lambda value: str(value))
async def test_a_stream_has_the_same_bytes_however_its_deltas_are_written(
    name: str, index: int, finish: Finish | None, autojump_clock: Any
) -> None:
    dialect, body = dialect_of(name), BODIES[name][index]
    by_task = await streamed(dialect, body, finish, FakeWire())

    for room in (lambda: 1 << 30, lambda: 40, lambda: 0, ever_less()):
        wire = DirectWire(room)
        assert await streamed(dialect, body, finish, wire) == by_task
        if finish is not None:
            assert wire.num_direct > 0
    assert len(by_task) > 100


def test_every_dialect_that_can_stream_is_here() -> None:
    silent = {"anthropic_count_tokens", "ollama_show", "sglang_parsing", "tokenize"}
    assert {dialect.name for dialect in find_dialects()} - silent == set(BODIES)


async def test_what_a_batch_of_prompts_brings_is_written_by_its_task(autojump_clock: Any) -> None:
    wire = DirectWire(lambda: 1 << 30)
    await streamed(dialect_of("openai_completions"), BATCH, Finish("length"), wire)
    assert wire.num_direct == 0
