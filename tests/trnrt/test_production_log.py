"""The production log of whole servers: what calls leave in it, in either role, and that a bad folder stops nobody."""

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from graphs.step import StepInput
from stages.errors import ConfigError, EngineFailure
from stages.scheduler.core import SchedulerCore
from stages.stats.prodlog.folder import log_files
from stages.stats.prodlog.lines import EndLine, GaugesLine, Header, RequestLine
from tests.small_server import small_server
from tests.stages.ingress.http import ask
from tests.stages.stats.prodlog.kit import Read, read
from tests.trnrt.render_kit import MESSAGES, rendering, saying
from tests.trnrt.test_serve import answers_while, broken, slow_server
from trnrt.config import Config, load_config
from trnrt.production_log import check_production_log
from trnrt.serve import Server, drain, serve

SECRET = "words that nobody may keep"
BODY: dict[str, Any] = {"prompt": "red blue", "max_tokens": 6, "ignore_eos": True}


def quick(step: StepInput) -> float:
    time.sleep(0.001)
    return 0.001


async def logged(path: Path, calls: list[tuple[str, dict[str, Any]]], **flags: Any) -> tuple[list[int], Server]:
    """Ask a server one call after the other, drain it, and return the statuses."""
    server = small_server(quick, max_total_tokens=4096, prod_dir=str(path), **flags)
    statuses = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, server)
            assert server.port is not None
            for route, body in calls:
                statuses.append((await ask(server.port, route, body)).status)
            nursery.start_soon(drain, server)
    return statuses, server


async def test_every_call_leaves_one_line_with_what_it_took_and_none_of_its_words(tmp_path: Path) -> None:
    began_s = time.time()
    calls = [
        ("/v1/completions", BODY | {"prompt": SECRET, "rid": SECRET, "model": f"claude-{SECRET}"}),
        ("/v1/completions", BODY | {"stream": True, "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3}),
        ("/v1/completions", BODY | {"max_tokens": 1_000_000}),
    ]

    statuses, _ = await logged(tmp_path, calls)

    got = read(tmp_path)
    first, stream, chat, refused = got.of(RequestLine)
    assert statuses == [200, 200, 200, 400]
    assert [line.status for line in got.of(RequestLine)] == statuses
    assert (first.route, first.outcome, first.completion_tokens, first.num_choices) == (
        "/v1/completions",
        "length",
        6,
        1,
    )
    assert (stream.is_streamed, stream.num_choices, stream.completion_tokens) == (True, 2, 12)
    assert (chat.route, chat.prompt_tokens > 3, chat.completion_tokens) == ("/v1/chat/completions", True, 3)
    assert (refused.outcome, refused.cause, refused.first_token_s) == ("refused", "context_length", None)
    for line in (first, stream, chat):
        assert began_s - 1 < line.at_s < time.time()
        assert 0 <= line.parsed_s <= line.prompt_ready_s <= line.submitted_s <= line.admitted_s
        assert line.admitted_s <= line.first_token_s <= line.last_token_s <= line.ended_s
    (header,) = got.of(Header)
    assert (header.role, header.model) == ("serve", "glm-5.3-flash-demo")
    assert [line.is_last for line in got.of(EndLine)] == [True]
    assert got.of(GaugesLine)[0].total_pages > 0
    assert (got.num_bad, got.endings) == (0, ["closed"])
    text = b"".join(file.read_bytes() for file in log_files(tmp_path))
    assert not [word for word in SECRET.encode().split() if word in text]


async def test_a_renderer_logs_its_calls_too(tmp_path: Path) -> None:
    async with rendering(saying("Good day"), "--prod-dir", str(tmp_path)) as run:
        reply = await ask(run.port, "/v1/chat/completions", {"messages": MESSAGES})

    got: Read = read(tmp_path)
    (line,) = got.of(RequestLine)
    assert (reply.status, line.status, line.outcome, line.completion_tokens) == (200, 200, "stop", 2)
    assert line.first_token_s is not None
    assert (got.of(Header)[0].role, got.endings, got.num_bad) == ("render", ["closed"], 0)


async def test_a_folder_that_cannot_be_written_is_told_once_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("mine")

    statuses, _ = await logged(tmp_path / "file" / "log", [("/v1/completions", BODY)] * 3)

    assert statuses == [200, 200, 200]
    told = [record.message for record in caplog.records if record.name == "trnrt.prodlog"]
    assert [one.partition(":")[0].split(" its last")[0] for one in told] == [
        "the production log cannot be written",
        "the production log ends without",
    ]


async def test_a_server_that_fails_has_told_its_log_of_every_call_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = slow_server(prod_dir=str(tmp_path))

    answers, end = await answers_while(server, lambda: monkeypatch.setattr(SchedulerCore, "complete", broken))

    got = read(tmp_path)
    assert isinstance(end, ValueError | EngineFailure)
    assert len(got.of(RequestLine)) >= len(answers)
    assert {line.cause for line in got.of(RequestLine)} <= {"engine_failed", "draining", "internal"}
    assert got.endings == ["closed"]


async def test_without_the_flag_nothing_is_written_and_no_thread_runs(tmp_path: Path) -> None:
    server = small_server(quick, max_total_tokens=4096)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, server)
            assert server.stats.taps == []
            nursery.start_soon(drain, server)


def test_a_folder_that_can_never_be_one_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(ConfigError, match=r"--prod-dir: .*file is not a folder"):
        check_production_log(Config(prod_dir=str(tmp_path / "file")))
    with pytest.raises(ConfigError, match="--prod-dir: expected a folder, got ''"):
        check_production_log(Config(prod_dir=""))
    check_production_log(Config(prod_dir=str(tmp_path / "later")))


def test_the_setting_has_its_short_and_its_long_name() -> None:
    by_name = [
        load_config(["--prod-dir", "x"], {}),
        load_config(["--prod-log-dir", "x"], {}),
        load_config([], {"TRNRT_PROD_DIR": "x"}),
    ]

    assert {config.prod_dir for config in by_name} == {"x"}
    assert load_config(["--prod-log-max-mb", "7"], {}).prod_max_mb == 7
    with pytest.raises(ConfigError, match="prod-max-mb: must be at least 1"):
        load_config(["--prod-max-mb", "0"], {})
