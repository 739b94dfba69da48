"""Calls that generate nothing, on a virtual clock: what goes to the prompt stage, and what ends the wait for it."""

from collections.abc import Sequence
from typing import Any

import trio

from stages.errors import InvalidRequest
from stages.ingress.dialect import Lookup
from stages.ingress.respond import Serving, answer_lookup
from stages.messages import Prompt, Render, WorkDone
from stages.request import Services
from stages.settings import IngressSettings
from tests.fakes import FAKE_MODEL, TEXT_DIALECT, FakeEngine, FakeWire, fake_services, silent


def counts(done: Sequence[WorkDone]) -> object:
    return [len(prompt.token_ids) for prompt in done if isinstance(prompt, Prompt)]


async def answer(lookup: Lookup, render_s: float = 0.0, **settings: Any) -> FakeWire:
    wire = FakeWire()
    async with fake_services(silent, render_s=render_s) as fakes:
        await answer_lookup(lookup, TEXT_DIALECT, "id", Serving(fakes.services, IngressSettings(**settings)), wire)
        assert fakes.engine.submits == []
    assert wire.ended
    return wire


async def test_the_answers_come_in_the_order_of_the_works(autojump_clock: Any) -> None:
    wire = await answer(Lookup(("a", "bc", (1, 2, 3)), counts))
    assert (wire.status, wire.json) == (200, [1, 2, 3])


async def test_no_work_at_all_is_answered_at_once(autojump_clock: Any) -> None:
    assert (await answer(Lookup((), lambda done: {"fine": True}))).json == {"fine": True}


async def test_the_first_refusal_is_the_answer(autojump_clock: Any) -> None:
    wire = await answer(Lookup(("a", "unrenderable", "b"), counts))
    assert (wire.status, wire.json["error"]["message"]) == (400, "This prompt cannot be rendered.")


async def test_a_body_that_cannot_be_made_is_refused_too(autojump_clock: Any) -> None:
    def refuse(done: Sequence[WorkDone]) -> object:
        raise InvalidRequest("No.", "field")

    assert (await answer(Lookup((), refuse))).status == 400


async def test_a_deadline_is_a_503(autojump_clock: Any) -> None:
    wire = await answer(Lookup(("a", "b"), counts), render_s=3.0, request_timeout_s=5.0)
    assert wire.status == 503
    assert wire.json["error"]["message"] == "Request running timeout reached."


async def test_the_cutoff_is_a_503(autojump_clock: Any) -> None:
    wire = FakeWire()
    async with fake_services(silent, render_s=60.0) as fakes, trio.open_nursery() as nursery:
        serving = Serving(fakes.services, IngressSettings())
        nursery.start_soon(answer_lookup, Lookup(("a",), counts), TEXT_DIALECT, "id", serving, wire)
        await trio.sleep(1)
        serving.cutoff.set()
    assert (wire.status, wire.json["error"]["message"]) == (503, "The server is shutting down.")
    assert trio.current_time() < 60


async def test_a_full_prompt_stage_is_a_full_queue(autojump_clock: Any) -> None:
    wire = FakeWire()
    send, receive = trio.open_memory_channel[Render](0)
    async with trio.open_nursery() as nursery:
        services = Services(FakeEngine(nursery, silent), send, FAKE_MODEL)
        await answer_lookup(Lookup(("a",), counts), TEXT_DIALECT, "id", Serving(services, IngressSettings()), wire)
    receive.close()
    send.close()
    assert (wire.status, wire.headers["x-trnrt-queue-full"]) == (503, "1")


async def test_prompts_of_others_come_between_two_works(autojump_clock: Any) -> None:
    seen: list[Any] = []
    send, receive = trio.open_memory_channel[Render](8)

    async def stage() -> None:
        async for render in receive:
            await trio.sleep(1)
            seen.append(render.prompt)
            render.reply.send_nowait(Prompt((1,), in_reasoning=False))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage)
        serving = Serving(Services(FakeEngine(nursery, silent), send, FAKE_MODEL), IngressSettings())
        wires = [FakeWire(), FakeWire()]
        nursery.start_soon(answer_lookup, Lookup(("a", "b", "c"), counts), TEXT_DIALECT, "1", serving, wires[0])
        await trio.sleep(0.5)
        nursery.start_soon(answer_lookup, Lookup(("x",), counts), TEXT_DIALECT, "2", serving, wires[1])
        await trio.sleep(10)
        send.close()
    assert seen == ["a", "x", "b", "c"]
