"""Deltas written from within the mailbox: what the task takes over, and what reaches the connection as one write."""

import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

import stages.ingress.hardening as hardening
from stages.channels import open_mailbox
from stages.ingress.feed import SingleFeed
from stages.ingress.hardening import DIRECT_WRITER, HardenedTCPServer
from stages.ingress.respond import Serving, respond
from stages.ingress.sink import DirectFeed
from stages.ingress.wire import AsgiWire
from stages.messages import Ask, Delta, Ended, Event, Finish, Prompt, Submit, Usage
from stages.request import Answer
from stages.settings import IngressSettings
from tests.fakes import (
    TEXT_DIALECT,
    DirectWire,
    Step,
    TextEncoder,
    counting,
    fake_services,
)
from tests.stages.ingress.http import ask, connected, running
from tests.stages.ingress.test_respond import call
from tests.stages.ingress.test_tls import TLS, secured

PROMPT = Prompt((1,), in_reasoning=False)
PLENTY = 1 << 30


def delta(text: str) -> Delta:
    return Delta(0, (1,), text)


async def started(room: int, write_s: float = 0.0) -> tuple[DirectWire, Any, DirectFeed]:
    """A stream that was begun, its mailbox, and its feed; the wire takes so many bytes of a piece at once."""
    wire = DirectWire(lambda: room, write_s)
    await wire.start(200, {})
    mailbox, events = open_mailbox(64, 1)
    feed = SingleFeed(Answer(Ask("r", "hi"), PROMPT, events, mailbox))
    return wire, mailbox, DirectFeed(feed, TextEncoder(), wire)


async def test_a_delta_is_on_the_wire_when_its_sender_goes_on(autojump_clock: Any) -> None:
    wire, mailbox, feed = await started(PLENTY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.next)
        await trio.testing.wait_all_tasks_blocked()
        mailbox.send_nowait(delta("a"))
        assert wire.text == "data: 0/0 a\n\n"
        nursery.cancel_scope.cancel()


async def test_a_call_cancelled_in_the_middle_of_a_chunk_still_finishes_the_chunk(autojump_clock: Any) -> None:
    wire, mailbox, feed = await started(3, write_s=1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.next)
        await trio.testing.wait_all_tasks_blocked()
        # The task has been cancelled but has not run yet: the mailbox still has its sink.
        nursery.cancel_scope.cancel()
        mailbox.send_nowait(delta("a"))
        assert wire.text == "dat"
    assert wire.text == "data: 0/0 a\n\n"


async def test_while_somebody_else_is_writing_a_delta_waits_for_the_task(autojump_clock: Any) -> None:
    wire, mailbox, feed = await started(PLENTY)
    got: list[Event] = []

    async def read() -> None:
        got.extend(arrival.event for arrival in await feed.next())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        mailbox.send_nowait(delta("a"))
        wire.busy = True
        mailbox.send_nowait(delta("b"))
        wire.busy = False
        mailbox.send_nowait(delta("c"))  # not past the one before it
    assert wire.text == "data: 0/0 a\n\n"
    assert got == [delta("b"), delta("c")]


async def test_an_encoder_that_fails_in_the_sink_fails_its_own_call_and_not_who_sends(autojump_clock: Any) -> None:
    class Broken(TextEncoder):
        def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
            if isinstance(event, Delta) and event.text == "1 ":
                raise RuntimeError("a bug of the encoder")
            return super().event(ask_index, prompt, event)

    wire = DirectWire(lambda: PLENTY)
    async with fake_services(counting(3)) as fakes:
        parsed = evolve(call(stream=True), encoder=Broken())
        await respond(parsed, TEXT_DIALECT, "id", Serving(fakes.services, IngressSettings()), wire)
        assert fakes.engine.cancelled == ["r1_0"]
    assert wire.ended
    assert wire.text.startswith("data: start\n\ndata: 0/0 0 \n\ndata: error")
    assert "a bug" not in wire.text


async def test_a_stream_whose_deltas_are_written_directly_is_pinged_only_when_it_is_silent(autojump_clock: Any) -> None:
    def script(submit: Submit) -> Iterable[Step]:
        for _ in range(3):
            yield 4.0, delta("a")
        yield 11.0, Ended(0, Finish("length"), Usage(1, 3))

    wire = DirectWire(lambda: PLENTY)
    async with fake_services(script) as fakes:
        serving = Serving(fakes.services, IngressSettings(sse_ping_s=5.0))
        await respond(call(stream=True), TEXT_DIALECT, "id", serving, wire)
    pings = [round(at_s) for at_s, chunk in zip(wire.instants_s, wire.chunks, strict=True) if chunk == b": ping\n\n"]
    assert pings == [17, 22]
    assert wire.num_direct == 3


