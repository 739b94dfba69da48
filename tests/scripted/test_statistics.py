"""/v1/stats, its stream and /metrics of scripted runs whose answers are known, on a virtual clock."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.lowlevel

from stages.ingress.aside import Aside
from stages.ingress.stats_routes import SHARED_S
from stages.settings import IngressSettings
from stages.stats.exposition import scrape
from stages.stats.report import MAX_CALLS
from tests.scripted.script import Script, encoded, script
from tests.scripted.server import CREATED_S, Exchange, ScriptedServer, by_choice, scripted_server
from tests.stages.stats.lint import read

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
WORDS = script("hm</think>Hello there")
ENDLESS = Script(encoded("hm</think>Hello there ") * 40)
METRICS = IngressSettings(enable_metrics=True)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write large answers in the loop: its clock would jump while a thread works."""

    async def write(self: Aside, work: Callable[[], Any]) -> Any:
        return work()

    monkeypatch.setattr(Aside, "write", write)


async def get(server: ScriptedServer, path: str) -> Exchange:
    await trio.lowlevel.checkpoint()  # the stats stage takes what came
    return await server.post(path, b"", method="GET")


async def stats_of(server: ScriptedServer) -> Any:
    return (await get(server, "/v1/stats")).json


@asynccontextmanager
async def asking(server: ScriptedServer, num_calls: int) -> AsyncIterator[None]:
    """Calls under way for the block, one a millisecond."""
    async with trio.open_nursery() as nursery:
        for number in range(num_calls):
            headers = {"content-type": "application/json", "x-request-id": f"call-{number}"}
            data = json.dumps({"text": "Hi", "rid": f"rid-{number}", "stream": True}).encode()
            nursery.start_soon(Exchange().run, server.app, "/generate", data, headers, "POST")
            await trio.sleep(0.001)
        yield
        nursery.cancel_scope.cancel()


async def test_a_call_s_figures_are_exact(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([WORDS]), prefill_s=3.0, gap_s=0.5, cached_tokens=2) as server:
        await server.post(CHAT, {**HELLO, "stream": True})
        prompt_tokens, num_tokens = len(server.engine.submits[0].prompt_ids), len(WORDS.ids)
        told = await stats_of(server)
    took_s = 3.0 + 0.5 * (num_tokens - 1)
    window = told["windows"]["last_1m"]
    assert told["windows"]["since_start"] == window
    assert (told["uptime_s"], told["unix_s"], window["span_s"]) == pytest.approx((took_s, CREATED_S + took_s, took_s))
    assert (window["calls"], window["outcomes"], window["unavailable"]) == (1, {"stop": 1}, {})
    assert (window["prompt_tokens"], window["completion_tokens"]) == (prompt_tokens, num_tokens)
    assert window["completion_tokens_per_s"] == pytest.approx(num_tokens / took_s)
    assert window["cache_hit_rate"] == 2 / prompt_tokens
    first, gaps, whole = window["time_to_first_token"], window["inter_token"], window["end_to_end"]
    assert (first["count"], first["mean_s"]) == (1, pytest.approx(3.0))
    assert (gaps["count"], gaps["mean_s"], gaps["max_s"]) == (num_tokens - 1, pytest.approx(0.5), pytest.approx(0.5))
    assert gaps["p50_s"] == pytest.approx(0.5, rel=0.01)
    assert (whole["count"], whole["max_s"]) == (1, pytest.approx(took_s))
    assert window["queue_wait"]["count"] == 0
    assert told["days"][0]["calls"] == 1


async def test_tokens_that_come_together_share_the_time_since_the_last_ones(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([ENDLESS]), prefill_s=1.0, gap_s=2.0, cuts=(4,)) as server:
        await server.post(CHAT, {**HELLO, "stream": True, "max_tokens": 8})
        gaps = (await stats_of(server))["windows"]["last_1m"]["inter_token"]
    # Three came with the first one, four two seconds later.
    assert (gaps["count"], gaps["mean_s"], gaps["max_s"]) == (7, pytest.approx(4 * 0.5 / 7), pytest.approx(0.5))


