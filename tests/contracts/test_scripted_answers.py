"""Scripted ids through detokenizer and chat dialect: what a stream joins to is the answer that is not streamed."""

import json
from typing import Any

import orjson
import pytest

from stages.ingress.dialect import Call, Collected
from stages.ingress.dialects import ollama_chat
from stages.ingress.dialects.openai_chat import DIALECT
from stages.messages import Event
from tests.scripted import script as scripts
from tests.scripted.script import END, MODEL, PROMPT, SCHEMA, call, script, submit_of

TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
ANSWERS = {
    "typed": ("hm</think>" + call(s="123", i="5", o='{"a": [1, "x\\"y"]}', l="[]"), 1),
    "two": ("</think>Both: " + call(s="Paris") + call(s="Rome"), 2),
    "none": ("</think>" + call(), 1),
    "quotes": ("</think>" + call(s='Smithh" \\ </arg_val\n\t{'), 1),
    "wide": ("🧑‍🚀 thinks</think>𠮷é한글" + call(s="🧑‍🚀𠮷é한글"), 1),
    "text": ("I think so</think>🧑‍🚀𠮷é한글 says alpha END", 0),
    "endless": ("still thinking 🧑‍🚀", 0),
}


def events_of(body: dict[str, Any], texts: list[str], step: int) -> list[Event]:
    """The events of all choices, their steps by turns, `step` ids a step."""
    (ask,) = DIALECT.parse(Call(body, {}, "/v1/chat/completions", "r", 0), MODEL).asks
    submits = [submit_of(ask, choice=index) for index in range(len(texts))]
    return scripts.events_of(submits, [script(text) for text in texts], step)


def whole(body: dict[str, Any], texts: list[str], step: int) -> list[dict[str, Any]]:
    encoder = DIALECT.parse(Call(body, {}, "/v1/chat/completions", "r", 0), MODEL).encoder
    status, value = encoder.body([Collected(PROMPT, tuple(events_of(body, texts, step)))])
    assert status == 200
    choices: list[dict[str, Any]] = value["choices"]  # type: ignore[index]
    return choices


