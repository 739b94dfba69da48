"""Our whole server over a device that computes nothing: every decode step takes step_s, every prefill step no time.

Prints the port once it listens and serves until a signal. The tokens are words of the shipped model's vocabulary, so
that detokenizing is real; a prefill step holds as many prompts as there are, since there is nothing to compute.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import trio
from attrs import define, field

sys.path.insert(0, str(Path(__file__).parent.parent))

from graphs.keys import Buckets, doubling
from graphs.step import Capacity, StepInput, StepOutput, Transfer
from stages.detokenizer.vocabulary import open_vocabulary
from stages.stats.stage import open_stats
from trnrt.config import Config
from trnrt.resolve import resolve
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


def paced_server(step_s: float, num_streams: int, port: int) -> Server:
    """Return a server, not started, with room for num_streams."""
    total_tokens = 2 * num_streams * CONTEXT_TOKENS
    config = Config(
        port=port, context_length=CONTEXT_TOKENS, max_running_requests=num_streams, max_total_tokens=total_tokens
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    server = paced_server(arguments.step_s, arguments.streams, arguments.port)
    sys.setswitchinterval(THREAD_SWITCH_S)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve, server))
            print(server.port, flush=True)

    trio.run(run)


if __name__ == "__main__":
    main()
