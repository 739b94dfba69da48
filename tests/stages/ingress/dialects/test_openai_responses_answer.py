"""Answers of the Responses API: the order of its events, its items, and how it ends."""

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.errors import ContextOverflow, DeadlineExceeded, EngineFailure, RequestError, Unavailable
from stages.ingress.dialect import Collected
from stages.ingress.dialects.openai_responses import DIALECT
from stages.ingress.dialects.openai_responses_blob import unpack
from stages.messages import Delta, Ended, Event, Finish, ToolCallDelta, Usage
from tests.stages.ingress.dialects.kit import (
    EOS,
    MODEL,
    PROMPT,
    Script,
    call_of,
    frames,
    one_by_one,
    parse,
    scripts,
    splits,
    values_of,
    whole,
)
from tests.stages.ingress.dialects.responses_kit import numbered, read, shape, streamed, text_of

USAGE = Usage(3, 9, 2, 4)
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch", "description": "Edit files."}
BODY: dict[str, Any] = {"input": "hi", "tools": [LOOK, PATCH]}
STOP = Finish("stop", EOS)


def deltas(*pieces: dict[str, Any]) -> list[tuple[int, Event]]:
    return [(0, Delta(0, (20 + number,), usage=USAGE, **piece)) for number, piece in enumerate(pieces)]


def ended(finish: Finish = STOP) -> list[tuple[int, Event]]:
    return [(0, Ended(0, finish, USAGE))]


def call(index: int, name: str, *arguments: str) -> list[dict[str, Any]]:
    first = {"tool_calls": (ToolCallDelta(index, name),)}
    return [first, *({"tool_calls": (ToolCallDelta(index, None, piece),)} for piece in arguments)]


def both(events: Any, more: dict[str, Any] | None = None) -> Any:
    """The response a stream ends in, which is the one a call without a stream gets."""
    body = {**BODY, **(more or {})}
    response = streamed(body, events)
    assert whole(DIALECT, body, events) == response
    return response


def kinds(events: Any, more: dict[str, Any] | None = None) -> list[str]:
    """The types of the events in between, without their common prefix."""
    out = numbered(b"".join(frames(DIALECT, {**BODY, **(more or {})}, events)))
    return [event["type"].removeprefix("response.") for event in out[2:-1]]


def test_a_message_is_opened_told_and_closed() -> None:
    events = deltas({"text": "Hi "}, {"text": "😀"}) + ended()
    assert kinds(events) == [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
    ]  # fmt: skip
    response = both(events)
    (item,) = response["output"]
    part = {"type": "output_text", "text": "Hi 😀", "annotations": [], "logprobs": []}
    assert item == {
        "id": item["id"], "type": "message", "role": "assistant", "status": "completed", "content": [part],
    }  # fmt: skip
    assert response["status"] == "completed"
    assert (response["error"], response["incomplete_details"]) == (None, None)


def test_an_event_is_its_type_then_its_data_of_one_line() -> None:
    out = frames(DIALECT, BODY, deltas({"text": "Hi\n"}) + ended())
    item_id = numbered(b"".join(out))[2]["item"]["id"]
    part = b'{"type":"output_text","text":"Hi\\n","annotations":[],"logprobs":[]}'
    assert out[4] == (
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"%b","output_index":0,'
        b'"content_index":0,"delta":"Hi\\n","logprobs":[]}\n\n' % item_id.encode()
    )
    assert out[7] == (
        b"event: response.output_item.done\n"
        b'data: {"type":"response.output_item.done","sequence_number":7,"output_index":0,"item":{"id":"%b",'
        b'"type":"message","role":"assistant","status":"completed","content":[%b]}}\n\n' % (item_id.encode(), part)
    )