async def test_calls_under_way_are_listed_by_how_far_they_are_and_without_text(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([ENDLESS]), prefill_s=5.0, gap_s=1.0) as server:
        async with asking(server, 3):
            told = await stats_of(server)
            assert [call["request_id"] for call in told["waiting"]] == ["call-0", "call-1", "call-2"]
            assert (told["running"], told["num_calls"]) == ([], 3)
            await trio.sleep(7)
            told = await stats_of(server)
            assert told["waiting"] == []
            first = told["running"][0]
            assert first == {
                "request_id": "call-0",
                "route": "/generate",
                "is_streamed": True,
                "phase": "running",
                "age_s": pytest.approx(7.003),
                "prompt_tokens": len(server.engine.submits[0].prompt_ids),
                "cached_tokens": 0,
                "completion_tokens": 3,
                "num_choices": 1,
            }
        told = await stats_of(server)
        assert (told["running"], told["waiting"], told["num_calls"]) == ([], [], 0)
        assert told["windows"]["last_1m"]["outcomes"] == {"disconnected": 3}


async def test_lists_of_calls_have_an_end(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([ENDLESS]), prefill_s=50.0) as server:
        async with asking(server, MAX_CALLS + 20):
            told = await stats_of(server)
    assert (len(told["waiting"]), told["num_calls"]) == (MAX_CALLS, MAX_CALLS + 20)
    assert told["waiting"][0]["request_id"] == "call-0"


async def test_refusals_are_counted_by_cause_and_listed_with_their_ids(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([ENDLESS]), max_choices=0) as server:
        await server.post(CHAT, HELLO, {"x-request-id": "full"})
        await trio.sleep(1)
        await server.post(CHAT, {**HELLO, "temperature": 9}, {"x-request-id": "<b>wrong</b>"})
        await trio.sleep(1)
        await server.post(CHAT, {**HELLO, "temperature": 9}, {"x-request-id": "wrong"})
        told = await stats_of(server)
    window = told["windows"]["since_start"]
    assert (window["unavailable"], window["outcomes"]) == ({"queue_full": 1}, {"refused": 3})
    wrong, _, full = told["failures"]
    assert full == {
        "unix_s": CREATED_S,
        "request_id": "full",
        "route": CHAT,
        "status": 503,
        "outcome": "refused",
        "cause": "queue_full",
    }
    assert (wrong["request_id"], wrong["status"], wrong["cause"]) == ("wrong", 400, "invalid")


async def test_failures_of_clients_do_not_push_out_those_of_the_server(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([ENDLESS]), max_choices=0) as server:
        await server.post(CHAT, HELLO)
        await trio.sleep(1)
        for _ in range(200):
            await server.post(CHAT, b"{")
        told = await stats_of(server)
    assert [one["status"] for one in told["failures"]] == [400] * 20 + [503]


async def test_a_stream_is_a_snapshot_at_once_and_one_a_second_made_once_for_all(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([WORDS])) as server:
        asked: list[float] = []
        server.stats.sources.status = lambda: asked.append(trio.current_time()) or "ready"  # type: ignore[func-returns-value]
        exchanges = [Exchange() for _ in range(5)]
        async with trio.open_nursery() as nursery:
            for exchange in exchanges:
                nursery.start_soon(exchange.run, server.app, "/v1/stats/stream?limit=4", b"", {}, "GET")
        # Four periods were looked at, one look a period, whoever listens.
        assert len(asked) == 4
        for exchange in exchanges:
            assert exchange.headers["content-type"].startswith("text/event-stream")
            events = [event for event in exchange.body.split(b"\n\n") if event.startswith(b"data: ")]
            assert len(events) == 4
            assert exchange.body == exchanges[0].body
            times = [json.loads(event[6:])["uptime_s"] for event in events]
            assert [later - sooner for sooner, later in pairwise(times[1:])] == pytest.approx([1.0, 1.0])


async def test_a_stream_ends_when_the_server_stops_and_when_its_client_leaves(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([WORDS])) as server:
        staying, leaving = Exchange(), Exchange()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(staying.run, server.app, "/v1/stats/stream", b"", {}, "GET")
            nursery.start_soon(leaving.run, server.app, "/v1/stats/stream", b"", {}, "GET")
            await trio.sleep(3.3)
            leaving.left.set()
            await trio.sleep(0.1)
            assert len(server.serving.answering) == 1
            server.serving.stopping.set()
            stopped_s = trio.current_time()
        assert staying.has_ended
        assert trio.current_time() == pytest.approx(stopped_s, abs=0.01)


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", "9999999999"])
async def test_a_limit_that_is_none_is_refused(limit: str, autojump_clock: Any) -> None:
    async with scripted_server(by_choice([WORDS])) as server:
        exchange = await get(server, f"/v1/stats/stream?limit={limit}")
    assert exchange.status == 400
    assert "limit" in exchange.body.decode()


