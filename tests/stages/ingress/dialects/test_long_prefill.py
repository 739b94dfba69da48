"""What a stream hears while its prompt is computed for a long time, on every dialect, at exact instants."""

from collections.abc import Iterable
from typing import Any

import orjson

from stages.ingress.dialect import SSE_COMMENT_PING, Dialect
from stages.ingress.respond import Serving, respond
from stages.messages import Delta, Ended, Finish, Submit, Usage
from stages.settings import IngressSettings
from tests.fakes import FakeWire, Step, fake_services
from tests.stages.ingress.dialects.anthropic_kit import events_of
from tests.stages.ingress.dialects.kit import parse
from tests.stages.ingress.dialects.test_unavailable import BODIES, every_dialect

# What of a stream comes before the first token. Ollama's lines have no word that breaks the silence, and SGLang's
# clients take every line of /generate for an event.
FIRST = {
    "anthropic_messages": ["message_start", "ping"],
    "openai_responses": ["response.created", "response.in_progress"],
}
SILENT = ("ollama_chat", "ollama_generate", "sglang_generate")
PREFILL_S, CACHED_TOKENS = 50.0, 64


def slow(submit: Submit) -> Iterable[Step]:
    usage = Usage(len(submit.prompt_ids), 1, CACHED_TOKENS)
    yield PREFILL_S, Delta(0, (5,), "x", usage=usage)
    yield 0.0, Ended(0, Finish("stop", 1), usage)


def types_in(chunk: bytes) -> list[str]:
    lines = [line.removeprefix(b"data: ") for line in chunk.split(b"\n") if line.startswith(b"data: {")]
    return [str(orjson.loads(line).get("type")) for line in lines]


async def streamed(dialect: Dialect) -> FakeWire:
    wire = FakeWire()
    async with fake_services(slow) as fakes:
        parsed = parse(dialect, {**BODIES[dialect.name], "stream": True})
        await respond(parsed, dialect, "r", Serving(fakes.services, IngressSettings(sse_ping_s=15.0)), wire)
    assert wire.ended
    return wire


@every_dialect
async def test_a_long_prefill_is_never_silent_for_longer_than_a_ping(dialect: Dialect, autojump_clock: Any) -> None:
    wire = await streamed(dialect)
    early = [(at_s, chunk) for at_s, chunk in zip(wire.instants_s, wire.chunks, strict=True) if at_s < PREFILL_S]
    first = FIRST.get(dialect.name)
    at_once = [chunk for at_s, chunk in early if at_s == 0.0]
    if first is not None:
        assert types_in(b"".join(at_once)) == first
    pings = {at_s: chunk for at_s, chunk in early if at_s > 0.0}
    assert list(pings) == ([] if dialect.name in SILENT else [15.0, 30.0, 45.0])
    if dialect.name == "anthropic_messages":
        assert set(pings.values()) == {b'event: ping\ndata: {"type":"ping"}\n\n'}
    elif dialect.name == "openai_responses":
        assert [types_in(chunk) for chunk in pings.values()] == [["keepalive"]] * 3
    else:
        assert set(pings.values()) <= {SSE_COMMENT_PING}


async def test_keepalives_have_their_number_like_every_event(autojump_clock: Any) -> None:
    (dialect,) = [one for one in every_dialect.args[1] if one.name == "openai_responses"]
    wire = await streamed(dialect)
    frames = b"".join(wire.chunks).decode().removesuffix("\n\n").split("\n\n")
    events = [orjson.loads(frame.split("\ndata: ")[1]) for frame in frames]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [frame.split("\n")[0] for frame in frames] == [f"event: {event['type']}" for event in events]
    assert events[2:5] == [{"type": "keepalive", "sequence_number": number} for number in (2, 3, 4)]


async def test_message_start_tells_what_the_cache_had_before_anything_is_computed(autojump_clock: Any) -> None:
    (dialect,) = [one for one in every_dialect.args[1] if one.name == "anthropic_messages"]
    wire = await streamed(dialect)
    events = events_of(b"".join(wire.chunks))
    counts = [
        {key: count for key, count in usage.items() if key.endswith("input_tokens")}
        for usage in (events[0]["message"]["usage"], events[-2]["usage"])
    ]
    assert (events[0]["type"], wire.instants_s[0]) == ("message_start", 0.0)
    assert counts[0] == counts[1]
    assert counts[0]["cache_read_input_tokens"] == CACHED_TOKENS
