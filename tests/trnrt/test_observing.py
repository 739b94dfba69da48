"""What a started process shows of itself: its log on stderr, its traces at a collector."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
import trio
from attrs import define, field

from stages.errors import ConfigError, StartupError
from stages.intervals import intervals
from stages.messages import RequestRecord
from stages.traces.exporter import TraceExporter
from tests.fake_engine import FakeGenerate
from tests.small_server import small_server
from tests.stages.ingress.http import ask, connected, eventually
from tests.trnrt.render_kit import DEMO, MESSAGES, saying
from trnrt.__main__ import main
from trnrt.config import load_config
from trnrt.observing import exporting, open_traces, traces_url
from trnrt.render_config import load_render_config
from trnrt.serve import serve

ROOT = Path(__file__).resolve().parents[2]
CHAT = {"messages": MESSAGES, "max_tokens": 9}
TRACE = "0af7651916cd43dd8448eb211c80319c"
FORGED = "x\n2026-11-30 22:00:00,000 ERROR all is lost\x1b[2J"


@define(eq=False)
class Renderer:
    """A started renderer: its port, and its stderr read or not."""

    process: "subprocess.Popen[bytes]"
    port: int
    lines: list[str] = field(factory=list)

    @property
    def stderr(self) -> IO[bytes]:
        assert self.process.stderr is not None
        return self.process.stderr

    async def stop(self) -> int:
        """End it by SIGTERM, reading the rest of its log."""
        self.process.send_signal(signal.SIGTERM)
        rest = await trio.to_thread.run_sync(self.stderr.read)
        self.lines += rest.decode().splitlines()
        return await trio.to_thread.run_sync(self.process.wait)


@asynccontextmanager
async def started(*flags: str) -> AsyncIterator[Renderer]:
    """Start a renderer of the demo model; nobody reads its stderr after the line that says where it listens."""
    command = [sys.executable, "-m", "trnrt", "render", DEMO, "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT, bufsize=0)  # noqa: ASYNC220  # it only starts
    assert process.stderr is not None
    lines: list[str] = []
    try:
        with trio.fail_after(60):
            while not (found := re.search(r"listening on http://127.0.0.1:(\d+)", lines[-1] if lines else "")):
                line = await trio.to_thread.run_sync(process.stderr.readline)
                assert line, lines
                lines.append(line.decode().rstrip("\n"))
        with trio.fail_after(60):
            yield Renderer(process, int(found[1]), lines)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@asynccontextmanager
async def engine_saying(text: str) -> AsyncIterator[tuple[FakeGenerate, str]]:
    """Serve an engine on a free port, giving it and its URL."""
    fake = FakeGenerate(saying(text))
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, fake.serve, 0, host="127.0.0.1"))
        yield fake, f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_all_a_process_logs_is_json_and_everything_of_a_call_has_its_id() -> None:
    flags = ["--log-format", "json", "--log-requests", "--log-requests-level", "3", "--access-log"]
    async with engine_saying("Good day") as (_, url), started("--engine-url", url, *flags) as renderer:
        body = {"messages": [{"role": "user", "content": FORGED}], "rid": FORGED[:20]}
        reply = await ask(renderer.port, "/v1/chat/completions", body, ["x-request-id: mine"])
        assert reply.status == 200
        assert await renderer.stop() == 0
    told = [json.loads(line) for line in renderer.lines]
    of_call = [line for line in told if line.get("request_id") == "mine"]
    assert [line["logger"] for line in of_call] == ["trnrt.requests", "trnrt.access"]
    assert [list(said.values()) for said in of_call[0]["answers"]] == [["Good day"]]
    assert "all is lost" in of_call[0]["prompts"][0]
    assert any(line["message"].startswith("SIGTERM") for line in told)
    assert all({"time", "level", "logger", "message"} <= set(line) for line in told)


async def test_nothing_a_client_writes_is_a_line_of_the_log() -> None:
    flags = ["--log-requests", "--log-requests-level", "3", "--access-log"]
    async with engine_saying(FORGED) as (_, url), started("--engine-url", url, *flags) as renderer:
        body = {"messages": [{"role": "user", "content": FORGED}], "stop": [FORGED]}
        assert (await ask(renderer.port, "/v1/chat/completions", body)).status == 200
        await ask(renderer.port, "/nowhere%0A2026-11-30%2022:00:00,000%20ERROR%20all", b"")
        assert await renderer.stop() == 0
    told = [line for line in renderer.lines if "22:00:00,000" in line]
    assert len(told) == 2
    assert all(re.match(r"\S+ \S+ INFO \[[0-9a-f]{32}\] (Finish|POST) ", line) for line in told)
    assert not any(re.match(r"2026-11-30 22:00:00,000", line) for line in renderer.lines)
    assert not any("\x1b" in line for line in renderer.lines)


async def test_a_log_that_nobody_reads_holds_nothing_up_and_comes_whole_once_somebody_does() -> None:
    num_calls = 1500  # some 150 kB of lines; a pipe holds 64
    async with started("--access-log") as renderer:
        async with connected(renderer.port) as client:
            for _ in range(num_calls):
                assert (await client.get("/v1/models")).status == 200
        assert await renderer.stop() == 0
    assert sum("GET /v1/models" in line for line in renderer.lines) == num_calls
    assert not any("were lost" in line for line in renderer.lines)


async def test_one_trace_goes_from_the_client_through_the_renderer_to_the_engine() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from tests.collector import collecting

    with collecting() as collector:
        async with engine_saying("Good day") as (engine, url):
            async with started("--engine-url", url, "--otlp-endpoint", collector.url) as renderer:
                headers = [f"traceparent: 00-{TRACE}-b7ad6b7169203331-01", "tracestate: a=1"]
                await ask(renderer.port, "/v1/chat/completions", CHAT, headers)
                await ask(renderer.port, "/v1/chat/completions", CHAT, [f"traceparent: 00-{TRACE}-b7ad6b7169203331-00"])
                assert await renderer.stop() == 0
    assert collector.names == ["chat trnrt/models/demo_files", "ingress", "prompt", "engine", "decode", "deliver"]
    whole = collector.spans[0][0]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex(), whole.trace_state) == (TRACE, "b7ad6b7169203331", "a=1")
    traced, untraced = engine.exchanges
    assert traced.headers["traceparent"] == f"00-{TRACE}-{whole.span_id.hex()}-01"
    assert traced.headers["tracestate"] == "a=1"
    assert untraced.headers["traceparent"] == f"00-{TRACE}-b7ad6b7169203331-00"


async def test_without_tracing_a_trace_still_reaches_the_engine() -> None:
    given = f"00-{TRACE}-b7ad6b7169203331-01"
    async with engine_saying("Good day") as (engine, url), started("--engine-url", url) as renderer:
        await ask(renderer.port, "/v1/chat/completions", CHAT, [f"traceparent: {given}"])
        await ask(renderer.port, "/v1/chat/completions", CHAT)
        await eventually(lambda: len(engine.exchanges) == 2)
    assert [exchange.headers.get("traceparent") for exchange in engine.exchanges] == [given, None]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("collector:4318", "http://collector:4318/v1/traces"),
        ("http://[::1]:4318/otlp/", "http://[::1]:4318/otlp/v1/traces"),
        ("http://collector:4318/v1/traces", "http://collector:4318/v1/traces"),
    ],
)
def test_a_collector_may_be_named_by_its_address_or_by_the_path_of_traces(given: str, url: str) -> None:
    assert traces_url(given) == url


@pytest.mark.parametrize("given", ["", "http://", "ftp://x", "http://x:99999999", "http://x?y=1", "http://a:b@x"])
def test_what_is_no_address_of_a_collector_is_refused_by_its_flag(given: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-endpoint"):
        traces_url(given)


def test_without_the_package_the_start_fails_and_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "stages.traces.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    config = load_config(["--otlp-endpoint", "http://collector:4318"], {})
    with pytest.raises(StartupError, match=r"--otlp-endpoint needs OpenTelemetry .* pip install 'trnrt\[otel\]'"):
        open_traces(config, "1", {})
    assert main(["render", DEMO, "--port", "0", "--otlp-endpoint", "http://collector:4318"]) == 2
    assert "pip install 'trnrt[otel]'" in capsys.readouterr().err


def test_without_an_endpoint_nothing_is_opened() -> None:
    assert open_traces(load_config([], {}), "1", {}) is None


@pytest.mark.parametrize("load", [load_config, lambda argv, env: load_render_config([DEMO, *argv], env)])
@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--log-requests-level", "4"], "--log-requests-level: must be at most 3"),
        (["--log-requests-level", "-1"], "--log-requests-level: must be at least 0"),
        (["--otlp-sample-ratio", "1.5"], "--otlp-sample-ratio: must be at most 1"),
        (["--log-format", "xml"], "--log-format: expected one of text, json"),
    ],
)
def test_a_wrong_flag_of_the_log_is_told_by_name(load: Callable[..., Any], argv: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(argv, {})


def test_a_process_that_fails_says_why_in_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> int:
        raise KeyError("unforeseen")

    monkeypatch.setattr("trnrt.render.run_render", broken)
    assert main(["render", DEMO, "--log-format", "json"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["message"]) == ("critical", "the process failed")
    assert "KeyError: 'unforeseen'" in told["traceback"]


async def test_an_engine_of_our_own_traces_the_stages_of_its_scheduler_and_logs_its_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    records: list[RequestRecord] = []

    def send(batch: Sequence[RequestRecord]) -> bool:
        records.extend(batch)
        return True

    server = small_server(
        lambda step: 0.001,
        max_running_requests=4,
        max_total_tokens=4096,
        otlp_endpoint="http://collector",
        otlp_sample_ratio=1.0,
        decode_log_interval=4,
        log_requests=True,
        log_requests_level=1,
    )
    server.traces = TraceExporter(send, lambda: None, "http://collector")
    with exporting(server.traces), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, server)
            assert server.port is not None
            body = {"prompt": "red blue", "max_tokens": 9, "ignore_eos": True}
            assert (await ask(server.port, "/v1/completions", body)).status == 200
            nursery.cancel_scope.cancel()
    (record,) = records
    assert [interval.stage for interval in intervals(record)] == [
        "ingress", "prompt", "queue", "prefill", "decode", "deliver",
    ]  # fmt: skip
    assert record.trace is not None
    assert (record.trace.parent_id, record.trace.is_sampled) == (None, True)
    told = caplog.messages
    steps = [line.split(",")[0] for line in told if " batch, " in line]
    # Steps that were done before the scheduler looked are in one line.
    assert (steps[0], set(steps[1:])) == ("Prefill batch", {"Decode batch"})
    (finish,) = [line for line in caplog.records if line.getMessage() == "Finish"]
    assert finish.fields["sampling"]["max_new_tokens"] == 9  # type: ignore[attr-defined]
