"""A line for every HTTP call, when it is wanted."""

import logging

import pytest
import trio
import trio.testing

from stages.calls import current_call
from stages.ingress.app import App
from tests.fakes import FakeEngine, counting, silent
from tests.stages.ingress.http import ask, connected, eventually, running

HEALTH = ["/health", "/get_health", "/health_generate", "/ready", "/ping", "/get_ping", "/metrics"]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "trnrt.access")

    def lines() -> list[tuple[str, dict]]:
        return [(record.getMessage(), record.fields) for record in caplog.records if record.name == "trnrt.access"]

    return lines


def wanting(**switches):
    def extend(app: App) -> None:
        app.serving.logs.change(**switches)

    return extend


async def test_every_call_is_a_line_with_its_status_and_its_time_and_no_query(said):
    async with running(counting(2, delay_s=0.01), wanting(access=True)) as server:
        await ask(server.port, "/text", {"prompts": ["hi"]})
        await ask(server.port, "/text", {"prompts": ["hi"], "stream": True})
        await ask(server.port, "/text", b"{")
        async with connected(server.port) as client:
            await client.get("/version?api_key=secret")
            await client.get("/nowhere")
    told = [(line, fields["client"], fields["status"]) for line, fields in said()]
    assert told == [
        ("POST /text", "127.0.0.1", 200),
        ("POST /text", "127.0.0.1", 200),
        ("POST /text", "127.0.0.1", 400),
        ("GET /version", "127.0.0.1", 200),
        ("GET /nowhere", "127.0.0.1", 404),
    ]
    assert all(fields["took_s"] >= 0 for _, fields in said())
    assert said()[0][1]["took_s"] >= 0.02


async def test_health_checks_are_no_lines_unless_asked_for(said):
    async with running(silent, wanting(access=True)) as server, connected(server.port) as client:
        for path in HEALTH:
            await client.get(path)
        await trio.testing.wait_all_tasks_blocked()
        assert said() == []
        server.app.serving.logs.change(access_health=True)
        for path in HEALTH:
            await client.get(path)
        await eventually(lambda: len(said()) == len(HEALTH))
        assert [line for line, _ in said()] == [f"GET {path}" for path in HEALTH]


async def test_nothing_is_a_line_where_none_is_wanted(said):
    async with running(counting(1), wanting(access_health=True)) as server, connected(server.port) as client:
        await client.get("/version")
        await client.get("/health")
    assert said() == []


async def test_a_client_that_leaves_is_a_499(said):
    async with running(silent, wanting(access=True)) as server:
        async with connected(server.port) as client:
            await client.post("/text", {"prompts": ["hi"], "stream": True})
            await eventually(lambda: bool(server.engine.submits))
        await eventually(lambda: bool(said()))
    assert [fields["status"] for _, fields in said()] == [499]


async def test_each_call_of_a_connection_has_its_own_id_and_trace(monkeypatch):
    seen = []
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    submit = FakeEngine.submit

    def spied(engine, submits):
        seen.append(current_call())
        submit(engine, submits)

    monkeypatch.setattr(FakeEngine, "submit", spied)
    async with running(counting(1, delay_s=0), trace_sample_ratio=0.0) as server, connected(server.port) as client:
        for headers in (["x-request-id: a", f"traceparent: {trace}"], ["x-request-id: b"]):
            await client.post("/text", {"prompts": ["hi"]}, headers)
            await client.reply()
    first, second = seen
    assert (first.request_id, first.trace.parent_id, first.trace.is_sampled) == ("a", "b7ad6b7169203331", True)
    assert (second.request_id, second.trace.parent_id, second.trace.is_sampled) == ("b", None, False)
