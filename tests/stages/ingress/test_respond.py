"""Calls on a virtual clock: what goes out, when, and what is freed."""

from collections.abc import Iterable
from typing import Any

import pytest
import trio
from attrs import evolve

from stages.errors import EngineFailure, QueueFull, RemoteFailure
from stages.ingress.dialect import Call, Parsed
from stages.ingress.respond import Serving, describe, respond
from stages.messages import Delta, Ended, Finish, Submit, Usage
from stages.settings import IngressSettings
from tests.fakes import (
    FAKE_MODEL,
    TEXT_DIALECT,
    FakeEngine,
    Fakes,
    FakeWire,
    Script,
    Step,
    counting,
    fake_services,
    parse_text_call,
    silent,
)


def call(**body: Any) -> Parsed:
    return parse_text_call(Call({"prompts": ["hi"], **body}, {}, "/text", "r1", 0), FAKE_MODEL)


def serving(fakes: Fakes, **settings: Any) -> Serving:
    return Serving(fakes.services, IngressSettings(**settings))


async def answer(parsed: Parsed, script: Script, **settings: Any) -> tuple[FakeWire, Fakes]:
    wire = FakeWire()
    async with fake_services(script) as fakes:
        await respond(parsed, TEXT_DIALECT, "id", serving(fakes, **settings), wire)
        assert not fakes.engine.running
    return wire, fakes


async def test_a_stream_is_status_then_a_frame_as_each_token_arrives_then_the_terminator(autojump_clock: Any) -> None:
    wire, fakes = await answer(call(stream=True), counting(3, delay_s=2.0))
    assert (wire.status, wire.headers["content-type"], wire.ended) == (200, "text/event-stream; charset=utf-8", True)
    assert wire.chunks == [
        b"data: start\n\n",
        b"data: 0/0 0 \n\n",
        b"data: 0/0 1 \n\n",
        b"data: 0/0 2 \n\ndata: 0/0 ended length\n\ndata: [DONE]\n\n",
    ]
    assert [round(instant) for instant in wire.instants_s] == [0, 2, 4, 6]
    assert fakes.engine.cancelled == []


async def test_a_body_is_sent_whole_with_its_length(autojump_clock: Any) -> None:
    wire, _ = await answer(call(n=2), counting(3))
    assert (wire.status, wire.json, wire.ended) == (200, {"texts": ["0 0 1 1 2 2 "]}, True)
    assert wire.headers["content-length"] == str(len(wire.text))


async def test_events_that_arrive_while_a_write_is_slow_go_out_in_one_chunk(autojump_clock: Any) -> None:
    wire = FakeWire(write_s=9.7)
    async with fake_services(counting(20)) as fakes:
        await respond(call(stream=True), TEXT_DIALECT, "id", serving(fakes), wire)
    assert len(wire.chunks) == 4
    assert wire.text.count("data: 0/0") == 21


async def test_a_batch_runs_at_once_and_interleaves_with_indices(autojump_clock: Any) -> None:
    start_s = trio.current_time()
    wire, _ = await answer(call(stream=True, prompts=["a", "b", "c"], n=2), counting(2, delay_s=5.0))
    assert trio.current_time() - start_s == 10.0
    lines = wire.text.split("\n\n")
    for index in range(3):
        for choice in range(2):
            of_choice = [line for line in lines if line.startswith(f"data: {index}/{choice} ")]
            assert [line.split(" ")[2] for line in of_choice] == ["0", "1", "ended"]
    assert lines[-2:] == ["data: [DONE]", ""]


async def test_a_batch_that_is_not_streamed_lists_its_asks_in_order(autojump_clock: Any) -> None:
    def script(submit: Submit) -> Iterable[Step]:
        delay_s = 10.0 - len(submit.prompt_ids)
        yield delay_s, Delta(0, (1,), f"{len(submit.prompt_ids)}")
        yield 0.0, Ended(0, Finish("stop"), Usage(1, 1))

    wire, _ = await answer(call(prompts=["a", "bb", "ccc"]), script)
    assert wire.json == {"texts": ["1", "2", "3"]}


async def test_a_refused_prompt_is_a_400_before_any_frame(autojump_clock: Any) -> None:
    for stream in (False, True):
        wire, fakes = await answer(call(stream=stream, prompts=["unrenderable"]), silent)
        assert (wire.status, wire.json["error"]["param"]) == (400, "prompt")
        assert fakes.engine.submits == []


async def test_one_refused_prompt_refuses_its_batch_and_frees_the_others(autojump_clock: Any) -> None:
    for stream in (False, True):
        wire, fakes = await answer(call(stream=stream, prompts=["fine", "unrenderable", "good"]), silent)
        assert wire.status == 400
        assert fakes.engine.running == {}
        assert len(fakes.engine.cancelled) == len(fakes.engine.submits)


async def test_a_dialect_may_ask_for_refusals_inside_a_200_stream(autojump_clock: Any) -> None:
    parsed = call(stream=True, prompts=["unrenderable"], errors_in_stream=True)
    wire, _ = await answer(parsed, silent)
    assert wire.status == 200
    assert wire.text == "data: error This prompt cannot be rendered.\n\ndata: [DONE]\n\n"
    assert wire.ended


