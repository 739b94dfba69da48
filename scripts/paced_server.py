"""Our whole server over a device that computes nothing: every decode step takes step_s, every prefill step no time.

Prints the port once it listens and serves until a signal. The tokens are words of the shipped model's vocabulary, so
that detokenizing is real; a prefill step holds as many prompts as there are, since there is nothing to compute.
"""

import argparse
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import trio
from attrs import define, field

sys.path.insert(0, str(Path(__file__).parent.parent))

import stages.detokenizer.stage
from graphs.keys import Buckets, doubling
from graphs.step import Capacity, StepInput, StepOutput, Transfer
from stages.detokenizer.vocabulary import open_vocabulary
from stages.inbox import Meter
from stages.stats.lossy import StatsSend
from stages.stats.stage import open_stats
from trnrt.config import Config
from trnrt.observing import exporting, open_traces
from trnrt.resolve import resolve
from trnrt.running import package_version
from trnrt.scheduling import engine_channels, scheduler_settings
from trnrt.serve import Server, serve
from trnrt.served import ServedModel, read_served_model
from trnrt.shapes import PAGE_SIZE_TOKENS, num_slots

CONTEXT_TOKENS = 2048
THREAD_SWITCH_S = 0.0005


@define(eq=False)
class PacedDevice:
    """Answers the words of `script` by position and sleeps out a decode step's time on the thread that runs it."""

    capacity: Capacity
    step_s: float
    script: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    _done_s: float = field(default=0.0, init=False)

    def run(self, step: StepInput) -> StepOutput:
        if step.key.family == "decode":
            # Steps that follow each other closely keep their beat, whatever a sleep overshoots.
            now_s = time.monotonic()
            self._done_s = (self._done_s if now_s - self._done_s < self.step_s / 2 else now_s) + self.step_s
            time.sleep(self._done_s - now_s)
        ids = self.script[(step.start + step.num_valid) % len(self.script)]
        return StepOutput(ids, np.zeros(len(ids), np.float32), None, None, self.step_s)

    def transfer(self, transfer: Transfer) -> float:
        return 0.0

    def describe(self) -> dict[str, object]:
        return {"device": "paced"}

    def close(self) -> None:
        pass


def paced_server(step_s: float, num_streams: int, port: int, **settings: Any) -> Server:
    """Return a server, not started, with room for num_streams."""
    total_tokens = 2 * num_streams * CONTEXT_TOKENS
    config = Config(
        port=port,
        context_length=CONTEXT_TOKENS,
        max_running_requests=num_streams,
        max_total_tokens=total_tokens,
        **settings,
    )
    model = read_served_model(config)
    config = resolve(config, model)
    row_pages = CONTEXT_TOKENS // PAGE_SIZE_TOKENS
    capacity = Capacity(
        num_pages=total_tokens // PAGE_SIZE_TOKENS + 1,
        page_size_tokens=PAGE_SIZE_TOKENS,
        num_slots=num_slots(config),
        buckets=Buckets(doubling(1, num_streams), doubling(1, num_streams), (64, 256), doubling(4, row_pages)),
        vocab_size=model.settings.vocab_size,
        context_length_tokens=CONTEXT_TOKENS,
        max_top_logprobs=20,
    )
    device = PacedDevice(capacity, step_s, _words(model))
    return Server(config, model, device, engine_channels(scheduler_settings(config)), open_stats(), int(time.time()))


def _words(model: ServedModel) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    pieces = open_vocabulary(str(model.tokenizer_folder)).pieces
    return np.array([number for number, piece in enumerate(pieces) if piece[:1] == b" " and piece[1:].isalpha()])


class NoGaps:
    """Stands for the gaps between tokens, and notes none."""

    def __init__(self, now_s: float) -> None: ...

    def took(self, choice: object, num_tokens: int) -> None: ...

    def told(self) -> None: ...


def blind(server: Server) -> None:
    """Let a server's stages notice nothing of themselves, which only a measurement of what that costs wants."""
    stages.detokenizer.stage.Gaps = NoGaps  # type: ignore[assignment,misc]
    StatsSend.send = lambda self, item: None  # type: ignore[method-assign,assignment]
    channels = server.channels
    for name in ("scheduler", "plans", "transfers", "tokens", "grammar"):
        inbox = getattr(channels, f"{name}_receive")
        # The channel itself, with a meter that nobody turns.
        setattr(channels, f"{name}_receive", Bare(inbox._channel))


class Bare:
    """A channel's receiving end as trio has it, and a meter that stands still."""

    def __init__(self, channel: Any) -> None:
        self._channel, self.meter = channel, Meter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def __aiter__(self) -> Any:
        return self._channel.__aiter__()

    async def __aenter__(self) -> Any:
        return await self._channel.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._channel.__aexit__(*error)

    def __enter__(self) -> Any:
        return self._channel.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._channel.__exit__(*error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--observers", choices=("none", "stats", "all"), default="stats")
    parser.add_argument("--prod-dir", help="folder of the production log, with --observers all")
    parser.add_argument("--otlp-endpoint", help="collector of traces, with --observers all")
    arguments = parser.parse_args()
    settings: dict[str, Any] = {"enable_metrics": True}
    if arguments.observers == "all":
        settings |= {"log_requests": True, "access_log": True, "prod_dir": arguments.prod_dir}
        settings["otlp_endpoint"] = arguments.otlp_endpoint
        logging.basicConfig(level=logging.INFO, stream=open(os.devnull, "w"))  # noqa: SIM115  # until the end
    server = paced_server(arguments.step_s, arguments.streams, arguments.port, **settings)
    if arguments.observers == "none":
        blind(server)
    server.traces = open_traces(server.config, package_version(), os.environ)
    sys.setswitchinterval(THREAD_SWITCH_S)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve, server))
            print(server.port, flush=True)

    with exporting(server.traces):
        trio.run(run)


if __name__ == "__main__":
    main()