async def test_a_stats_stage_that_is_dead_keeps_nobody_waiting_and_says_what_it_lost(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([WORDS])) as alive:
        well = await alive.post(CHAT, {**HELLO, "stream": True})
    async with scripted_server(by_choice([WORDS]), has_stats=False) as server:
        server.stats.receive.close()
        ill = await server.post(CHAT, {**HELLO, "stream": True})
        told = await stats_of(server)
    assert [round(at_s - well.started_s, 6) for at_s, _ in well.chunks] == [
        round(at_s - ill.started_s, 6) for at_s, _ in ill.chunks
    ]
    assert ill.body == well.body
    assert told["lost"]["records"] == len(WORDS.ids) + 1


async def test_metrics_say_what_the_run_was(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([WORDS]), prefill_s=3.0, gap_s=0.5, settings=METRICS) as server:
        await server.post(CHAT, {**HELLO, "stream": True})
        await server.post(CHAT, {**HELLO, "temperature": 9})
        await get(server, "/nowhere/at/all")
        await get(server, "/v1/models/of/ours")
        reply = await get(server, "/metrics")
    exposed, num_tokens = read(reply.body.decode()), len(WORDS.ids)
    assert exposed.problems == []
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert exposed.value("sglang:time_to_first_token_seconds_bucket", le="4.0", is_streaming="True") == 1
    assert exposed.value("sglang:time_to_first_token_seconds_bucket", le="2.0") == 0
    assert exposed.value("sglang:generation_tokens_total", is_streaming="True") == num_tokens
    assert exposed.value("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.5 * (num_tokens - 1))
    assert exposed.value("trnrt:calls_total", outcome="refused") == 1
    assert exposed.value("sglang:http_responses_total", endpoint=CHAT, status_code="400", method="POST") == 1
    assert exposed.value("sglang:http_responses_total", endpoint=CHAT, status_code="200", method="POST") == 1
    assert exposed.value("sglang:http_responses_total", endpoint="other", status_code="404") == 1
    assert exposed.value("sglang:http_requests_total", endpoint="/v1/models/{model_id}") == 1
    assert exposed.value("sglang:http_requests_active") == 1  # the scrape itself


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3", "openmetrics-text"),
        ("application/openmetrics-text;version=99", "openmetrics-text"),
        ("application/openmetrics-text;version=a.b.c", "openmetrics-text"),
        ("text/plain;version=abc", "text/plain"),
        (";;;=,,q", "text/plain"),
    ],
)
async def test_metrics_come_in_a_format_that_is_known_whatever_is_accepted(
    accept: str, expected: str, autojump_clock: Any
) -> None:
    async with scripted_server(by_choice([WORDS]), settings=METRICS) as server:
        reply = await server.post("/metrics", b"", {"accept": accept}, method="GET")
    version = "1.0.0" if expected == "openmetrics-text" else "0.0.4"
    assert reply.status == 200
    assert reply.headers["content-type"].partition("; charset")[0].endswith(f"{expected}; version={version}")


async def test_scrapes_that_come_fast_share_one_text(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def look(*given: Any) -> Any:
        looks.append(trio.current_time())
        return scrape(*given)

    monkeypatch.setattr("stages.ingress.stats_routes.scrape", look)
    async with scripted_server(by_choice([WORDS]), settings=METRICS) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(get, server, "/metrics")
        assert len(looks) == 1
        await server.post(CHAT, HELLO)
        await trio.sleep(SHARED_S)
        reply = await get(server, "/metrics")
    assert len(looks) == 2
    assert read(reply.body.decode()).value("trnrt:calls_total", outcome="stop") == 1


async def test_metrics_are_there_only_when_wanted_and_then_without_a_key(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([WORDS])) as server:
        assert (await get(server, "/metrics")).status == 404
    keyed = IngressSettings(enable_metrics=True, api_key="secret")
    async with scripted_server(by_choice([WORDS]), settings=keyed) as server:
        assert (await get(server, "/metrics")).status == 200
        assert (await get(server, "/v1/stats")).status == 401
        assert (await get(server, "/v1/stats/stream?limit=1")).status == 401


async def test_what_clients_send_does_not_make_metrics_grow(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([WORDS]), settings=METRICS) as server:
        for number in range(50):
            await server.post(f"/path/{number}", b"", method=f"M{number}")
        endpoints = {name for name, _ in server.serving.http.requests}
        methods = {method for _, method in server.serving.http.requests}
    assert (endpoints, methods) == ({"other"}, {"other"})