async def test_a_call_without_asks_runs_its_encoder_alone(autojump_clock: Any) -> None:
    wire, fakes = await answer(call(stream=True, prompts=[]), silent)
    assert (wire.status, wire.text, wire.ended) == (200, "data: start\n\ndata: [DONE]\n\n", True)
    wire, fakes = await answer(call(prompts=[]), silent)
    assert wire.json == {"texts": []}
    assert fakes.engine.submits == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("errors_in_stream", [False, True])
async def test_a_full_queue_is_a_503_with_its_headers(
    stream: bool, errors_in_stream: bool, autojump_clock: Any
) -> None:
    wire = FakeWire()
    async with fake_services(silent, max_choices=1) as fakes:
        await respond(
            call(stream=stream, n=2, errors_in_stream=errors_in_stream), TEXT_DIALECT, "id", serving(fakes), wire
        )
    assert wire.status == 503
    assert wire.headers["retry-after"] == "1"
    assert wire.headers["x-trnrt-queue-full"] == "1"
    assert wire.json["error"] == {
        "message": "The request queue is full.",
        "type": "service_unavailable_error",
        "param": None,
        "code": "server_is_overloaded",
    }


async def test_a_drain_is_a_503_without_the_queue_full_mark(autojump_clock: Any) -> None:
    wire = FakeWire()
    async with fake_services(silent) as fakes:
        fakes.engine.draining = True
        await respond(call(stream=True), TEXT_DIALECT, "id", serving(fakes), wire)
    assert (wire.status, wire.headers["retry-after"]) == (503, "1")
    assert "x-trnrt-queue-full" not in wire.headers


def fails_after_two(submit: Submit) -> Iterable[Step]:
    yield 1.0, Delta(0, (1,), "a")
    yield 1.0, Delta(0, (2,), "b")
    yield 1.0, Ended(0, Finish("error", message="device lost"), Usage(1, 2))


async def test_a_failure_in_a_stream_is_an_error_frame_then_the_terminator(autojump_clock: Any) -> None:
    wire, _ = await answer(call(stream=True), fails_after_two)
    assert wire.status == 200
    assert wire.text.endswith("data: 0/0 b\n\ndata: error Internal server error\n\ndata: [DONE]\n\n")
    assert wire.ended


async def test_what_came_in_the_same_wake_as_a_failure_is_sent_before_it(autojump_clock: Any) -> None:
    def fails_at_once(submit: Submit) -> Iterable[Step]:
        yield 1.0, Delta(0, (1,), "a")
        yield 0.0, Ended(0, Finish("error", message="device lost"), Usage(1, 1))

    wire, _ = await answer(call(stream=True), fails_at_once)
    assert wire.text.endswith("data: 0/0 a\n\ndata: error Internal server error\n\ndata: [DONE]\n\n")


async def test_a_failure_without_a_stream_is_a_500_that_tells_nothing(autojump_clock: Any) -> None:
    wire, _ = await answer(call(), fails_after_two)
    assert (wire.status, wire.json["error"]["message"]) == (500, "Internal server error")
    assert wire.json["error"]["type"] == "server_error"


@pytest.mark.parametrize("prompts", [["a"], ["a", "b"]])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_mailbox_cut_off_early_is_a_failure(prompts: list[str], stream: bool, autojump_clock: Any) -> None:
    def cut_off(submit: Submit) -> Iterable[Step]:
        yield 1.0, Delta(0, (1,), "a")
        submit.mailbox.close()
        yield 1.0, Ended(0, Finish("stop"), Usage(1, 1))

    wire, _ = await answer(call(prompts=prompts, stream=stream), cut_off)
    assert "Internal server error" in wire.text
    assert wire.status == (200 if stream else 500)


