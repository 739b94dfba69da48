"""The engine behind another server's /generate, against a scripted one: every phase in which it may fail, and how."""

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from stages.engine.http_client import connector
from stages.engine.origin import Origin
from stages.errors import Draining, InvalidRequest, QueueFull
from stages.messages import Delta, Event
from stages.trace_context import TraceContext
from stages.trail import Trail
from tests.fake_engine import STOP, Exchange, counting, never
from tests.stages.engine.kit import answer_of, remote_engine, submits_of


def text_of(deltas: list[Event]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Delta))


@pytest.mark.parametrize("cumulative", [False, True])
async def test_an_answer_is_its_tokens_whichever_form_its_frames_have(cumulative: bool, autojump_clock: Any) -> None:
    async with remote_engine(counting(4, cumulative=cumulative, delay_s=1)) as remote:
        deltas, [end] = await answer_of(remote)
        assert text_of(deltas) == "10 11 12 13 "
        assert (end.finish.kind, end.usage.prompt_tokens, end.usage.completion_tokens) == ("length", 3, 4)


async def test_the_connection_is_kept_for_the_next_request(autojump_clock: Any) -> None:
    async with remote_engine(counting(2)) as remote:
        for _ in range(3):
            await answer_of(remote)
            await trio.sleep(1)
        assert (remote.fake.num_connections, remote.fake.aborts) == (1, [])


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(autojump_clock: Any) -> None:
    async def script(exchange: Exchange) -> None:
        await counting(1)(exchange)
        exchange.has_ended = False  # the connection closes behind the answer

    async with remote_engine(script) as remote:
        for _ in range(2):
            _, [end] = await answer_of(remote)
            assert end.finish.kind == "length"
            await trio.sleep(1)
        assert (remote.fake.num_connections, len(remote.fake.exchanges)) == (2, 2)


async def test_all_streams_are_open_before_one_is_read(autojump_clock: Any) -> None:
    arrived = 0
    all_arrived = trio.Event()

    async def script(exchange: Exchange) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 3:
            all_arrived.set()
        await all_arrived.wait()
        await counting(1)(exchange)

    async with remote_engine(script) as remote:
        _, ends = await answer_of(remote, n=3, within_s=5)
        assert {end.choice for end in ends} == {0, 1, 2}
        assert sorted(remote.fake.rids) == ["a-0", "a-1", "a-2"]


async def test_streams_are_opened_in_order_and_so_many_at_a_time(autojump_clock: Any) -> None:
    async def script(exchange: Exchange) -> None:
        await trio.sleep(1)
        await counting(1)(exchange)

    async with remote_engine(script, max_opening=2) as remote:
        submits, _ = submits_of(n=5)
        remote.engine.submit(submits)
        seen = []
        for _ in range(3):
            await trio.sleep(0.5)
            seen.append(sorted(remote.fake.rids))
            await trio.sleep(0.5)
        assert [len(one) for one in seen] == [2, 4, 5]
        assert seen[1] == ["a-0", "a-1", "a-2", "a-3"]


# ---------------------------------------------------------------------------------------------------------------------
# Failures: what the engine does -> status, words, how many tokens came before
# ---------------------------------------------------------------------------------------------------------------------


async def _early_done(exchange: Exchange) -> None:
    await exchange.tokens([10], 1)
    await exchange.done()


async def _early_end(exchange: Exchange) -> None:
    await exchange.tokens([10], 1)
    await exchange.end()


async def _cut(exchange: Exchange) -> None:
    await exchange.tokens([10], 1)  # and the connection closes without the last chunk


async def _no_answer(exchange: Exchange) -> None:
    return


async def _half_a_head(exchange: Exchange) -> None:
    await exchange.stream.send_all(b"HTTP/1.1 200 OK\r\nconte")


async def _no_http(exchange: Exchange) -> None:
    await exchange.stream.send_all(b"SSH-2.0-OpenSSH\r\n\r\n")


async def _no_json(exchange: Exchange) -> None:
    await exchange.send(b"data: {nonsense\n\n")


async def _wrong_count(exchange: Exchange) -> None:
    await exchange.tokens([10], 1)
    await exchange.tokens([11, 12, 13, 14], 3)


async def _fewer(exchange: Exchange) -> None:
    await exchange.tokens([10, 11], 2)
    await exchange.tokens([11], 1)


async def _error_frame(exchange: Exchange) -> None:
    await exchange.tokens([10], 1)
    await exchange.frame({"error": {"message": "out of memory", "code": 507}})
    await exchange.done()


async def _error_without_code(exchange: Exchange) -> None:
    await exchange.frame({"error": {"message": "broken"}})
    await exchange.done()


