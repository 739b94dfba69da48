"""The nursery tree over real sockets, its device a stand-in: each API's clients hear of every end, streamed or not."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from graphs.step import DeviceLost
from tests.scripted.apis import APIS, INCREMENTAL, MESSAGES, RESPONSES, Api, Failure, put
from tests.scripted.asking import end_of
from tests.scripted.server import Exchange
from tests.sim.history_device import HistoryDevice
from tests.small_server import small_server
from tests.stages.ingress.http import Reply, ask, eventually
from tests.trnrt.test_serve import slow
from trnrt.serve import Server, drain, serve

# The server has one form of /generate's streams.
SERVED = [api for api in APIS if api is not INCREMENTAL]
GENERIC = "Internal server error"


def told(api: Api, reply: Reply) -> Any:
    """What a client of the API makes of a reply."""
    return api.answer(Exchange(reply.status, headers=reply.headers, chunks=[(0, reply.body)], has_ended=reply.complete))


async def answers_of_all(
    server: Server, force: Callable[[], Awaitable[None] | None]
) -> tuple[list[tuple[Api, bool, Reply]], list[BaseException]]:
    """Run a stream and a body of every API at once, force an end under them, and return what each got."""
    replies: list[tuple[Api, bool, Reply]] = []
    ended: list[BaseException] = []

    async def client(api: Api, stream: bool) -> None:
        assert server.port is not None
        body = api.ask(stream=stream, budget=300)
        options = api.budget.rpartition(".")[0]
        # Greedy, so that what Ollama's clients get, who cannot have end tokens ignored, is always the same.
        for name, value in (("ignore_eos", True), ("temperature", 0)):
            put(body, f"{options}.{name}" if options else name, value)
        replies.append((api, stream, await ask(server.port, api.path, body)))

    async def run(task_status: "trio.TaskStatus[Server]") -> None:
        try:
            await serve(server, task_status=task_status)
        except BaseExceptionGroup as group:
            ended.append(group)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            async with trio.open_nursery() as clients:
                for api in SERVED:
                    for stream in (False, True):
                        clients.start_soon(client, api, stream)
                await eventually(lambda: server.load().running == 2 * len(SERVED))
                await trio.sleep(0.1)
                if (forcing := force()) is not None:
                    await forcing
            nursery.cancel_scope.cancel()
    assert len(replies) == 2 * len(SERVED)
    return replies, ended


def all_run(**flags: Any) -> Server:
    return small_server(slow, max_running_requests=16, max_total_tokens=16 * 512, **flags)


async def test_a_device_that_is_lost_is_told_to_the_clients_of_every_api(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> Any:
        raise DeviceLost("/secret/path")

    server = all_run()
    replies, ended = await answers_of_all(server, lambda: monkeypatch.setattr(HistoryDevice, "run", lost))

    assert ended
    for api, stream, reply in replies:
        assert told(api, reply) == Failure(GENERIC), (api.name, stream)
        assert reply.status == (200 if stream else 500)
        assert b"secret" not in reply.body


async def test_a_drain_cut_short_is_told_to_the_clients_of_every_api() -> None:
    server = all_run(drain_timeout=0.0)
    replies, _ = await answers_of_all(server, lambda: drain(server))

    for api, stream, reply in replies:
        assert told(api, reply) == Failure("The server is shutting down."), (api.name, stream)
        assert (reply.status, "retry-after" in reply.headers) == ((200, False) if stream else (503, True))


async def test_an_operators_abort_is_told_to_the_clients_of_every_api() -> None:
    server = all_run()

    async def abort() -> None:
        assert server.port is not None
        assert (await ask(server.port, "/abort_request", {"abort_all": True})).status == 200

    replies, _ = await answers_of_all(server, abort)

    for api, _, reply in replies:
        if api in (MESSAGES, RESPONSES):
            assert isinstance(told(api, reply), Failure)
        else:
            assert end_of(told(api, reply)) == "abort", api.name


async def test_every_api_is_refused_by_a_full_queue_and_beyond_the_context() -> None:

    server = small_server(slow, max_running_requests=1, max_total_tokens=4096, max_queued_requests=1)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, server)
            assert server.port is not None
            port = server.port
            for _ in range(2):
                body = {"prompt": "x", "max_tokens": 480, "ignore_eos": True}
                nursery.start_soon(ask, port, "/v1/completions", body)
                await eventually(lambda: server.load().running == 1)
            await eventually(lambda: server.load().waiting == 1)
            for api in SERVED:
                for stream in (False, True):
                    full = await ask(port, api.path, api.ask(stream=stream, budget=9))
                    assert (full.status, told(api, full)) == (503, Failure("The request queue is full."))
                    assert full.headers["x-trnrt-queue-full"] == full.headers["retry-after"] == "1"
            assert (await ask(port, "/abort_request", {"abort_all": True})).status == 200
            await eventually(lambda: server.load().running == server.load().waiting == 0)
            for api in SERVED:
                for stream in (False, True):
                    body = api.ask(stream=stream, budget=9)
                    name = next(name for name in ("messages", "prompt", "text", "input") if name in body)
                    body[name] = [{"role": "user", "content": "red " * 999}] if name == "messages" else "red " * 999
                    long = await ask(port, api.path, body)
                    assert long.status == (200 if stream and api.path == "/generate" else 400)
                    assert isinstance(told(api, long), Failure)
            nursery.cancel_scope.cancel()
