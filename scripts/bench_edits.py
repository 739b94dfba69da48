"""What masks, changed logits and prompt scores add to a step of the CPU device, on one compute thread.

    python scripts/bench_edits.py [--vocab-size 154880] [--cache FOLDER] [--count 40]

Prints one JSON object: medians of the process's own CPU milliseconds a step, of the shipped model or of one of its
shape with another vocabulary (random weights), in the shapes that `trnrt` serves by default. Layers do not know the
vocabulary, so theirs are compiled once for both.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from attrs import evolve
from bench_device import DRAWN, GREEDY, SHIPPED, stand_in, step, timed

from graphs.catalog import bodies
from graphs.compile import Job
from graphs.config import Config
from graphs.devices.cpu import CpuDevice
from graphs.settings import GraphSettings, default_cache
from graphs.step import Adjust, Edits, Scoring, StepInput
from trnrt.config import config_of
from trnrt.resolve import resolve
from trnrt.served import read_served_model
from trnrt.shapes import graph_settings

OF_ANY_VOCABULARY = ("kda", "dsa", "dense", "moe")
CONTEXT_TOKENS = 256


def edited(one: StepInput, vocab_size: int, num_tokens: int, has_mask: bool) -> StepInput:
    """Return the step with a mask of half the tokens and num_tokens changed a row, or without either."""
    random, rows = np.random.default_rng(1), one.key.batch
    mask = adjust = None
    if has_mask:
        mask = random.integers(-(1 << 31), 1 << 31, (rows, -(-vocab_size // 32)), np.int32) | 1
    if num_tokens:
        ids = np.stack([random.permutation(vocab_size)[:num_tokens] for _ in range(rows)])
        wide = [random.random((rows, num_tokens), np.float32) for _ in range(3)]
        adjust = Adjust(ids, *wide, *(np.full(rows, value, np.float32) for value in (1.1, 0.2, 0.1)))
    kind = "_".join(name for name, part in (("masked", mask), ("adjusted", adjust)) if part is not None)
    key = evolve(one.key, edits=kind, adjust_tokens=num_tokens)  # type: ignore[arg-type]
    return evolve(one, key=key, edits=Edits(mask, adjust))


def scored(one: StepInput, num_tokens: int) -> StepInput:
    """Return the step with its last num_tokens of every row scored."""
    targets = np.full(one.tokens.shape, -1, np.int64)
    targets[:, -num_tokens:] = 1
    return evolve(one, key=evolve(one.key, is_scored=True), scoring=Scoring(targets))


def bench(device: CpuDevice, count: int) -> dict[str, dict[str, float]]:
    """Return CPU milliseconds by kind of step by rows."""
    vocab_size = device.capacity.vocab_size
    found: dict[str, dict[str, float]] = {}

    def note(rows: int, name: str, one: StepInput) -> None:
        found.setdefault(f"rows {rows}", {})[name] = round(timed(lambda: device.run(one), count)["cpu_ms"], 3)

    for rows in (1, 8, 32):
        for name, sampling in (("greedy", GREEDY), ("sampled", DRAWN)):
            device.run(step(device, "prefill", min(rows, 4), CONTEXT_TOKENS, 0, sampling))
            one = step(device, "decode", rows, 1, CONTEXT_TOKENS, sampling)
            note(rows, name, one)
            note(rows, f"{name}, masked", edited(one, vocab_size, 0, has_mask=True))
        for size in device.capacity.adjust_tokens:
            note(rows, f"sampled, {size} adjusted", edited(one, vocab_size, size, has_mask=False))
        note(rows, "sampled, 64 adjusted, masked", edited(one, vocab_size, 64, has_mask=True))
    for rows in (1, 4):
        one = step(device, "prefill", rows, CONTEXT_TOKENS, 0, GREEDY)
        note(rows, "prefill of 256", one)
        note(rows, "prefill of 256, all scored", scored(one, CONTEXT_TOKENS))
        note(rows, "prefill of 256, one token scored", scored(one, 1))
    return found


def share_layers(shipped: Config, config: Config, settings: GraphSettings, cache: Path) -> None:
    """Compile the layers of the shipped model once, and give them to a model that differs in its vocabulary alone."""
    own, other = (Job.of(one, settings, cache) for one in (config, shipped))
    for body in bodies(config, settings):
        if body.part in OF_ANY_VOCABULARY:
            own.folder.mkdir(parents=True, exist_ok=True)
            for file in other.folder.glob(f"{body.name}.*.so"):
                shutil.copy(file, own.folder / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-size", type=int, help="of random weights; the shipped model when absent")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shipped = Config.read(SHIPPED)
    vocab_size = options.vocab_size or shipped.vocab_size
    config = config_of({}, {})
    served = read_served_model(config)
    settings = graph_settings(resolve(config, served), served.settings)
    settings = evolve(settings, takes_mask=True, adjust_tokens=(64, 1024, vocab_size))
    with tempfile.TemporaryDirectory() as scratch:
        folder = SHIPPED
        if options.vocab_size:
            value = json.loads((SHIPPED / "config.json").read_text())
            value["text_config"]["vocab_size"] = vocab_size
            folder = stand_in(value, Path(scratch))
            share_layers(shipped, Config.read(folder), settings, options.cache)
        device = CpuDevice.open(folder, settings, "compiled", options.cache)
        found = bench(device, options.count)
        facts = device.describe()
        device.close()
    print(json.dumps({"vocab_size": vocab_size, "device": facts, "cpu_ms": found}, indent=1))


if __name__ == "__main__":
    main()