async def _abort_with_status(exchange: Exchange) -> None:
    await exchange.tokens([], 0, {"type": "abort", "message": "queue is full", "status_code": 503})


async def _huge(exchange: Exchange) -> None:
    for _ in range(100):
        await exchange.send(b"data: " + b"x" * 1000)


async def _bad_chunk(exchange: Exchange) -> None:
    await exchange.tokens([10], 1)
    await exchange.stream.send_all(b"zz\r\n")
    await exchange.gone()


async def _head_only(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.gone()


async def _stalls(exchange: Exchange) -> None:
    await exchange.tokens([10], 1)
    await exchange.gone()


def _refuses(status: int, value: object, **headers: str) -> Callable[[Exchange], Awaitable[None]]:
    async def script(exchange: Exchange) -> None:
        await exchange.refuse(status, value, **headers)

    return script


FAILURES = [
    (_early_done, 500, "engine stream ended before a terminal frame", 1),
    (_early_end, 500, "engine response closed before [DONE]", 1),
    (_cut, 503, "engine stream failed", 1),
    (_no_answer, 503, "closed the connection without an answer", 0),
    (_half_a_head, 503, "ended inside the answer's head", 0),
    (_no_http, 503, "no HTTP/1.1 answer", 0),
    (_no_json, 500, "invalid engine frame", 0),
    (_wrong_count, 500, "4 output_ids where 3 tokens exist and 1 were told", 1),
    (_fewer, 500, "decreased from 2 to 1", 2),
    (_error_frame, 507, "out of memory", 1),
    (_error_without_code, 500, "broken", 0),
    (_abort_with_status, 503, "queue is full", 0),
    (_huge, 500, "more than 5000 bytes", 0),
    (_bad_chunk, 503, "a chunk without a size", 1),
    (never, 504, "did not answer within 30 s", 0),
    (_head_only, 504, "sent no token within 30 s", 0),
    (_stalls, 504, "sent nothing within 10 s", 1),
    (_refuses(401, {"error": "Unauthorized"}), 401, "Unauthorized", 0),
    (_refuses(400, {"error": {"message": "too long", "code": 400}}), 400, "too long", 0),
    (_refuses(429, {"object": "error", "message": "slow down", "code": 429}), 429, "slow down", 0),
    (_refuses(503, b"<html>"), 503, "engine returned HTTP 503", 0),
    (_refuses(302, b"", location="/login"), 502, "redirect", 0),
    (_refuses(307, b"", location="http://elsewhere/generate"), 502, "not followed", 0),
    (_refuses(307, b"", location="/generate"), 502, "too many redirects", 0),
]


@pytest.mark.parametrize(
    ("script", "status", "words", "num_tokens"), FAILURES, ids=lambda value: getattr(value, "__name__", None)
)
@pytest.mark.parametrize("n", [1, 2])
async def test_a_failure_ends_every_choice_with_its_status_and_words(
    script: Any, status: int, words: str, num_tokens: int, n: int, autojump_clock: Any
) -> None:
    limits = {"first_event_timeout_s": 30.0, "idle_timeout_s": 10.0, "max_event_bytes": 5000}
    async with remote_engine(script, **limits) as remote:
        deltas, ends = await answer_of(remote, n=n, within_s=41)
        for end in ends:
            assert (end.finish.kind, end.finish.status) == ("error", status)
            assert words in (end.finish.message or "")
        assert len(ends) == n
        assert len([one for one in deltas if isinstance(one, Delta) and one.choice == 0]) <= num_tokens
        if n == 1:
            assert sum(len(one.token_ids) for one in deltas if isinstance(one, Delta)) == num_tokens
        assert remote.engine.num_running == 0


async def test_an_engine_that_is_down_is_a_503_that_names_it(autojump_clock: Any) -> None:
    async with remote_engine(counting(1)) as remote:
        remote.fake.is_up = False
        _, [end] = await answer_of(remote)
        assert end.finish.status == 503
        assert end.finish.message == "engine request failed: cannot connect to http://engine: Connection refused"


async def test_an_engine_that_takes_no_connection_is_a_504_after_ten_seconds(autojump_clock: Any) -> None:
    async with remote_engine(counting(1)) as remote:
        remote.fake.hangs = True
        began_s = trio.current_time()
        _, [end] = await answer_of(remote)
        assert (end.finish.status, trio.current_time() - began_s) == (504, 10)


async def test_retry_after_comes_with_a_refusal(autojump_clock: Any) -> None:
    async with remote_engine(_refuses(503, {"error": {"message": "full"}}, retry_after="7")) as remote:
        _, [end] = await answer_of(remote)
        assert end.finish.retry_after_s == 7


@pytest.mark.parametrize("location", ["/v2/generate", "http://engine/v2/generate"])
async def test_a_redirect_within_the_origin_is_followed(location: str, autojump_clock: Any) -> None:
    async with remote_engine(_refuses(308, b"", location=location)) as remote:
        remote.fake.order = counting(1)
        _, [end] = await answer_of(remote)
        assert end.finish.kind == "length"


async def test_one_choice_that_fails_ends_the_others_and_their_streams(autojump_clock: Any) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.body["rid"] == "a-1":
            await trio.sleep(5)
            await exchange.frame({"error": {"message": "lost"}})
        else:
            await counting(100, delay_s=1)(exchange)

    async with remote_engine(script) as remote:
        _, ends = await answer_of(remote, n=3)
        assert {end.finish.message for end in ends} == {"lost"}
        await trio.sleep(2)
        assert sorted(remote.fake.left) == ["a-0", "a-2"]
        assert sorted(remote.fake.aborts) == ["a-0", "a-1", "a-2"]


async def test_a_terminal_frame_without_done_is_an_end(autojump_clock: Any) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.tokens([10], 1, STOP)

    async with remote_engine(script) as remote:
        _, [end] = await answer_of(remote)
        assert end.finish.kind == "stop"


# ---------------------------------------------------------------------------------------------------------------------
# Ends from this side
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [never, _head_only, _stalls])
async def test_a_client_that_leaves_closes_the_stream_and_the_engine_is_told(script: Any, autojump_clock: Any) -> None:
    gone_s = []

    async def watched(exchange: Exchange) -> None:
        await script(exchange)
        gone_s.append(trio.current_time())

    async with remote_engine(watched) as remote:
        submits, events = submits_of(n=2)
        remote.engine.submit(submits)
        await trio.sleep(3)
        left_s = trio.current_time()
        remote.engine.cancel("a")
        events.close()
        await trio.sleep(1)
        assert gone_s == [left_s, left_s]
        assert sorted(remote.fake.aborts) == ["a-0", "a-1"]