def test_reasoning_is_content_unless_a_summary_was_asked_for() -> None:
    events = deltas({"reasoning": "h"}, {"reasoning": "m", "text": "Hi"}) + ended()
    assert kinds(events)[:7] == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
    ]  # fmt: skip
    first, second = both(events)["output"]
    assert (first["content"], first["summary"]) == ([{"type": "reasoning_text", "text": "hm"}], [])
    assert "encrypted_content" not in first
    assert second["type"] == "message"

    for asked in ({"summary": "auto"}, {"generate_summary": "detailed"}):
        assert kinds(events, {"reasoning": asked})[:7] == [
            "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
            "reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done",
            "output_item.done",
        ]  # fmt: skip
        first, _ = both(events, {"reasoning": asked})["output"]
        assert (first["content"], first["summary"]) == ([], [{"type": "summary_text", "text": "hm"}])


def test_reasoning_is_packed_for_those_who_ask() -> None:
    events = deltas({"reasoning": "hm 한글"}) + ended()
    (item,) = both(events, {"include": ["reasoning.encrypted_content"]})["output"]
    assert unpack(item["encrypted_content"]) == "hm 한글"


def test_calls_have_ids_of_their_own_that_never_change() -> None:
    events = deltas(*call(0, "look", '{"a"', ": 1}"), *call(1, "look", "{}"), *call(2, "patch", "{}")) + ended()
    first, second, third = both(events)["output"]
    assert [item["type"] for item in (first, second, third)] == ["function_call", "function_call", "custom_tool_call"]
    assert (first["name"], first["arguments"], second["arguments"], third["input"]) == ("look", '{"a": 1}', "{}", "")
    assert len({item["id"] for item in (first, second, third)}) == 3
    assert len({item["call_id"] for item in (first, second, third)}) == 3
    assert all(item["call_id"].startswith("call_") for item in (first, second, third))
    assert kinds(events)[:5] == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip


def test_no_two_responses_share_an_id() -> None:
    events = tuple(event for _, event in deltas({"text": "a"}, *call(0, "look", "{}")) + ended())
    ids: list[str] = []
    for request_id in ("a" * 32, "b" * 32):
        asked = DIALECT.parse(evolve(call_of({**BODY, "request_id": "mine"}), request_id=request_id), MODEL)
        response: Any = asked.encoder.body([Collected(PROMPT, events)])[1]
        said, look = response["output"]
        ids += said["id"], look["id"], look["call_id"]
    assert len(set(ids)) == 6


def test_a_done_call_says_its_name() -> None:
    out = numbered(b"".join(frames(DIALECT, BODY, deltas(*call(0, "look", "{}")) + ended())))
    (done,) = [event for event in out if event["type"] == "response.function_call_arguments.done"]
    assert (done["name"], done["arguments"]) == ("look", "{}")


def test_text_after_a_call_is_a_message_of_its_own() -> None:
    events = deltas({"text": "a"}, *call(0, "look", "{}"), {"text": "b"}, *call(1, "look", "{}")) + ended()
    assert shape(both(events)) == [("message", "a"), ("function_call", "{}"), ("message", "b"), ("function_call", "{}")]


def test_nothing_generated_is_no_item() -> None:
    assert both(ended())["output"] == []
    assert [item["type"] for item in both(deltas(*call(0, "look", "{}")) + ended())["output"]] == ["function_call"]


def test_a_tool_of_a_namespace_is_told_by_its_own_name() -> None:
    tools = [{"type": "namespace", "name": "git", "tools": [LOOK, PATCH]}]
    events = deltas(*call(0, "git__look", "{}"), *call(1, "git__patch", '{"input": "x"}')) + ended()
    items = both(events, {"tools": tools})["output"]
    assert [(item["type"], item["name"], item["namespace"]) for item in items] == [
        ("function_call", "look", "git"), ("custom_tool_call", "patch", "git"),
    ]  # fmt: skip


def test_a_call_of_a_tool_nobody_declared_is_told_as_it_is() -> None:
    (item,) = both(deltas(*call(0, "other", "{}")) + ended())["output"]
    assert (item["type"], item["name"]) == ("function_call", "other")
    assert "namespace" not in item


def test_without_parallel_calls_only_the_first_is_told() -> None:
    events = deltas(*call(0, "look", "{}"), *call(1, "look", "{}")) + ended()
    assert len(both(events, {"parallel_tool_calls": False})["output"]) == 1


