#!/usr/bin/env python3
"""Measure what a large body costs other streams: a process serves, one reads paced streams, this one posts bodies.

    scripts/bench_bodies.py [--streams 8] [--steps-per-s 100] [--seconds 6] [--only NAME]

Prints one line a kind of body: its size, how many were answered and how long one took, and the streams' token gap in
ms: p50, p99, max, over all streams. Every other part is the real one: the prompt stage with the shipped tokenizer, the
dialects, the HTTP server, the switch interval and the collector's thresholds that serving sets.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import orjson
import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.bench_sse import PacedEngine
from stages.channels import PROMPT_QUEUE
from stages.ingress.dialects import find_dialects
from stages.ingress.respond import Serving
from stages.ingress.routes import create_app
from stages.ingress.server import serve_http
from stages.messages import Ended, Finish, Render, Submit, Usage
from stages.prompt.stage import run_prompt_stage
from stages.request import Services
from stages.settings import IngressSettings, PromptSettings
from tests.fakes import FAKE_MODEL, TEXT_DIALECT
from tests.stages.ingress.http import ask, fake_info, post_bytes

ROOT = Path(__file__).parent.parent
MODEL = attrs.evolve(FAKE_MODEL, context_length_tokens=1_048_576, vocab_size=4096)
Make = Callable[[], tuple[str, object]]


def chat(num_messages: int, num_characters: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": ("the quick fox " * 9)[:num_characters]} for at in range(num_messages)]


def ids(count: int) -> list[int]:
    return [300 + at % 700 for at in range(count)]


# By name, what is posted where; answers of generation end at once.
KINDS: dict[str, Make] = {
    "nothing": lambda: ("/tokenize", {"prompt": "x"}),
    "chat, 400 messages": lambda: ("/v1/chat/completions", {"messages": chat(400, 120), "max_tokens": 1}),
    "chat, 40,000 messages": lambda: ("/v1/chat/completions", {"messages": chat(40_000, 40), "max_tokens": 1}),
    "messages, 40,000": lambda: ("/v1/messages", {"messages": chat(40_000, 40), "max_tokens": 1}),
    "responses, 40,000 items": lambda: ("/v1/responses", {"input": chat(40_000, 40), "max_output_tokens": 1}),
    "detokenize, 810,000 ids": lambda: ("/detokenize", {"tokens": ids(810_000)}),
    "tokenize, 2 MB of text": lambda: ("/tokenize", {"prompt": "the quick fox " * 150_000}),
    "generate, 1,000,000 ids": lambda: ("/generate", {"input_ids": ids(1_000_000), "sampling_params": {}}),
    "completions, 4096 prompts": lambda: ("/v1/completions", {"prompt": [ids(950)] * 4096}),
    "chat, 30 MB of messages": lambda: ("/v1/chat/completions", {"messages": chat(480_000, 20)}),
    "a field of containers": lambda: ("/generate", {"text": "x", "no_such_field": [[], {}, "x" * 40] * 490_000}),
    "one string of 30 MB": lambda: ("/generate", {"text": "x", "no_such_field": "x" * 30_000_000}),
}


class EndingEngine(PacedEngine):
    """Ends at once what is not asked of the text dialect, whose streams go on."""

    def submit(self, submits: tuple[Submit, ...]) -> None:
        """Start the streams."""
        for submit in submits:
            if submit.max_new_tokens > 60_000:
                super().submit((submit,))
            else:
                usage = Usage(len(submit.prompt_ids), 0)
                submit.mailbox.send_nowait(Ended(submit.key.choice, Finish("length"), usage))


async def serve(steps_per_s: float) -> None:
    """Serve until stdin ends, printing the port."""
    sys.setswitchinterval(0.0005)
    engine = EndingEngine()
    renders_send, renders_receive = trio.open_memory_channel[Render](PROMPT_QUEUE)
    settings = IngressSettings(port=0, drain_timeout_s=0.1)
    app = create_app(
        [*find_dialects(), TEXT_DIALECT],
        Serving(Services(engine, renders_send, MODEL), settings),
        fake_info(lambda: "ready"),
    )
    async with trio.open_nursery() as nursery:
        tokenizer = PromptSettings(str(ROOT / "trnrt/models/demo_files"))
        await nursery.start(run_prompt_stage, tokenizer, renders_receive)
        nursery.start_soon(engine.run, steps_per_s)
        print(await nursery.start(partial(serve_http, app, settings, shutdown=trio.Event())), flush=True)
        gc.freeze()
        gc.set_threshold(700, 10, 100)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


async def read_streams(port: int, num_streams: int) -> None:
    """Read streams until stdin ends; prints a line once all run, and their gaps at the end."""
    gaps_ms: list[float] = []

    async def read() -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(post_bytes("/text", {"prompts": ["hi"], "stream": True, "max_tokens": 100_000}))
            last_s = time.monotonic()
            while await stream.receive_some():
                now_s = time.monotonic()
                gaps_ms.append((now_s - last_s) * 1e3)
                last_s = now_s

    async with trio.open_nursery() as nursery:
        for _ in range(num_streams):
            nursery.start_soon(read)
        await trio.sleep(1.0)
        gaps_ms.clear()
        print("reading", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()
    ordered = sorted(gaps_ms)
    print(json.dumps([ordered[len(ordered) * share // 1000] for share in (500, 990)] + [ordered[-1]]))


def started(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def measure(name: str, port: int, num_streams: int, seconds: float) -> None:
    path, body = KINDS[name]()
    data = orjson.dumps(body)
    with started("--read", port, "--streams", num_streams) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdout.readline()
        took_s, statuses = [], set()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            statuses.add((await ask(port, path, data)).status)
            took_s.append(time.monotonic() - began_s)
            await trio.sleep(0.05)
        reader.stdin.close()
        p50, p99, worst = json.loads(reader.stdout.readline())
    middle_ms = sorted(took_s)[len(took_s) // 2] * 1e3
    told = f"{len(took_s)} x {'/'.join(map(str, sorted(statuses)))} in {middle_ms:.0f} ms"
    size = f"{len(data) / 1e6:.1f} MB"
    print(f"{name:26s} {size:>8s}  {told:22s}  gap p50 {p50:5.1f}  p99 {p99:6.1f}  max {worst:7.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--steps-per-s", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--only", choices=sorted(KINDS))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        trio.run(serve, arguments.steps_per_s)
    elif arguments.read:
        trio.run(read_streams, arguments.read, arguments.streams)
    else:
        with started("--serve", "--steps-per-s", arguments.steps_per_s) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for name in [arguments.only] if arguments.only else KINDS:
                trio.run(measure, name, port, arguments.streams, arguments.seconds)
            server.stdin.close()


if __name__ == "__main__":
    main()
