"""Large bodies are read, and large answers written, beside the event loop, a few at a time."""

import gc
import threading
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from stages.errors import InvalidRequest, QueueFull
from stages.ingress.aside import MAX_AT_ONCE, MAX_WAITING, Aside
from stages.ingress.body import LARGE_BODY_BYTES, MAX_BRACKETS, MAX_COMMAS, parse_object
from stages.ingress.dialect import Call, Dialect, Parsed, Route
from stages.ingress.dialects.choices import Tally
from stages.ingress.dialects.common import repeated
from stages.messages import Ended, Finish, Usage
from stages.settings import ModelSettings
from tests.fakes import counting, parse_text_call
from tests.stages.ingress.http import ask, connected, running


async def test_so_many_are_read_at_once_so_many_wait_and_one_more_is_refused() -> None:
    aside, release = Aside(), threading.Event()
    done: list[bool] = []

    async def read() -> None:
        done.append(await aside.read(release.wait))

    async with trio.open_nursery() as nursery:
        for _ in range(MAX_AT_ONCE + MAX_WAITING):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert aside.readers.borrowed_tokens == MAX_AT_ONCE
        with pytest.raises(QueueFull):
            await aside.read(release.wait)
        assert await aside.write(lambda: "an answer is not refused") == "an answer is not refused"
        release.set()
    assert done == [True] * (MAX_AT_ONCE + MAX_WAITING)
    assert aside.readers.borrowed_tokens == 0


async def test_the_collector_rests_until_the_last_is_done_even_one_that_failed() -> None:
    aside, release = Aside(), threading.Event()

    def fail() -> None:
        release.wait()
        raise ValueError

    async def read() -> None:
        with pytest.raises(ValueError):
            await aside.read(fail)

    assert gc.isenabled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await aside.write(lambda: None)
        assert not gc.isenabled()
        release.set()
    assert gc.isenabled()


async def test_a_refusal_keeps_nothing_of_what_was_refused() -> None:
    def refuse() -> None:
        try:
            raise KeyError("x")
        except KeyError:
            raise InvalidRequest("It is wrong.", "field") from None

    with pytest.raises(InvalidRequest) as caught:
        await Aside().read(refuse)
    error = caught.value
    assert (error.param, error.__context__, error.__cause__) == ("field", None, None)
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "refuse" not in frames


async def test_a_large_body_is_read_on_another_thread_and_a_small_one_is_not() -> None:
    threads: list[bool] = []

    def parse(call: Call, model: ModelSettings) -> Parsed:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse_text_call(call, model)

    dialect = Dialect("text", (Route("/text"),), parse, lambda error, status, name: {"error": str(error)})
    small: dict[str, Any] = {"prompts": ["x"], "max_tokens": 1}
    async with running(counting(1, 0.0), dialects=[dialect]) as server:
        for body in (small, {**small, "padding": "x" * LARGE_BODY_BYTES}):
            assert (await ask(server.port, "/text", body)).json == {"texts": ["0 "]}
    assert threads == [True, False]


async def test_a_large_body_of_an_admin_route_is_read_too() -> None:
    async with running(counting(1, 0.0)) as server:
        reply = await ask(server.port, "/close_session", {"session_id": "x", "padding": ["x"] * LARGE_BODY_BYTES})
        assert reply.status == 200
        reply = await ask(server.port, "/close_session", {"session_id": 7, "padding": ["x"] * LARGE_BODY_BYTES})
        assert (reply.status, "session_id" in reply.json["message"]) == (400, True)


async def test_a_stream_goes_on_while_a_large_body_is_read() -> None:
    reading, release = threading.Event(), threading.Event()

    def parse(call: Call, model: ModelSettings) -> Parsed:
        if "padding" in call.body:
            reading.set()
            assert release.wait(60)
        return parse_text_call(call, model)

    dialect = Dialect("text", (Route("/text"),), parse, lambda error, status, name: {"error": str(error)})
    async with running(counting(1000, 0.001), dialects=[dialect]) as server, trio.open_nursery() as nursery:
        padded = {"prompts": ["x"], "max_tokens": 1, "padding": "x" * LARGE_BODY_BYTES}
        nursery.start_soon(ask, server.port, "/text", padded)
        await trio.to_thread.run_sync(reading.wait)
        async with connected(server.port) as client:
            await client.post("/text", {"prompts": ["x"], "stream": True, "max_tokens": 50})
            reply = await client.reply()
        release.set()
    assert b"49" in reply.body


async def test_a_large_answer_is_the_same_as_a_small_one() -> None:
    async with running(counting(5000, 0.0)) as server:
        reply = await ask(server.port, "/text", {"prompts": ["x"], "max_tokens": 4000})
        assert reply.json == {"texts": ["".join(f"{index} " for index in range(4000))]}
        reply = await ask(server.port, "/text", {"prompts": ["x", "y", "z"], "max_tokens": 2000})
        assert [len(text.split()) for text in reply.json["texts"]] == [2000] * 3


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"a": [[]] * MAX_BRACKETS}, "brackets"),
        ({"a": "{" * MAX_BRACKETS}, "brackets"),
        ({"a": [1] * (MAX_COMMAS + 2)}, "commas"),
    ],
)
def test_a_body_of_more_than_can_be_freed_in_short_is_refused(body: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        parse_object(orjson.dumps(body))


def test_counts_of_thousands_of_prompts_are_those_of_each_ones_first_choice() -> None:
    counts = Tally()
    for index in range(3):
        for choice in (1, 0, 2):
            counts.add(index, 10, Ended(choice, Finish("stop"), Usage(10, 5, cached_tokens=choice + 7)))
    total = counts.total()
    assert (total.prompt_tokens, total.completion_tokens, total.cached_tokens) == (30, 45, 21)


def test_names_that_come_twice_are_told_once_in_order() -> None:
    assert repeated(["b", "a", "b", "c", "a", "b"]) == ["a", "b"]