# --- custom tools ---

ARGUMENTS = {
    '{"input": "a\\nb\\"c\\\\ \\ud83d\\ude00 é"}': 'a\nb"c\\ 😀 é',
    '{"input": ""}': "",
    '{"input": "a", "more": 1}': "a",
    '{"patch": "text"}': "text",
    '{"a": "b", "input": "c"}': "c",
    '{"a": 1, "b": 2}': '{"a": 1, "b": 2}',
    '{"input": 5}': '{"input": 5}',
    "{}": "",
    "": "",
    '{"inp': "",
    '{"input": "cut \\u00e': "cut ",
    '{"input": "\\ud800x\\udc00"}': "\ufffdx\ufffd",
    '{"input": "\\ud800\\u0041"}': "\ufffdA",
    '{"other": "cu': '{"other": "cu',
}


@pytest.mark.parametrize(("arguments", "text"), ARGUMENTS.items())
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_input_of_a_custom_tool_is_the_text_in_its_arguments_however_they_come(
    arguments: str, text: str, size: int
) -> None:
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    (item,) = both(deltas(*call(0, "patch", *pieces)) + ended())["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", text)


@given(st.text(max_size=12), st.booleans(), st.data())
@settings(deadline=None)
def test_any_text_reaches_a_custom_tool(text: str, ascii_only: bool, data: st.DataObject) -> None:
    encoded = json.dumps({"input": text}, ensure_ascii=ascii_only)
    cut = data.draw(st.integers(0, len(encoded)))
    (item,) = both(deltas(*call(0, "patch", encoded[:cut], encoded[cut:])) + ended())["output"]
    assert item["input"] == text


def test_the_input_of_a_custom_tool_is_told_as_it_comes() -> None:
    events = deltas(*call(0, "patch", '{"input": "a', "\\", 'nb"', "}")) + ended()
    out = numbered(b"".join(frames(DIALECT, BODY, events)))
    pieces = [event["delta"] for event in out if event["type"] == "response.custom_tool_call_input.delta"]
    assert pieces == ["a", "\nb"]


# --- ends ---


@pytest.mark.parametrize(
    ("pieces", "statuses"),
    [
        ([{"text": "a"}], ["incomplete"]),
        ([{"reasoning": "a"}], ["incomplete"]),
        ([{"reasoning": "a", "text": "b"}], ["completed", "incomplete"]),
        (call(0, "look", '{"a": '), ["incomplete"]),
        (call(0, "look", "{}"), ["completed"]),
        (call(0, "patch", '{"input": "a'), ["incomplete"]),
        (call(0, "patch", '{"input": "a"}'), ["completed"]),
        ([], []),
    ],
)
def test_a_length_limit_leaves_the_response_and_its_open_item_incomplete(pieces: Any, statuses: list[str]) -> None:
    response = both(deltas(*pieces) + ended(Finish("length")))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == statuses


def test_an_abort_fails_the_response_which_keeps_what_it_has() -> None:
    response = both(deltas({"reasoning": "a"}, {"text": "b"}) + ended(Finish("abort", message="Aborted by you")))
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "Aborted by you"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["usage"]["output_tokens"] == 9