async def test_an_unexpected_exception_is_logged_and_told_as_a_generic_500(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenEngine(FakeEngine):
        def submit(self, submits: tuple[Submit, ...]) -> None:
            raise ZeroDivisionError("secret path /etc")

    wire = FakeWire()
    async with fake_services(silent) as fakes:
        services = evolve(fakes.services, engine=BrokenEngine(fakes.engine.nursery, silent))
        await respond(call(), TEXT_DIALECT, "id", Serving(services, IngressSettings()), wire)
    assert wire.status == 500
    assert "secret" not in wire.text
    assert "secret path /etc" in caplog.text


@pytest.mark.parametrize(
    ("failure", "has_traceback"), [(EngineFailure("a prompt broke"), True), (RemoteFailure("the engine broke"), False)]
)
async def test_what_a_stage_failed_with_is_logged_where_the_call_is_known(
    failure: EngineFailure, has_traceback: bool, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenEngine(FakeEngine):
        def submit(self, submits: tuple[Submit, ...]) -> None:
            raise failure from KeyError("deep inside")

    wire = FakeWire()
    async with fake_services(silent) as fakes:
        services = evolve(fakes.services, engine=BrokenEngine(fakes.engine.nursery, silent))
        await respond(call(), TEXT_DIALECT, "id", Serving(services, IngressSettings()), wire)
    assert caplog.messages == [f"a request failed: {failure}"], "once"
    assert ("deep inside" in caplog.text) == has_traceback


@pytest.mark.parametrize(("own_s", "server_s", "expected_s"), [(5.0, None, 5.0), (None, 7.0, 7.0), (9.0, 4.0, 4.0)])
async def test_a_deadline_is_a_503_and_a_cancel(
    own_s: float | None, server_s: float | None, expected_s: float, autojump_clock: Any
) -> None:
    start_s = trio.current_time()
    wire, fakes = await answer(call(timeout_s=own_s), silent, request_timeout_s=server_s)
    assert trio.current_time() - start_s == expected_s
    assert (wire.status, wire.json["error"]["message"]) == (503, "Request running timeout reached.")
    assert len(fakes.engine.cancelled) == 1


async def test_a_deadline_in_a_stream_is_an_error_frame_and_a_cancel(autojump_clock: Any) -> None:
    wire, fakes = await answer(call(stream=True, timeout_s=2.5), counting(9))
    assert wire.text.endswith("data: 0/0 1 \n\ndata: error Request running timeout reached.\n\ndata: [DONE]\n\n")
    assert wire.ended
    assert len(fakes.engine.cancelled) == 1


async def test_a_deadline_counts_while_the_prompt_is_rendered(autojump_clock: Any) -> None:
    wire = FakeWire()
    async with fake_services(silent, render_s=60.0) as fakes:
        await respond(call(timeout_s=3.0), TEXT_DIALECT, "id", serving(fakes), wire)
    assert wire.status == 503
    assert fakes.engine.submits == []


async def test_silence_is_broken_by_pings_at_the_exact_instants(autojump_clock: Any) -> None:
    def script(submit: Submit) -> Iterable[Step]:
        yield 40.0, Delta(0, (1,), "late")
        yield 10.0, Delta(0, (2,), "soon")
        yield 10.0, Ended(0, Finish("stop"), Usage(1, 2))

    wire, _ = await answer(call(stream=True), script, sse_ping_s=15.0)
    pings = [round(at) for at, chunk in zip(wire.instants_s, wire.chunks, strict=True) if chunk == b": ping\n\n"]
    assert pings == [15, 30]


async def test_the_cutoff_ends_a_stream_with_its_error_frame_and_a_body_with_503(autojump_clock: Any) -> None:
    for stream in (True, False):
        wire = FakeWire()
        async with fake_services(silent) as fakes, trio.open_nursery() as nursery:
            shared = serving(fakes)
            nursery.start_soon(respond, call(stream=stream), TEXT_DIALECT, "id", shared, wire)
            await trio.sleep(5.0)
            shared.cutoff.set()
        assert "The server is shutting down." in wire.text
        assert wire.ended
        assert wire.status == (200 if stream else 503)
        assert len(fakes.engine.cancelled) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [["a"], ["a", "b", "c"]])
async def test_a_client_that_leaves_cancels_every_choice(stream: bool, prompts: list[str], autojump_clock: Any) -> None:
    wire = FakeWire()
    async with fake_services(counting(100)) as fakes:
        shared = serving(fakes)
        with trio.move_on_after(5.5):
            await respond(call(stream=stream, n=2, prompts=prompts), TEXT_DIALECT, "id", shared, wire)
        assert fakes.engine.running == {}
        assert len(fakes.engine.cancelled) == len(prompts)
        assert shared.live_ids == set()
    assert not wire.ended


async def test_a_request_id_that_is_live_is_refused_and_free_again_afterwards(autojump_clock: Any) -> None:
    async with fake_services(counting(3)) as fakes, trio.open_nursery() as nursery:
        shared = serving(fakes)
        first, second, third = FakeWire(), FakeWire(), FakeWire()
        nursery.start_soon(respond, call(rid="mine"), TEXT_DIALECT, "id", shared, first)
        await trio.sleep(1.5)
        await respond(call(rid="mine"), TEXT_DIALECT, "id", shared, second)
        await trio.sleep(5.0)
        await respond(call(rid="mine"), TEXT_DIALECT, "id", shared, third)
    assert (first.status, second.status, third.status) == (200, 400, 200)
    assert second.json["error"]["message"] == "Duplicate request ID detected: mine_0"


def test_engine_failures_hide_their_text() -> None:
    status, told, headers = describe(EngineFailure("secret"))
    assert (status, headers) == (500, {})
    assert "secret" not in str(TEXT_DIALECT.error(told, status, "id"))


async def test_a_client_that_leaves_as_its_call_is_refused_is_only_cancelled(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = trio.CancelScope()

    def leave_and_refuse(self: FakeEngine, submits: tuple[Submit, ...]) -> None:
        scope.cancel()
        raise QueueFull

    monkeypatch.setattr(FakeEngine, "submit", leave_and_refuse)
    async with fake_services(silent) as fakes:
        with scope:
            await respond(call(), TEXT_DIALECT, "id", serving(fakes), FakeWire())
        assert scope.cancelled_caught