async def test_a_stop_string_ends_its_own_choice_here_and_there(autojump_clock: Any) -> None:
    async with remote_engine(counting(1000, delay_s=1)) as remote:
        deltas, [end] = await answer_of(remote, stop=("12",))
        assert (text_of(deltas), end.finish.kind, end.finish.matched) == ("10 11 ", "stop", "12")
        assert end.usage.completion_tokens == 3
        await trio.sleep(5)
        assert (remote.fake.left, remote.fake.aborts) == (["a-0"], ["a-0"])


async def test_an_abort_does_not_reach_a_choice_whose_id_begins_with_its_own(autojump_clock: Any) -> None:
    async def script(exchange: Exchange) -> None:
        first = 12 if exchange.body["rid"] == "a-1" else 20
        await exchange.tokens([first], 1)
        await trio.sleep(5)
        await exchange.tokens([21], 2, STOP)
        await exchange.done()

    async with remote_engine(script) as remote:
        _, ends = await answer_of(remote, n=11, stop=("12",))
        assert len(ends) == 11
        assert remote.fake.aborts == []


async def test_a_reader_that_falls_a_mailbox_behind_is_cut_off(autojump_clock: Any) -> None:
    async with remote_engine(counting(1000, delay_s=1)) as remote:
        submits, events = submits_of(room=8)
        remote.engine.submit(submits)
        await trio.sleep(60)
        assert remote.engine.num_running == 0
        assert remote.fake.aborts == ["a-0"]
        assert len([event async for event in events]) == 10


async def test_a_drain_takes_nothing_more_and_waits_for_what_runs(autojump_clock: Any) -> None:
    async with remote_engine(counting(5, delay_s=1)) as remote:
        remote.engine.submit(submits_of()[0])
        began_s = trio.current_time()
        await remote.engine.drain()
        assert trio.current_time() - began_s == 5
        with pytest.raises(Draining):
            remote.engine.submit(submits_of("b")[0])


async def test_more_than_may_run_is_refused_until_one_has_ended(autojump_clock: Any) -> None:
    async with remote_engine(counting(2, delay_s=1), max_running_choices=2) as remote:
        remote.engine.submit(submits_of("b", 2)[0])
        with pytest.raises(QueueFull):
            remote.engine.submit(submits_of("c")[0])
        with pytest.raises(InvalidRequest, match="can never fit"):
            remote.engine.submit(submits_of("c", 3)[0])
        await trio.sleep(3)
        remote.engine.submit(submits_of("c")[0])