def test_a_call_that_stops_before_its_end_is_incomplete() -> None:
    response = both(deltas(*call(0, "look", '{"a"')) + ended())
    assert (response["status"], response["output"][0]["status"]) == ("completed", "incomplete")


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        (Finish("error", message="/secret"), EngineFailure),
        (Finish("abort", message="Request waiting timeout reached.", status=503), Unavailable),
        (Finish("abort", message="no", status=400), RequestError),
        (Finish("abort", message="/secret", status=500), EngineFailure),
    ],
)
def test_an_end_that_is_an_error_is_raised(finish: Finish, kind: type[Exception]) -> None:
    encoder = parse(DIALECT, BODY).encoder
    with pytest.raises(kind):
        encoder.body([Collected(PROMPT, (Ended(0, finish, USAGE),))])
    encoder = parse(DIALECT, BODY).encoder
    with pytest.raises(kind):
        encoder.event(0, PROMPT, Ended(0, finish, USAGE))


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EngineFailure("/secret"), "server_error", "Internal server error"),
        (DeadlineExceeded(), "server_error", "Request running timeout reached."),
        (RequestError("bad"), "invalid_prompt", "bad"),
        (
            ContextOverflow("long", prompt_tokens=9, requested_tokens=None, context_tokens=8),
            "context_length_exceeded",
            "This model's maximum context length is 8 tokens. However, your input resulted in 9 tokens. "
            "Please shorten the input.",
        ),
    ],
)
def test_a_failed_stream_ends_in_a_response_with_the_items_that_were_done(
    error: Exception, code: str, message: str
) -> None:
    encoder = parse(DIALECT, {**BODY, "stream": True}).encoder
    out = encoder.start()
    for index, event in deltas({"reasoning": "a"}, {"text": "b"}):
        out += encoder.event(index, PROMPT, event)
    response = read(numbered(b"".join(out + encoder.failed(error))))
    assert response["status"] == "failed"
    assert response["error"] == {"code": code, "message": message}
    assert shape(response) == [("reasoning", "a")]


def test_a_stream_that_fails_at_once_has_no_usage() -> None:
    encoder = parse(DIALECT, {**BODY, "stream": True}).encoder
    response = read(numbered(b"".join(encoder.start() + encoder.failed(EngineFailure("x")))))
    assert (response["output"], response["usage"]) == ([], None)


def test_there_is_no_done_mark() -> None:
    out = frames(DIALECT, BODY, ended())
    with pytest.raises(AssertionError):
        values_of(out)


# --- the rest of the response ---


def test_usage_counts_cached_and_reasoning_tokens_too() -> None:
    assert both(deltas({"text": "a"}) + ended())["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 12,
    }


def test_the_response_tells_what_was_asked_and_what_was_taken() -> None:
    more: dict[str, Any] = {
        "instructions": "Be brief.", "max_output_tokens": 50, "metadata": {"a": "b"}, "model": "glm",
        "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}, "temperature": 0.5,
        "tool_choice": "none", "tools": [LOOK, {"type": "web_search", "extra": [1]}], "user": "me", "top_p": 0.5,
        "truncation": "auto", "parallel_tool_calls": False, "prompt_cache_key": "k", "max_tool_calls": 3,
    }  # fmt: skip
    response = both(deltas({"text": "a"}) + ended(), more)
    told = {name: response[name] for name in more}
    assert told == {**more, "text": {"format": {"type": "text"}, "verbosity": "low"}, "truncation": "disabled"}
    assert (response["id"], response["object"]) == ("resp_" + "f" * 32, "response")
    assert (response["store"], response["background"], response["previous_response_id"]) == (False, False, None)
    assert both(ended())["temperature"] == 0.8
    assert both(ended())["tool_choice"] == "auto"
    assert both(ended())["model"] == "glm"


def test_a_completed_response_says_when() -> None:
    parsed = DIALECT.parse(call_of({"input": "hi"}, elapsed_s=lambda: 2.7), MODEL)
    _, response = parsed.encoder.body([Collected(PROMPT, (Ended(0, STOP, USAGE),))])
    assert (response["created_at"], response["completed_at"]) == (1_700_000_000, 1_700_000_002)  # type: ignore[index]


# --- streams and whole answers ---


@given(scripts(chat=True), st.sampled_from([{}, {"reasoning": {"summary": "auto"}}, {"parallel_tool_calls": False}]),
       st.data())  # fmt: skip
@settings(deadline=None)
def test_a_stream_of_any_steps_ends_in_the_whole_answer(script: Script, more: dict[str, Any], data: Any) -> None:
    by_choice = [(0, 0, script)]
    answer = whole(DIALECT, {**BODY, **more}, one_by_one(by_choice))
    split = data.draw(splits(by_choice))
    assert whole(DIALECT, {**BODY, **more}, split) == answer == streamed({**BODY, **more}, split)
    assert all(text_of(item) for item in answer["output"] if item["type"] in ("message", "reasoning"))