def streamed(body: dict[str, Any], texts: list[str], step: int) -> list[dict[str, Any]]:
    """The choices a client joins from a stream, in the form of the whole answer's."""
    encoder = DIALECT.parse(Call({**body, "stream": True}, {}, "/v1/chat/completions", "r", 0), MODEL).encoder
    frames = encoder.start()
    for event in events_of({**body, "stream": True}, texts, step):
        frames += encoder.event(0, PROMPT, event)
    lines = b"".join(frames + encoder.finish()).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    joined: dict[int, dict[str, Any]] = {}
    for line in lines[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            own = joined.setdefault(choice["index"], {"content": "", "reasoning": "", "calls": {}, "finishes": []})
            delta = choice["delta"]
            own["content"] += delta.get("content") or ""
            own["reasoning"] += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls") or ():
                one = own["calls"].setdefault(piece["index"], {"name": "", "arguments": ""})
                one["name"] += piece["function"].get("name") or ""
                one["arguments"] += piece["function"].get("arguments") or ""
            if choice["finish_reason"] is not None:
                own["finishes"].append(choice["finish_reason"])
    return [joined[index] for index in sorted(joined)]


def ollama_whole(body: dict[str, Any], texts: list[str], step: int) -> dict[str, Any]:
    encoder = ollama_chat.DIALECT.parse(Call({**body, "stream": False}, {}, "/api/chat", "r", 0), MODEL).encoder
    status, value = encoder.body([Collected(PROMPT, tuple(events_of(body, texts, step)))])
    assert status == 200
    answer: dict[str, Any] = orjson.loads(orjson.dumps(value))
    return answer


def ollama_streamed(body: dict[str, Any], texts: list[str], step: int) -> dict[str, Any]:
    """What a client of Ollama's API joins from its lines, in the form of the whole answer."""
    encoder = ollama_chat.DIALECT.parse(Call(body, {}, "/api/chat", "r", 0), MODEL).encoder
    frames = encoder.start()
    for event in events_of(body, texts, step):
        frames += encoder.event(0, PROMPT, event)
    lines = [orjson.loads(line) for line in b"".join(frames + encoder.finish()).splitlines()]
    messages = [line["message"] for line in lines]
    joined: dict[str, Any] = {"role": "assistant", "content": "".join(message["content"] for message in messages)}
    if thinking := "".join(message.get("thinking", "") for message in messages):
        joined["thinking"] = thinking
    if calls := [call for message in messages for call in message.get("tool_calls", ())]:
        joined["tool_calls"] = calls
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return {**lines[-1], "message": joined}


def as_joined(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = {index: dict(one["function"]) for index, one in enumerate(message.get("tool_calls") or ())}
    return {
        "content": message["content"] or "",
        "reasoning": message["reasoning_content"] or "",
        "calls": calls,
        "finishes": [choice["finish_reason"]],
    }


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_of_any_steps_joins_to_the_whole_answer_and_choices_never_mix(step: int, n: int) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "n": n}
    texts = [text for text, _ in ANSWERS.values()]
    for start in range(len(texts)):
        chosen = [texts[(start + index) % len(texts)] for index in range(n)]
        alone = [as_joined(whole({**body, "n": 1}, [text], 1000)[0]) for text in chosen]
        assert [as_joined(choice) for choice in whole(body, chosen, step)] == alone
        assert streamed(body, chosen, step) == alone


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("stop_regex", "content"),
    [
        (r"say\w", "🧑‍🚀𠮷é한글 "),
        (r"[^\W\d_]{2}\b", "🧑‍🚀𠮷é"),
        ("l.*h", "🧑‍🚀𠮷é한글 says a"),
        ("l.*[?]", "🧑‍🚀𠮷é한글 says alpha END"),
        (["never", r"\bEND\b"], "🧑‍🚀𠮷é한글 says alpha "),
    ],
)
def test_a_stop_pattern_cuts_a_stream_of_any_steps_where_it_cuts_the_whole_answer(
    stop_regex: Any, content: str, step: int
) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stop_regex": stop_regex}
    text = ANSWERS["text"][0]
    (choice,) = whole(body, [text], step)
    assert choice["message"]["content"] == content
    assert (choice["matched_stop"] == END) is ("?" in stop_regex)
    assert streamed(body, [text], step) == [as_joined(choice)]


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_ollamas_lines_of_any_steps_join_to_the_whole_answer_and_to_what_chat_says(name: str, step: int) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    text, num_calls = ANSWERS[name]
    call = Call(body, {}, "/", "r", 0)
    assert ollama_chat.DIALECT.parse(call, MODEL).asks[0].form == DIALECT.parse(call, MODEL).asks[0].form

    answer = ollama_whole(body, [text], 1000)
    assert ollama_whole(body, [text], step) == ollama_streamed(body, [text], step) == answer
    chat = as_joined(whole(body, [text], 1000)[0])
    message = answer["message"]
    assert (message["content"], message.get("thinking", "")) == (chat["content"], chat["reasoning"])
    calls = [one["function"] for one in message.get("tool_calls", ())]
    assert [one["arguments"] for one in calls] == [json.loads(one["arguments"]) for one in chat["calls"].values()]
    assert len(calls) == num_calls


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_are_whole_json_of_the_schemas_types_and_no_character_is_broken(name: str) -> None:
    text, num_calls = ANSWERS[name]
    (answer,) = streamed({"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}, [text], 1)

    calls = [json.loads(one["arguments"]) for one in answer["calls"].values()]
    assert len(calls) == num_calls
    assert answer["finishes"] == ["tool_calls" if num_calls else "stop"]
    assert "\ufffd" not in json.dumps(answer, ensure_ascii=False)
    if name == "typed":
        assert calls == [{"s": "123", "i": 5, "o": {"a": [1, 'x"y']}, "l": []}]
    if name == "two":
        assert (calls, answer["content"].strip()) == ([{"s": "Paris"}, {"s": "Rome"}], "Both:")
    if name == "quotes":
        assert calls == [{"s": 'Smithh" \\ </arg_val\n\t{'}]


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_a_stop_string_ends_the_visible_answer_only_and_none_of_it_is_shown(step: int) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stop": ["END", "think"]}
    (answer,) = streamed(body, [ANSWERS["text"][0]], step)

    assert answer["reasoning"] == "I think so"
    assert answer["content"] == "🧑‍🚀𠮷é한글 says alpha "
    assert answer["finishes"] == ["stop"]
