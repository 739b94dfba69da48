"""The nursery tree over real sockets, its device a stand-in: stages that die, signals, and who hears of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio

import trnrt.running
from graphs.step import StepInput
from stages.detokenizer.stage import Detokenizer
from stages.errors import EngineFailure
from stages.prompt.stage import Prompter
from stages.scheduler.core import SchedulerCore
from tests.sim.history_device import HistoryDevice
from tests.small_server import small_server
from trnrt.config import load_config
from trnrt.serve import Server, drain, scheduler_settings, serve
from trnrt.supervise import first_cause

STEP_S = 0.005
BODY = {"prompt": "red blue", "max_tokens": 400, "ignore_eos": True}


def slow(step: StepInput) -> float:
    """Take STEP_S on the engine's thread."""
    time.sleep(STEP_S)
    return STEP_S


def slow_server(**flags: Any) -> Server:
    """A server whose device takes STEP_S a step."""
    return small_server(slow, max_running_requests=4, max_total_tokens=4096, **flags)


async def post(port: int, path: str, body: dict[str, Any]) -> str:
    """Return everything the server sends for one call, to the end of the connection."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(head.encode() + data)
        got = [piece async for piece in stream]
    return b"".join(got).decode()


async def answers_while(server: Server, break_it: Callable[[], None]) -> tuple[list[str], BaseException]:
    """Run a stream, a body and more than fit at once; break something under them; return answers and the end."""
    answers: list[str] = []
    ended: list[BaseException] = []

    async def client(body: dict[str, Any]) -> None:
        assert server.port is not None
        answers.append(await post(server.port, "/v1/completions", body))

    async def latecomer() -> None:
        assert server.port is not None
        with suppress(OSError, trio.BrokenResourceError):  # the process may have gone by now
            await post(server.port, "/v1/completions", {**BODY, "max_tokens": 1})

    async def run(task_status: "trio.TaskStatus[Server]") -> None:
        try:
            await serve(server, task_status=task_status)
        except BaseExceptionGroup as group:
            ended.append(first_cause(group))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            for index in range(8):
                nursery.start_soon(client, {**BODY, "stream": index % 2 == 0, "n": 1 + index % 3})
            await trio.sleep(0.3)
            break_it()
            nursery.start_soon(latecomer)
    return answers, ended[0]


def broken(*args: object, **kwargs: object) -> Any:
    raise ValueError("broken by the test")


@pytest.mark.parametrize(
    ("owner", "method"),
    [(Detokenizer, "deliver"), (SchedulerCore, "complete"), (HistoryDevice, "run"), (Prompter, "answers")],
    ids=["detokenizer", "scheduler", "device", "prompt"],
)
async def test_whichever_stage_dies_every_client_is_told_before_the_process_ends(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    server = slow_server()

    answers, end = await answers_while(server, lambda: monkeypatch.setattr(owner, method, broken))

    assert isinstance(end, ValueError | EngineFailure)
    assert len(answers) == 8
    for answer in answers:
        assert answer.startswith(("HTTP/1.1 500", "HTTP/1.1 503")) or answer.rstrip().endswith("[DONE]\n\n\r\n0"), (
            answer
        )
        assert '"error":{"message":' in answer
        assert "broken by the test" not in answer


def test_the_cause_of_a_failure_is_who_died_and_not_who_found_a_channel_broken() -> None:
    group = BaseExceptionGroup("", [BaseExceptionGroup("", [trio.BrokenResourceError()]), ValueError("it"), KeyError()])

    assert isinstance(first_cause(group), ValueError)
    assert isinstance(first_cause(ExceptionGroup("", [trio.EndOfChannel()])), trio.EndOfChannel)
    assert isinstance(first_cause(KeyError()), KeyError)


async def test_a_signal_before_the_server_is_ready_drains_it() -> None:
    server = slow_server()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, server)
            await serve(server)

    assert server.phase == "draining"


async def test_a_signal_while_a_stage_has_failed_adds_nothing_to_the_failure() -> None:
    server = slow_server(drain_timeout=0.0)
    server.channels.scheduler_receive.close()

    await drain(server)

    assert server.http_shutdown.is_set()


async def test_what_still_runs_at_the_end_of_the_drain_is_told_at_once() -> None:
    server = slow_server(drain_timeout=0.0)
    answers: list[str] = []

    async def client(stream: bool) -> None:
        assert server.port is not None
        answers.append(await post(server.port, "/v1/completions", {**BODY, "stream": stream}))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, server)
            nursery.start_soon(client, True)
            nursery.start_soon(client, False)
            await trio.sleep(0.3)
            began_s = trio.current_time()
            nursery.start_soon(drain, server)

    assert trio.current_time() - began_s < trnrt.running.LAST_FRAMES_S
    assert all("The server is shutting down." in answer for answer in answers)


async def test_a_second_signal_tells_everybody_and_ends_the_process_with_130() -> None:
    server = slow_server()
    answers: list[str] = []
    codes: list[int] = []

    async def client(stream: bool) -> None:
        assert server.port is not None
        answers.append(await post(server.port, "/v1/completions", {**BODY, "stream": stream}))

    async def run() -> None:
        codes.append(await trnrt.running.until_signalled(server, partial(serve, server), partial(drain, server), 30))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while server.port is None:  # noqa: ASYNC110  # nothing tells when it listens
                await trio.sleep(0.01)
            nursery.start_soon(client, True)
            nursery.start_soon(client, False)
            await trio.sleep(0.3)
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGTERM)

    assert codes == [130]
    assert len(answers) == 2
    assert all("The server is shutting down." in answer for answer in answers)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_the_server_loads_ends_it_quietly(number: signal.Signals, code: int) -> None:
    flags = ["--port", "0", "--device-mode", "eager"]
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "trnrt", *flags], stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"graphs.devices.cpu" in line or b"torch" in line:
                process.send_signal(number)
                break
        rest = process.stderr.read()

    assert process.returncode == code
    assert b"Traceback" not in rest
    assert b"listening" not in rest


SWALLOWING = """
import os, signal, sys, time
import trnrt.serve
from trnrt.__main__ import main

def build_device(*args, build=trnrt.serve.build_device):
    try:
        os.kill(os.getpid(), {number})
        time.sleep(5)
    except BaseException:
        pass
    return build(*args)

trnrt.serve.build_device = build_device
sys.argv = ["trnrt", "--port", "0", "--device-mode", "eager"]
sys.exit(main())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_a_library_swallows_while_the_server_loads_still_ends_it(number: signal.Signals, code: int):
    program = SWALLOWING.format(number=int(number))
    ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode == code
    assert b"Traceback" not in ended.stderr
    assert b"listening" not in ended.stderr


@pytest.mark.parametrize("command", ["serve", "render"])
def test_an_interrupt_while_modules_are_imported_ends_it_quietly(command: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "trnrt", command], stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"attr._make" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()

    assert process.returncode == 130
    assert b"Traceback" not in rest


@pytest.mark.parametrize(
    ("argv", "overlap"), [([], True), (["--disable-overlap-schedule"], False), (["--disable-overlap-schedule=0"], True)]
)
def test_the_next_step_is_planned_ahead_unless_the_flag_says_not_to(argv: list[str], overlap: bool) -> None:
    assert scheduler_settings(load_config(argv, {})).overlap is overlap


@pytest.mark.parametrize("preset", ["default", "batch8"])
def test_server_info_tells_the_presets_name(preset: str) -> None:
    assert trnrt.serve._info(slow_server(preset=preset)).server_args()["preset"] == preset