async def writes_of(monkeypatch: pytest.MonkeyPatch, body: object) -> list[bytes]:
    """Return what the server handed to the kernel for one call, write by write."""
    written: list[bytes] = []

    def write(descriptor: int, data: bytes) -> int:
        written.append(bytes(data))
        return os.write(descriptor, data)

    monkeypatch.setattr(hardening, "os", type("Os", (), {"write": staticmethod(write)}))
    async with running(counting(3, delay_s=0.02)) as server:
        reply = await ask(server.port, "/text", body)
        assert (reply.status, reply.complete) == (200, True)
        return written


async def test_a_stream_is_one_write_for_the_head_one_a_step_and_one_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, *steps, ended = await writes_of(monkeypatch, {"prompts": ["hi"], "stream": True, "max_tokens": 3})
    assert head.startswith(b"HTTP/1.1 200")
    assert head.endswith(b"data: start\n\n\r\n")
    assert [step.count(b"data: ") for step in steps] == [1, 1, 1]
    assert ended.count(b"data: ") == 2
    assert ended.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_whole_answer_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = await writes_of(monkeypatch, {"prompts": ["hi"], "max_tokens": 3})
    assert whole.startswith(b"HTTP/1.1 200")
    assert whole.endswith(b"}")


async def test_over_tls_every_delta_is_written_by_the_task_and_the_stream_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    direct: list[bytes] = []
    plain_send_now = HardenedTCPServer.send_now

    def send_now(self: HardenedTCPServer, data: bytes) -> bytes:
        direct.append(data)
        return plain_send_now(self, data)

    monkeypatch.setattr(HardenedTCPServer, "send_now", send_now)
    body = {"prompts": ["hi"], "stream": True, "max_tokens": 5}
    async with running(counting(5, delay_s=0.01)) as server, connected(server.port) as client:
        await client.post("/text", body)
        plain = await client.reply()
    assert direct
    direct.clear()
    async with running(counting(5, delay_s=0.01), **TLS) as server, secured(server.port) as client:
        await client.post("/text", body)
        secret = await client.reply()
    assert not direct
    assert (plain.body, plain.complete, secret.complete) == (secret.body, True, True)


async def test_what_is_in_the_mailbox_already_is_not_overtaken_by_what_comes_as_the_wait_begins() -> None:
    for _ in range(20):
        wire, mailbox, feed = await started(PLENTY)
        mailbox.send_nowait(delta("a"))
        async with trio.open_nursery() as nursery:

            async def send(mailbox: Any = mailbox) -> None:
                mailbox.send_nowait(delta("b"))

            nursery.start_soon(feed.next)
            nursery.start_soon(send)
        assert "b" not in wire.text


class TakesAll:
    """A direct way that takes everything, and keeps what was held back apart."""

    is_free = True

    def __init__(self) -> None:
        self.written = b""

    def write_now(self, data: bytes) -> bytes:
        self.written += data
        return b""


async def test_a_piece_that_was_written_at_once_counts_as_the_newest(autojump_clock: Any) -> None:
    direct = TakesAll()
    wire = AsgiWire(None, {"extensions": {DIRECT_WRITER: direct}, "method": "POST"}, {})  # type: ignore[arg-type]
    assert wire.can_write_now
    await trio.sleep(3.0)
    assert wire.write_now(b"x") == b""
    assert (direct.written, wire.written_s) == (b"x", trio.current_time())


async def test_nothing_is_written_at_once_while_a_write_is_under_way_or_over_tls() -> None:
    lock = trio.Lock()
    plain = SimpleNamespace(_plain=True, send_lock=lock)
    is_free: Any = HardenedTCPServer.is_free
    assert is_free.fget(plain)
    async with lock:
        assert not is_free.fget(plain)
    assert not is_free.fget(SimpleNamespace(_plain=False, send_lock=lock))


async def test_a_connection_that_closes_with_its_answer_has_written_all_of_it() -> None:
    async with running(counting(3, delay_s=0.01)) as server:
        for body in ({"prompts": ["hi"], "max_tokens": 3}, {"prompts": ["hi"], "max_tokens": 3, "stream": True}):
            async with connected(server.port) as client:
                await client.post("/text", body, ["connection: close"])
                assert (await client.reply()).complete
                assert await client.to_end() == b""
