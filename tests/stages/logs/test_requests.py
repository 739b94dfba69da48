"""A line for every generation call, by level, from the whole application on a virtual clock."""

import json
import logging
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from stages.logs.handler import entry_of
from stages.logs.lines import line_of
from stages.logs.transcript import CUT_CHARACTERS, ELLIPSIS, Text, _written
from tests.scripted.script import call, encoded, script
from tests.scripted.server import Exchange, by_choice, scripted_server

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Say hello"}]}
WORDS = script("hm</think>Hello there")
NUM_WORDS = len(WORDS.ids)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "trnrt.requests")

    def lines() -> list[dict[str, Any]]:
        entries = [entry_of(record) for record in caplog.records if record.name == "trnrt.requests"]
        return [json.loads(line_of(entry, "json")) for entry in entries]

    return lines


async def test_at_level_0_a_line_has_the_counts_and_the_times_of_its_call_and_no_text(said, autojump_clock):
    async with scripted_server(by_choice([WORDS]), prefill_s=3.0, gap_s=0.5, cached_tokens=2) as server:
        server.serving.logs.change(requests=True)
        await server.post(CHAT, {**HELLO, "stream": True}, {"x-request-id": "mine", "traceparent": TRACE})
        prompt_tokens = len(server.engine.submits[0].prompt_ids)
    (line,) = said()
    assert line.pop("time")
    assert line == {
        "level": "info",
        "logger": "trnrt.requests",
        "message": "Finish",
        "request_id": "mine",
        "route": CHAT,
        "model": server.serving.services.model.served_model_name,
        "stream": True,
        "n": 1,
        "outcome": "stop",
        "status": 200,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": 2,
        "completion_tokens": NUM_WORDS,
        "reasoning_tokens": len(encoded("hm</think>")),
        "retractions": 0,
        "e2e_s": 3.0 + 0.5 * (NUM_WORDS - 1),
        "ttft_s": 3.0,
        "ingress_s": 0.0,
        "prompt_s": 0.0,
        "engine_s": 3.0,
        "decode_s": 0.5 * (NUM_WORDS - 1),
        "deliver_s": 0.0,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


async def test_at_level_1_it_has_the_sampling_parameters_too_and_still_no_text(said, autojump_clock):
    async with scripted_server(by_choice([WORDS])) as server:
        server.serving.logs.change(requests=True, requests_level=1)
        await server.post(CHAT, {**HELLO, "temperature": 0.25, "max_tokens": 99, "stop": ["secret word"], "n": 2})
    (line,) = said()
    sampling = line["sampling"]
    assert (sampling["temperature"], sampling["max_new_tokens"], sampling["n"]) == (0.25, 99, 2)
    assert "Say hello" not in json.dumps(line)
    assert "Hello there" not in json.dumps(line)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("level", [2, 3])
async def test_at_level_2_it_has_what_was_asked_and_answered(said, autojump_clock, level, stream):
    answers = [WORDS, script("so</think>" + call(s="Paris"))]
    async with scripted_server(by_choice(answers)) as server:
        server.serving.logs.change(requests=True, requests_level=level)
        tools = [{"type": "function", "function": {"name": "f"}}]
        await server.post(CHAT, {**HELLO, "n": 2, "stream": stream, "tools": tools})
    (line,) = said()
    assert len(line["prompts"]) == 1
    assert "Say hello" in line["prompts"][0]
    first, second = line["answers"]
    assert first == {"reasoning": "hm", "text": "Hello there"}
    assert second["reasoning"] == "so"
    assert second["tool_calls"].startswith("f: ")
    assert json.loads(second["tool_calls"].removeprefix("f: ")) == {"s": "Paris"}


@pytest.mark.parametrize(("level", "is_whole"), [(2, False), (3, True)])
async def test_long_texts_are_cut_in_their_middle_at_level_2_and_whole_at_level_3(
    said, autojump_clock, level, is_whole
):
    question = "".join(f"question {number} " for number in range(400))
    answer = script("</think>" + "word " * 600 + "end")
    async with scripted_server(by_choice([answer]), cuts=(50,)) as server:
        server.serving.logs.change(requests=True, requests_level=level)
        await server.post("/v1/completions", {"prompt": question, "max_tokens": 5000})
        await server.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1})
    first, second = said()
    assert (first["prompts"][0] == question) == is_whole
    assert (ELLIPSIS in first["prompts"][0]) == (not is_whole)
    (told,) = first["answers"]
    texts = [first["prompts"][0], *told.values()]
    if not is_whole:
        assert all(len(text) <= CUT_CHARACTERS + len(ELLIPSIS) for text in texts)
        assert first["prompts"][0].startswith("question 0 ")
        assert first["prompts"][0].endswith("question 399 ")
    assert any("end" in text for text in told.values())
    assert second["prompts"] == ["1 2 3 "]


