"""Scripted ids through detokenizer and Responses dialect: any steps give the same items, streamed or not.

And what an answer holds, sent back as input, renders to the very tokens that were generated.
"""

from typing import Any

import orjson
import pytest

from stages.ingress.dialect import Call, Collected, Parsed
from stages.ingress.dialects.openai_responses import DIALECT
from stages.messages import Chat, Event, Finish
from stages.prompt.templates import load_template
from tests.contracts.test_scripted_answers import ANSWERS
from tests.scripted.script import MODEL, PROMPT, SCHEMA, TOKENIZER, call, script, submit_of
from tests.scripted.script import events_of as script_events
from tests.stages.ingress.dialects.responses_kit import numbered, read, shape

F = {"type": "function", "name": "f", "parameters": SCHEMA}
PATCH = {"type": "custom", "name": "patch"}
BODY: dict[str, Any] = {"input": "x", "tools": [F, PATCH]}
EDIT = '*** Begin\n+a "b" \\ 🧑‍🚀\n\t{"input": 1}'
CUSTOM = f"<tool_call>patch<arg_key>input</arg_key><arg_value>{EDIT}</arg_value></tool_call>"
TEXTS = {
    **{name: text for name, (text, _) in ANSWERS.items()},
    "mixed": "hm</think>One: " + call(s="1") + "\n\nthen 🧑‍🚀: " + CUSTOM + call(i="3") + "\nthat was all",
    "thinks again": "a</think>b<think>c</think>d" + call() + "<think>é</think>",
    "custom": "</think>" + CUSTOM,
    "cut off": "</think>" + call(s="1", i="2")[:-30],
    "custom cut off": "</think>" + CUSTOM[:-30],
    "nothing": "</think>",
}
STEPS = [1, 2, 7, 1000]
LOGPROBS = "message.output_text.logprobs"
WAYS: list[dict[str, Any]] = [
    {},
    {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]},
    {"parallel_tool_calls": False},
    {"include": [LOGPROBS], "top_logprobs": 3},
    {"include": [LOGPROBS], "stop": ["then", "alphabet", "𠮷x"]},
]


def parsed(body: dict[str, Any]) -> Parsed:
    return DIALECT.parse(Call(body, {}, "/v1/responses", "r", 0), MODEL)


def generated(asked: Parsed, text: str, step: int, finish: Finish | None) -> list[Event]:
    (only,) = asked.asks
    return script_events([submit_of(only)], [script(text, finish)], step, cached_tokens=1)


def whole(more: dict[str, Any], text: str, step: int, finish: Finish | None = None) -> Any:
    asked = parsed({**BODY, **more})
    status, value = asked.encoder.body([Collected(PROMPT, tuple(generated(asked, text, step, finish)))])
    assert status == 200
    return orjson.loads(orjson.dumps(value))


def streamed(more: dict[str, Any], text: str, step: int, finish: Finish | None = None) -> Any:
    asked = parsed({**BODY, **more, "stream": True})
    frames = asked.encoder.start()
    for event in generated(asked, text, step, finish):
        frames += asked.encoder.event(0, PROMPT, event)
    return read(numbered(b"".join(frames + asked.encoder.finish())))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("finish", [None, Finish("length")], ids=["stop", "length"])
def test_a_stream_of_any_steps_ends_in_the_whole_response(name: str, finish: Finish | None) -> None:
    for more in WAYS:
        once = whole(more, TEXTS[name], 1, finish)
        for step in STEPS:
            assert whole(more, TEXTS[name], step, finish) == once
            assert streamed(more, TEXTS[name], step, finish) == once
        assert "\ufffd" not in str(shape(once))


