#!/usr/bin/env python3
"""Measure what one SSE chunk costs ingress: a process serves paced streams from a scripted engine, this one reads them.

    scripts/bench_sse.py [--streams 32] [--steps-per-s 50] [--seconds 5] [--stock]

Prints one JSON object: chunks, the server's CPU us a chunk in Python and in the kernel, its share of a core, and the
latency from step to read in ms. --stock leaves hypercorn as it is, to compare. CPU time is the number to keep; latency
depends on who else is running.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import trio
from attrs import define, field

sys.path.insert(0, str(Path(__file__).parent.parent))

from stages.engine.port import Order, Scope
from stages.ingress import server
from stages.ingress.respond import Serving
from stages.ingress.routes import create_app
from stages.messages import CommandResult, Delta, Render, Submit
from stages.request import Services
from stages.settings import IngressSettings
from tests.fakes import FAKE_MODEL, TEXT_DIALECT, fake_prompt_stage
from tests.stages.ingress.http import fake_info, post_bytes

PADDING = "x" * 170  # makes a chunk about as long as a chat completion chunk


@define(eq=False)
class PacedEngine:
    """One token to every running choice a step; the text is the instant of the step in us."""

    running: dict[str, Submit] = field(factory=dict)
    num_chunks: int = 0

    def submit(self, submits: tuple[Submit, ...]) -> None:
        for submit in submits:
            self.running[submit.key.request_id] = submit

    async def command(self, order: Order) -> CommandResult:
        """Refuse: there is nothing to order about here."""
        return CommandResult(is_done=False)

    def cancel(
        self, request_id: str, *, deliver: bool = False, message: str = "Aborted", scope: Scope = "request"
    ) -> None:
        self.running.pop(request_id, None)

    async def run(self, steps_per_s: float) -> None:
        next_s = trio.current_time()
        while True:
            next_s += 1 / steps_per_s
            await trio.sleep_until(next_s)
            delta = Delta(0, (1,), f"{time.monotonic_ns() // 1000} {PADDING}")
            for submit in self.running.values():
                submit.mailbox.send_nowait(delta)
            self.num_chunks += len(self.running)


async def serve(steps_per_s: float) -> None:
    """Serve until stdin ends, printing the port, then at each line the CPU seconds used and chunks made so far."""
    engine = PacedEngine()
    renders_send, renders_receive = trio.open_memory_channel[Render](100)
    settings = IngressSettings(port=0, drain_timeout_s=0.1)
    serving = Serving(Services(engine, renders_send, FAKE_MODEL), settings)
    app = create_app([TEXT_DIALECT], serving, fake_info(lambda: "ready"))
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake_prompt_stage, renders_receive)
        nursery.start_soon(engine.run, steps_per_s)
        serve_http = lambda task_status: server.serve_http(  # noqa: E731
            app, settings, shutdown=shutdown, task_status=task_status
        )
        print(await nursery.start(serve_http), flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            usage = resource.getrusage(resource.RUSAGE_SELF)
            print(usage.ru_utime, usage.ru_stime, engine.num_chunks, flush=True)
        shutdown.set()
        nursery.cancel_scope.cancel()


async def read_stream(port: int, latencies_us: list[int]) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(post_bytes("/text", {"prompts": ["hi"], "stream": True, "max_tokens": 4000}))
        while data := await stream.receive_some():
            now_us = time.monotonic_ns() // 1000
            for part in data.split(b"data: 0/0 ")[1:]:
                stamp = part.partition(b" ")[0]
                if len(stamp) > 8:
                    latencies_us.append(now_us - int(stamp))


async def measure(num_streams: int, steps_per_s: float, seconds: float, stock: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--serve", "--steps-per-s", str(steps_per_s), *(["--stock"] if stock else [])]
    with subprocess.Popen(  # noqa: ASYNC220
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def sample() -> tuple[float, float, int]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            user_s, system_s, num_chunks = process.stdout.readline().split()
            return float(user_s), float(system_s), int(num_chunks)

        port = int(process.stdout.readline())
        latencies_us: list[int] = []
        async with trio.open_nursery() as nursery:
            for _ in range(num_streams):
                nursery.start_soon(read_stream, port, latencies_us)
            await trio.sleep(1.0)
            latencies_us.clear()
            before = await trio.to_thread.run_sync(sample)
            await trio.sleep(seconds)
            after = await trio.to_thread.run_sync(sample)
            nursery.cancel_scope.cancel()
        process.stdin.close()
    ordered = sorted(latencies_us)
    user_s, system_s, num_chunks = after[0] - before[0], after[1] - before[1], after[2] - before[2]
    return {
        "streams": num_streams,
        "chunks": num_chunks,
        "user_us_per_chunk": round(user_s / num_chunks * 1e6, 1),
        "system_us_per_chunk": round(system_s / num_chunks * 1e6, 1),
        "share_of_core": round((user_s + system_s) / seconds, 3),
        "latency_p50_ms": ordered[len(ordered) // 2] / 1000,
        "latency_p99_ms": ordered[len(ordered) * 99 // 100] / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--steps-per-s", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--stock", action="store_true", help="without our hardening of hypercorn")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        if arguments.stock:
            server.install = lambda: None
        trio.run(serve, arguments.steps_per_s)
    else:
        print(
            json.dumps(trio.run(measure, arguments.streams, arguments.steps_per_s, arguments.seconds, arguments.stock))
        )


if __name__ == "__main__":
    main()
