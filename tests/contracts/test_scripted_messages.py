"""Scripted ids through detokenizer and Messages dialect: any steps give the same blocks, streamed or not."""

from typing import Any

import orjson
import pytest

from stages.ingress.dialect import Call, Collected, Parsed
from stages.ingress.dialects.anthropic_messages import DIALECT
from stages.messages import Chat, Event
from stages.prompt.templates.glm5 import TEMPLATE
from tests.contracts.test_scripted_answers import ANSWERS
from tests.scripted.script import MODEL, PROMPT, SCHEMA, TOKENIZER, call, script, submit_of
from tests.scripted.script import events_of as script_events
from tests.stages.ingress.dialects.anthropic_kit import events_of, message_of

BODY: dict[str, Any] = {
    "max_tokens": 4000,
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
}
TEXTS = {
    **{name: text for name, (text, _) in ANSWERS.items()},
    "mixed": "</think>One: " + call(s="1") + "\n\nthen 🧑‍🚀: " + call(s="2") + call(i="3") + "\nthat was all",
    "thinks again": "a</think>b<think>c</think>d" + call() + "<think>é</think>",
    "cut off": "</think>" + call(s="1", i="2")[:-30],
    "nothing": "</think>",
}
STEPS = [1, 2, 7, 1000]


def parsed(more: dict[str, Any]) -> Parsed:
    return DIALECT.parse(Call({**BODY, **more}, {}, "/v1/messages", "r", 0), MODEL)


def generated(ask: Parsed, text: str, step: int) -> list[Event]:
    (only,) = ask.asks
    return script_events([submit_of(only)], [script(text)], step, cached_tokens=1)


def whole(more: dict[str, Any], text: str, step: int) -> Any:
    ask = parsed(more)
    status, value = ask.encoder.body([Collected(PROMPT, tuple(generated(ask, text, step)))])
    assert status == 200
    return value


def streamed(more: dict[str, Any], text: str, step: int) -> dict[str, Any]:
    ask = parsed({**more, "stream": True})
    frames = ask.encoder.start()
    for event in generated(ask, text, step):
        frames += ask.encoder.event(0, PROMPT, event)
    return message_of(events_of(b"".join(frames + ask.encoder.finish())))


def plain(message: Any) -> Any:
    """A whole answer as a client reads it: the inputs of its calls as values."""
    return orjson.loads(orjson.dumps(message))


@pytest.mark.parametrize("name", TEXTS)
def test_a_stream_of_any_steps_joins_to_the_whole_message(name: str) -> None:
    once = plain(whole({}, TEXTS[name], 1))
    for step in STEPS:
        assert plain(whole({}, TEXTS[name], step)) == once
        assert streamed({}, TEXTS[name], step) == once
    assert "\ufffd" not in str(once)


@pytest.mark.parametrize("name", ["typed", "none", "quotes", "wide", "thinks"])
def test_a_turn_that_comes_back_renders_to_the_ids_that_were_generated(name: str) -> None:
    generated_text = {**TEXTS, "thinks": "so</think>I think 🧑‍🚀"}[name]
    turn = {"role": "assistant", "content": plain(whole({}, generated_text, 7))["content"]}
    more = [turn, {"role": "user", "content": "and?"}]
    first, second = prompt_ids({}), prompt_ids({"messages": [*BODY["messages"], *more]})
    ids = TOKENIZER.encode_texts([generated_text])[0]
    assert second[: len(first) + len(ids)] == (*first, *ids)


def prompt_ids(more: dict[str, Any]) -> tuple[int, ...]:
    (ask,) = parsed(more).asks
    assert isinstance(ask.prompt, Chat)
    return TOKENIZER.encode_segments([TEMPLATE(ask.prompt)])[0]


@pytest.mark.parametrize("step", STEPS)
def test_two_calls_are_two_blocks_with_inputs_of_the_schemas_types(step: int) -> None:
    both = streamed({}, TEXTS["two"], step)
    text, *calls = both["content"]
    assert (text["text"].strip(), [block["input"] for block in calls]) == ("Both:", [{"s": "Paris"}, {"s": "Rome"}])
    assert calls[0]["id"] != calls[1]["id"]
    assert both["stop_reason"] == "tool_use"
    (_, typed) = streamed({}, TEXTS["typed"], step)["content"]
    assert typed["input"] == {"s": "123", "i": 5, "o": {"a": [1, 'x"y']}, "l": []}


@pytest.mark.parametrize("step", STEPS)
def test_text_between_calls_stays_between_them(step: int) -> None:
    content = streamed({}, TEXTS["mixed"], step)["content"]
    assert [block["type"] for block in content] == ["text", "tool_use", "text", "tool_use", "tool_use", "text"]
    assert (content[2]["text"].strip(), content[5]["text"].strip()) == ("then 🧑‍🚀:", "that was all")


@pytest.mark.parametrize("step", STEPS)
def test_a_stop_sequence_is_told_and_neither_shown_nor_looked_for_in_thinking(step: int) -> None:
    message = streamed({"stop_sequences": ["END", "think"]}, TEXTS["text"], step)
    thought, text = message["content"]
    assert (thought["thinking"], text["text"]) == ("I think so", "🧑‍🚀𠮷é한글 says alpha ")
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