async def test_a_call_that_is_refused_is_a_line_with_its_cause(said, autojump_clock):
    async with scripted_server(by_choice([WORDS]), max_choices=0) as server:
        server.serving.logs.change(requests=True, requests_level=3)
        await server.post(CHAT, b"{")
        await server.post(CHAT, HELLO)
    told = [(line["outcome"], line["status"], line["cause"]) for line in said()]
    assert told == [("refused", 400, "invalid"), ("refused", 503, "queue_full")]
    assert "queue_s" not in said()[0]


async def test_a_client_that_leaves_is_a_line_with_what_it_got(said, autojump_clock):
    async with scripted_server(by_choice([WORDS])) as server, trio.open_nursery() as nursery:
        server.serving.logs.change(requests=True, requests_level=2)
        exchange = Exchange()
        body = json.dumps({**HELLO, "stream": True}).encode()
        nursery.start_soon(exchange.run, server.app, CHAT, body, {"content-type": "application/json"}, "POST")
        await trio.sleep(2.5)
        exchange.left.set()
    (line,) = said()
    assert (line["outcome"], line["completion_tokens"], line["answers"]) == ("disconnected", 2, [{"reasoning": "hm"}])


async def test_what_is_logged_does_not_change_what_is_answered(said, autojump_clock):
    bodies: dict[bool, list[bytes]] = {}
    for is_logged in (False, True):
        async with scripted_server(by_choice([WORDS])) as server:
            server.serving.logs.change(requests=is_logged, requests_level=3)
            exchanges = [await server.post(CHAT, {**HELLO, "stream": stream}) for stream in (False, True)]
            bodies[is_logged] = [exchange.body for exchange in exchanges]
    assert bodies[False] == bodies[True]
    assert len(said()) == 2


async def test_lines_of_requests_may_have_a_form_of_their_own(autojump_clock, caplog):
    caplog.set_level(logging.INFO, "trnrt.requests")
    async with scripted_server(by_choice([WORDS])) as server:
        for form in ("json", "text", "auto"):
            server.serving.logs.change(requests=True, requests_format=form)
            await server.post(CHAT, HELLO)
    assert [entry_of(record).format for record in caplog.records] == ["json", "text", None]


async def test_nothing_is_a_line_where_none_is_wanted(said, autojump_clock):
    async with scripted_server(by_choice([WORDS])) as server:
        server.serving.logs.change(requests_level=3)
        await server.post(CHAT, HELLO)
    assert said() == []


def test_a_prompt_of_many_ids_is_cut_as_its_text_would_be():
    ids = tuple(range(9 * CUT_CHARACTERS))
    whole = "".join(f"{token_id} " for token_id in ids)
    half = CUT_CHARACTERS // 2
    assert _written(ids, CUT_CHARACTERS) == whole[:half] + ELLIPSIS + whole[-half:]
    assert _written(ids, None) == whole


@given(st.lists(st.text(max_size=30)), st.sampled_from([2, 8, 20]))
def test_a_text_keeps_its_beginning_and_its_end(pieces, most):
    whole = "".join(pieces)
    text = Text(most)
    for piece in pieces:
        text.add(piece)
    half = most // 2
    assert str(text) == (whole if len(whole) <= most else whole[:half] + ELLIPSIS + whole[-half:])
    assert text.num_characters == min(len(whole), most)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_text_is_cut_the_same_however_it_came(size):
    whole = "".join(str(number % 10) for number in range(97))
    text = Text(20)
    for start in range(0, len(whole), size):
        text.add(whole[start : start + size])
    assert str(text) == whole[:10] + ELLIPSIS + whole[-10:]
    short = Text(20)
    for letter in whole[:20]:
        short.add(letter)
    assert str(short) == whole[:20]