async def test_an_id_in_use_is_refused(autojump_clock: Any) -> None:
    async with remote_engine(counting(2, delay_s=1)) as remote:
        remote.engine.submit(submits_of("b")[0])
        with pytest.raises(InvalidRequest, match="Duplicate"):
            remote.engine.submit(submits_of("b")[0])
        with pytest.raises(InvalidRequest, match="Duplicate"):
            remote.engine.submit(submits_of("c", engine_rid="b-0")[0])


async def test_the_key_goes_with_every_call(autojump_clock: Any) -> None:
    async with remote_engine(counting(9, delay_s=1), api_key="secret") as remote:
        remote.engine.submit(submits_of()[0])
        await trio.sleep(1)
        assert remote.fake.exchanges[0].headers["authorization"] == "Bearer secret"


async def test_real_sockets_carry_it_too() -> None:
    async with trio.open_nursery() as nursery:
        async with remote_engine(counting(0)) as other:
            fake = other.fake
            fake.script = counting(50)
            listeners = await nursery.start(trio.serve_tcp, fake.serve, 0)
            port = listeners[0].socket.getsockname()[1]
            async with remote_engine(counting(0), Origin("http", "127.0.0.1", port)) as remote:
                for _ in range(3):
                    _, ends = await answer_of(remote, n=4, within_s=10)
                    assert [end.usage.completion_tokens for end in ends] == [50] * 4
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("script", "status", "num_tokens"), [(_early_end, 500, 1), (_cut, 503, 1), (_bad_chunk, 503, 1), (_stalls, 504, 1)]
)
async def test_failures_over_real_sockets_are_the_same(script: Any, status: int, num_tokens: int) -> None:
    async with trio.open_nursery() as nursery:
        async with remote_engine(script) as other:
            listeners = await nursery.start(trio.serve_tcp, other.fake.serve, 0)
            port = listeners[0].socket.getsockname()[1]
            async with remote_engine(script, Origin("http", "127.0.0.1", port), idle_timeout_s=0.05) as remote:
                for _ in range(2):
                    deltas, [end] = await answer_of(remote, within_s=10)
                    assert (end.finish.kind, end.finish.status) == ("error", status)
                    assert sum(len(one.token_ids) for one in deltas if isinstance(one, Delta)) == num_tokens
        nursery.cancel_scope.cancel()


async def test_a_stop_string_over_a_real_socket_closes_it() -> None:
    async with trio.open_nursery() as nursery:
        async with remote_engine(counting(10**6, delay_s=0.001)) as other:
            listeners = await nursery.start(trio.serve_tcp, other.fake.serve, 0)
            port = listeners[0].socket.getsockname()[1]
            async with remote_engine(counting(0), Origin("http", "127.0.0.1", port)) as remote:
                deltas, [end] = await answer_of(remote, stop=("12",), within_s=10)
                assert (text_of(deltas), end.finish.matched) == ("10 11 ", "12")
                with trio.fail_after(10):
                    while not other.fake.left or not other.fake.aborts:  # noqa: ASYNC110  # two ends, and this once
                        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


TLS = Path(__file__).parent.parent / "ingress"


async def test_an_engine_is_spoken_to_by_tls_and_one_with_an_unknown_certificate_is_not() -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(TLS / "tls_certificate.pem", TLS / "tls_key.pem")
    trusting = ssl.create_default_context(cafile=TLS / "tls_certificate.pem")
    trusting.check_hostname = False
    async with trio.open_nursery() as nursery:
        async with remote_engine(counting(20)) as other:
            serve = partial(trio.serve_ssl_over_tcp, other.fake.serve, 0, server, https_compatible=True)
            listeners = await nursery.start(serve)
            port = listeners[0].transport_listener.socket.getsockname()[1]
            origin = Origin("https", "127.0.0.1", port)
            for context, status in ((trusting, None), (None, 503)):
                async with remote_engine(counting(0), origin, connect=connector(origin, context)) as remote:
                    for _ in range(2):
                        _, [end] = await answer_of(remote, within_s=10)
                        assert end.finish.status == status, end
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("state", ["", "a=1"])
async def test_every_choice_takes_its_calls_trace_to_the_engine(state: str, autojump_clock: Any) -> None:
    trace = TraceContext("0" * 31 + "1", "0" * 15 + "2", state=state)
    async with remote_engine(counting(1)) as remote:
        await answer_of(remote, n=2, trail=Trail("r", trace=trace))
        await answer_of(remote, trail=Trail("r"))
        await answer_of(remote)
    traced, untraced = remote.fake.exchanges[:2], remote.fake.exchanges[2:]
    for exchange in traced:
        assert exchange.headers["traceparent"] == f"00-{'0' * 31}1-{'0' * 15}2-01"
        assert exchange.headers.get("tracestate", "") == state
    assert all("traceparent" not in exchange.headers for exchange in untraced)
