"""Admin routes: what SGLang's clients send and read, over real sockets; waiting for idle on a virtual clock."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from attrs import evolve

from stages.engine.port import Order
from stages.errors import Draining, EngineFailure
from stages.ingress.admin import FLUSHED, Admin
from stages.ingress.respond import Serving
from stages.logs.switches import LogSwitches
from stages.messages import CloseSession, CommandResult, FlushCache, OpenSession, Pause, Resume
from stages.settings import IngressSettings
from tests.fakes import Aborted, Fakes, fake_services, silent
from tests.stages.ingress.http import Running, ask, connected, eventually, post_bytes, running

HELLO = {"prompts": ["hi"]}


async def refuse(order: Order) -> CommandResult:
    return CommandResult(is_done=False)


async def refuse_with_a_reason(order: Order) -> CommandResult:
    return CommandResult(is_done=False, text="The reason.")


async def never(order: Order) -> CommandResult:
    await trio.sleep_forever()
    raise AssertionError


def admin_of(fakes: Fakes) -> Admin:
    return Admin(Serving(fakes.services, IngressSettings()))


async def get(server: Running, path: str, method: str = "GET") -> tuple[int, bytes]:
    async with connected(server.port) as client:
        reply = await client.get(path, method)
        return reply.status, reply.body


# -- abort ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_ends_a_running_request_with_a_200_and_nobody_elses(stream: bool) -> None:
    async with running(silent) as server, connected(server.port) as mine, connected(server.port) as other:
        await mine.post("/text", {**HELLO, "rid": "a", "stream": stream})
        await other.post("/text", {**HELLO, "rid": "b"})
        await eventually(lambda: len(server.engine.running) == 2)
        reply = await ask(server.port, "/abort_request", {"rid": "a_0"})
        assert (reply.status, reply.body) == (200, b"")
        assert (await mine.reply()).status == 200
        assert server.engine.aborted == [Aborted("a_0", "Aborted", "prefix")]
        assert list(server.engine.running) == ["b_0/0"]


async def test_an_abort_takes_those_whose_ids_begin_with_it_only_if_somebody_has_it() -> None:
    async with running(silent) as server, connected(server.port) as client:
        await client.post("/text", {"prompts": ["hi"] * 12, "rid": "x"})
        await eventually(lambda: len(server.engine.running) == 12)
        assert (await ask(server.port, "/abort_request", {"rid": "x"})).status == 200
        assert len(server.engine.running) == 12
        await ask(server.port, "/abort_request", {"rid": "x_1"})
        assert sorted(server.engine.cancelled) == ["x_1", "x_10", "x_11"]


async def test_abort_all_ends_everything() -> None:
    async with running(silent) as server, connected(server.port) as client:
        await client.post("/text", {"prompts": ["hi"] * 3})
        await eventually(lambda: len(server.engine.running) == 3)
        assert (await ask(server.port, "/abort_request", {"abort_all": True})).status == 200
        assert (await client.reply()).status == 200
        assert server.engine.running == {}


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": "nobody"}, {"abort_all": False}, b""])
async def test_an_abort_that_names_nobody_is_a_200_that_does_nothing(body: Any) -> None:
    async with running(silent) as server, connected(server.port) as client:
        await client.post("/text", HELLO)
        await eventually(lambda: len(server.engine.running) == 1)
        reply = await ask(server.port, "/abort_request", body)
        assert (reply.status, reply.body, server.engine.aborted) == (200, b"", [])


# -- flush ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("query", ["", "?timeout=0", "?timeout=2.5"])
async def test_a_flush_is_told_in_sglangs_words(method: str, query: str) -> None:
    async with running(silent) as server:
        assert await get(server, f"/flush_cache{query}", method) == (200, FLUSHED.encode())
        assert server.engine.orders == [FlushCache(waits="2.5" in query)]
    assert FLUSHED.startswith("Cache flushed.\nPlease check backend logs for more details. (When there are running")


async def test_a_flush_that_cannot_be_is_a_400_with_the_reason_if_there_is_one() -> None:
    async with running(silent) as server:
        server.engine.obey = refuse
        assert await get(server, "/flush_cache") == (400, b"Flush cache failed.\n")
        server.engine.obey = refuse_with_a_reason
        assert await get(server, "/flush_cache") == (400, b"The reason.")


@pytest.mark.parametrize("given", ["-1", "soon", "nan", "inf"])
async def test_a_flush_waits_for_a_number_of_seconds(given: str) -> None:
    async with running(silent) as server:
        status, body = await get(server, f"/flush_cache?timeout={given}")
        assert (status, b"timeout must be" in body, server.engine.orders) == (400, True, [])


async def test_a_flush_gives_up_after_its_timeout_and_takes_the_order_back(autojump_clock: Any) -> None:
    async with fake_services(silent) as fakes:
        admin, start_s = admin_of(fakes), trio.current_time()
        left_s: list[float] = []

        async def busy(order: Order) -> CommandResult:
            try:
                return await never(order)
            finally:
                left_s.append(trio.current_time() - start_s)

        fakes.engine.obey = busy
        told = await admin.flush_cache(2.5)
        assert (told.status, told.value, told.is_text) == (400, "Timed out waiting for idle state.", True)
        assert (left_s, trio.current_time() - start_s) == ([2.5], 2.5)


async def test_a_second_flush_is_refused_while_one_waits_and_only_then(autojump_clock: Any) -> None:
    async with fake_services(silent) as fakes, trio.open_nursery() as nursery:
        admin = admin_of(fakes)
        fakes.engine.obey = never
        nursery.start_soon(admin.flush_cache, 2.0)
        await trio.sleep(1.0)
        for timeout_s in (0.0, 1.0):
            told = await admin.flush_cache(timeout_s)
            assert (told.status, told.value) == (400, "Another flush_cache is already in progress.")
        await trio.sleep(1.5)
        fakes.engine.obey = refuse
        assert (await admin.flush_cache(0.0)).value == "Flush cache failed.\n"


async def test_a_client_that_leaves_takes_its_flush_back() -> None:
    async with running(silent) as server:
        left = trio.Event()

        async def busy(order: Order) -> CommandResult:
            try:
                return await never(order)
            finally:
                left.set()

        server.engine.obey = busy
        async with connected(server.port) as client:
            await client.send(b"POST /flush_cache?timeout=1000 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            await eventually(lambda: server.engine.orders == [FlushCache(waits=True)])
        await left.wait()


# -- pause, continue, sessions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "mode"),
    [(b"", "abort"), ({}, "abort"), ({"mode": "retract"}, "retract"), ({"mode": "in_place"}, "in_place")],
)
async def test_a_pause_passes_its_mode_on(body: Any, mode: Any) -> None:
    async with running(silent) as server:
        reply = await ask(server.port, "/pause_generation", body)
        assert (reply.status, reply.json) == (200, {"message": "Generation paused successfully.", "status": "ok"})
        assert server.engine.orders == [Pause(mode)]


@pytest.mark.parametrize("body", [b"", {}, {"torch_empty_cache": False}])
async def test_a_paused_server_continues(body: Any) -> None:
    async with running(silent) as server:
        reply = await ask(server.port, "/continue_generation", body)
        assert (reply.status, reply.json) == (200, {"message": "Generation continued successfully.", "status": "ok"})
        assert server.engine.orders == [Resume()]


async def test_only_ready_says_that_a_server_is_paused() -> None:
    async with running(silent) as server:
        for is_paused, status in ((True, 503), (False, 200)):
            server.load = evolve(server.load, is_paused=is_paused)
            assert await get(server, "/ready") == (status, b"")
            assert [(await get(server, path))[0] for path in ("/health", "/ping")] == [200, 200]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_session_is_opened_and_its_id_is_a_json_string(method: str) -> None:
    async def name_it(order: Order) -> CommandResult:
        return CommandResult(is_done=True, text="made-up")

    async with running(silent) as server, connected(server.port) as client:
        server.engine.obey = name_it
        body = {"capacity_of_str_len": 1000, "streaming": True, "session_id": "mine", "timeout": 60}
        await client.send(post_bytes("/open_session", body).replace(b"POST", method.encode(), 1))
        reply = await client.reply()
        assert (reply.status, reply.json) == (200, "made-up")
        assert server.engine.orders == [OpenSession("mine", 60)]


async def test_a_session_needs_neither_a_name_nor_a_timeout_nor_a_body() -> None:
    async with running(silent) as server:
        for body in (b"", {}, {"session_id": ""}):
            assert (await ask(server.port, "/open_session", body)).status == 200
        assert server.engine.orders == [OpenSession()] * 3


async def test_a_session_that_cannot_be_opened_is_a_400_with_the_reason() -> None:
    async with running(silent) as server:
        server.engine.obey = refuse_with_a_reason
        reply = await ask(server.port, "/open_session", {"session_id": "s"})
        assert (reply.status, reply.json["message"]) == (400, "The reason.")


async def test_closing_a_session_is_a_200_even_where_there_is_none() -> None:
    async with running(silent) as server:
        server.engine.obey = refuse
        reply = await ask(server.port, "/close_session", {"session_id": "s"})
        assert (reply.status, reply.body, server.engine.orders) == (200, b"", [CloseSession("s")])


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    level = logger.level
    yield logger
    logger.setLevel(level)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_level_of_the_log_can_be_set_while_serving(method: str, root_logger: logging.Logger) -> None:
    async with running(silent) as server, connected(server.port) as client:
        for level in ("ERROR", "warning"):
            body = {"log_level": level, "log_requests": False, "log_requests_level": 0, "dump_requests_folder": ""}
            await client.send(post_bytes("/configure_logging", body).replace(b"POST", method.encode(), 1))
            reply = await client.reply()
            assert (reply.status, reply.body) == (200, b"")
            assert root_logger.level == getattr(logging, level.upper())
        assert (await ask(server.port, "/configure_logging", b"")).status == 200
        assert root_logger.level == logging.WARNING


async def test_what_is_logged_of_requests_can_be_set_while_serving_and_null_leaves_it() -> None:
    async with running(silent) as server:
        logs = server.app.serving.logs
        wanted = {"log_requests": True, "log_requests_level": 2, "log_requests_format": "json", "access_log": True}
        assert (await ask(server.port, "/configure_logging", wanted)).status == 200
        assert logs == LogSwitches(True, 2, "json", True)
        nothing = dict.fromkeys(wanted)
        assert (await ask(server.port, "/configure_logging", nothing)).status == 200
        assert logs == LogSwitches(True, 2, "json", True)
        assert (await ask(server.port, "/configure_logging", {"log_requests": False})).status == 200
        assert logs == LogSwitches(False, 2, "json", True)


async def test_of_an_order_about_the_log_all_is_done_or_nothing(root_logger: logging.Logger) -> None:
    async with running(silent) as server:
        before = root_logger.level
        body = {"log_level": "error", "log_requests": True, "log_requests_level": 9}
        assert (await ask(server.port, "/configure_logging", body)).status == 400
        assert (root_logger.level, server.app.serving.logs) == (before, LogSwitches())


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/abort_request", {"rid": 5}, "rid must be a string"),
        ("/abort_request", {"abort_all": "yes"}, "abort_all must be a boolean"),
        ("/pause_generation", {"mode": "sleep"}, "mode must be one of abort, retract, in_place, got 'sleep'."),
        ("/pause_generation", b"[]", "must be a JSON object"),
        ("/open_session", {"timeout": -1}, "timeout must be a positive number"),
        ("/open_session", {"session_id": "s" * 1025}, "session_id must have between 1 and 1024"),
        ("/close_session", {}, "session_id must be a string"),
        (
            "/configure_logging",
            {"log_level": "loud"},
            "log_level must be one of debug, info, warning, error, got 'loud'.",
        ),
        ("/configure_logging", {"log_requests_level": 4}, "log_requests_level must be between 0 and 3, got 4."),
        ("/configure_logging", {"log_requests_level": -1}, "log_requests_level must be between 0 and 3, got -1."),
        ("/configure_logging", {"log_requests_format": "xml"}, "log_requests_format must be one of auto, text, json"),
        ("/configure_logging", {"access_log": "yes"}, "access_log must be a boolean"),
        ("/configure_logging", {"dump_requests_folder": "/tmp/x"}, "dump_requests_folder is not supported"),
        ("/configure_logging", {"crash_dump_folder": "/tmp/x"}, "crash_dump_folder is not supported"),
        ("/configure_logging", {"log_requests_level": "3"}, "log_requests_level must be an integer"),
        ("/close_session", {"session_id": ""}, "session_id must have between 1 and 1024"),
    ],
)
async def test_a_bad_body_is_a_400_in_sglangs_flat_shape_and_orders_nothing(path: str, body: Any, text: str) -> None:
    async with running(silent) as server:
        reply = await ask(server.port, path, body)
        assert reply.status == 400
        assert {**reply.json, "message": ""} == {
            "object": "error", "message": "", "type": "Bad Request", "param": None, "code": 400,
        }  # fmt: skip
        assert text in reply.json["message"]
        assert server.engine.orders == []


async def test_a_draining_engine_is_a_503_and_a_failing_one_a_500() -> None:
    async def fail(order: Order) -> CommandResult:
        raise EngineFailure("secret")

    async with running(silent) as server:
        server.engine.obey = fail
        reply = await ask(server.port, "/continue_generation", {})
        assert (reply.status, b"secret" in reply.body) == (500, False)
        server.engine.draining = True
        assert (await ask(server.port, "/continue_generation", {})).status == 503


@pytest.mark.parametrize(("failed", "expected"), [(False, Draining), (True, EngineFailure)])
async def test_an_order_waits_no_longer_than_the_server_lives(
    failed: bool, expected: type[Exception], autojump_clock: Any
) -> None:
    async with fake_services(silent) as fakes, trio.open_nursery() as nursery:
        admin = admin_of(fakes)
        fakes.engine.obey = never

        async def end_it() -> None:
            await trio.sleep(3.0)
            if failed:
                admin.serving.failed.set()
            admin.serving.cutoff.set()

        nursery.start_soon(end_it)
        with pytest.raises(expected):
            await admin.flush_cache(1000.0)
        assert not admin.is_flush_waiting