@pytest.mark.parametrize("step", STEPS)
def test_items_stand_in_the_order_they_were_generated_in(step: int) -> None:
    assert [(kind, text.strip()) for kind, text in shape(streamed({}, TEXTS["mixed"], step))] == [
        ("reasoning", "hm"),
        ("message", "One:"),
        ("function_call", '{"s": "1"}'),
        ("message", "then 🧑‍🚀:"),
        ("custom_tool_call", EDIT),
        ("function_call", '{"i": 3}'),
        ("message", "that was all"),
    ]
    assert shape(streamed({}, TEXTS["nothing"], step)) == []
    again = shape(streamed({}, TEXTS["thinks again"], step))
    assert [kind for kind, _ in again] == [
        "reasoning", "message", "reasoning", "message", "function_call", "reasoning",
    ]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_only_whole_calls_are_complete(step: int) -> None:
    for finish in (None, Finish("length")):
        assert streamed({}, TEXTS["cut off"], step, finish)["output"][-1]["status"] == "incomplete"
        assert streamed({}, TEXTS["custom cut off"], step, finish)["output"][-1]["status"] == "incomplete"
        assert streamed({}, TEXTS["typed"], step, finish)["output"][-1]["status"] == "completed"
        assert streamed({}, TEXTS["custom"], step, finish)["output"][-1]["status"] == "completed"


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("step", STEPS)
def test_a_messages_logprobs_are_those_of_its_own_tokens(name: str, step: int) -> None:
    response = streamed({"include": [LOGPROBS], "top_logprobs": 3}, TEXTS[name], step)
    parts = [item["content"][0] for item in response["output"] if item["type"] == "message"]
    for part in parts:
        spelled = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
        # A token of blanks before a call may have begun with what is text.
        assert spelled.decode().rstrip() == part["text"].rstrip()
        for entry in part["logprobs"]:
            assert entry["token"] == bytes(entry["bytes"]).decode("utf-8", "replace")
            assert [set(other) for other in entry["top_logprobs"]] == [{"token", "logprob", "bytes"}] * 3
            assert -9999 <= entry["logprob"] <= 0
    assert response["top_logprobs"] == 3


def test_a_stop_string_has_no_logprobs_and_what_came_before_it_has_all() -> None:
    for step in STEPS:
        (_, message) = streamed({"include": [LOGPROBS], "stop": ["alp"]}, RETURNED["text"], step)["output"]
        (part,) = message["content"]
        spelled = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode()
        assert part["text"] == "🧑‍🚀𠮷é한글 says "
        assert spelled.startswith(part["text"].rstrip())
        assert not spelled.endswith("ha")


# --- the answer sent back ---

RENDER = load_template("glm5")
RETURNED = {
    "text": "I think so</think>🧑‍🚀𠮷é한글 says alpha",
    "no thoughts": "</think>Hi",
    "typed": TEXTS["typed"],
    "two": "hm\n</think>Both:" + call(s="Paris") + call(i="7"),
    "none": TEXTS["none"],
    "custom": "edit</think>Now:" + CUSTOM + CUSTOM,
}


def prompt_ids(body: dict[str, Any]) -> tuple[int, ...]:
    (asked,) = parsed(body).asks
    assert isinstance(asked.prompt, Chat)
    return TOKENIZER.encode_segments([RENDER(asked.prompt)])[0]


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.parametrize("more", WAYS[:2], ids=["content", "blob"])
def test_an_answer_sent_back_renders_to_the_tokens_that_were_generated(name: str, more: dict[str, Any]) -> None:
    before = [{"role": "user", "content": "x"}]
    output = whole(more, RETURNED[name], 1)["output"]
    calls = [item["call_id"] for item in output if "call_id" in item]
    results = [{"type": "function_call_output", "call_id": one, "output": "ok"} for one in reversed(calls)]
    after = [*before, *output, *(results or [{"role": "user", "content": "go on"}])]

    first, second = (prompt_ids({**BODY, **more, "input": items}) for items in (before, after))
    generated_ids = TOKENIZER.encode_texts([RETURNED[name]])[0]
    assert second[: len(first) + len(generated_ids)] == (*first, *generated_ids)
