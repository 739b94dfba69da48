"""The bare device loop on one compute thread: decode and prefill beside transformers eager and the weight-read limit.

    python scripts/bench_device.py [--model FOLDER] [--dtype float32] [--mode compiled] [--cache FOLDER] [--quick]

Prints one JSON object. Times are medians of the process's own CPU time, which other jobs on shared cores disturb less
than wall time; the best wall time stands beside them.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch

from graphs.catalog import is_crowded
from graphs.config import Config
from graphs.devices.cpu import CpuDevice
from graphs.keys import Buckets, doubling
from graphs.parameters import LayerWeights, init_weights
from graphs.settings import GraphSettings
from graphs.step import SamplingRows, StepInput
from graphs.weights import load_weights, save_checkpoint

SHIPPED = Path(__file__).parent.parent / "trnrt" / "models" / "demo_files"
PAGE_TOKENS = 64
CONTEXT_TOKENS = 256
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
DRAWN = {"temperature": 0.8, "top_k": 0, "top_p": 0.95}


def settings_for(dtype: str, max_rows: int = 32, pages: int = 16) -> GraphSettings:
    """Return the shapes of the bench: up to max_rows rows of up to 16 pages."""
    buckets = Buckets(doubling(1, max_rows), (1, 2, 4), (64, 128, 256), doubling(1, pages))
    return GraphSettings(buckets, max_rows + 1, max_rows * pages + 1, PAGE_TOKENS, dtype)  # type: ignore[arg-type]


def timed(run: Callable[[], object], count: int, warmup: int = 3) -> dict[str, float]:
    """Return the median CPU milliseconds and the best wall milliseconds of `count` runs."""
    for _ in range(warmup):
        run()
    cpu_ms, wall_ms = [], []
    for _ in range(count):
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        wall_ms.append((time.perf_counter() - wall) * 1e3)
        cpu_ms.append((time.process_time() - cpu) * 1e3)
    return {"cpu_ms": statistics.median(cpu_ms), "best_wall_ms": min(wall_ms)}


def step(device: CpuDevice, family: str, rows: int, tokens: int, start: int, sampling: dict[str, float]) -> StepInput:
    """Return a full step of `rows` rows of `tokens` tokens at position `start`."""
    variant = "sample" if sampling["temperature"] > 0 else "greedy"
    pages = -(-(start + tokens) // PAGE_TOKENS)
    key = device.capacity.buckets.pick(family, rows, tokens, pages, variant)  # type: ignore[arg-type]
    column = np.ones(key.batch, np.int64)
    floats = {name: np.full(key.batch, sampling[name], np.float32) for name in ("temperature", "top_p")}
    table = 1 + np.arange(key.batch * key.pages, dtype=np.int64).reshape(key.batch, key.pages)
    random = np.random.default_rng(0)
    return StepInput(
        key=key,
        tokens=random.integers(0, device.capacity.vocab_size, (key.batch, key.tokens)),
        start=column * start,
        num_valid=column * tokens,
        slots=1 + np.arange(key.batch, dtype=np.int64),
        page_table=table,
        sampling=SamplingRows(
            top_k=column * int(sampling["top_k"]), min_p=floats["top_p"] * 0, seed=np.arange(key.batch), **floats
        ),
    )


def decode_ms(device: CpuDevice, rows: int, count: int, sampling: dict[str, float]) -> dict[str, float]:
    """Return the time of one decode step of `rows` rows at a context of 256 tokens."""
    device.run(step(device, "prefill", min(rows, 4), CONTEXT_TOKENS, 0, sampling))
    one = step(device, "decode", rows, 1, CONTEXT_TOKENS, sampling)
    return timed(lambda: device.run(one), count)


def prefill_tok_s(device: CpuDevice, rows: int, count: int) -> dict[str, float]:
    """Return tokens a CPU second over prompts of 256 tokens."""
    one = step(device, "prefill", rows, CONTEXT_TOKENS, 0, GREEDY)
    found = timed(lambda: device.run(one), count, warmup=1)
    return {**found, "tok_s": rows * CONTEXT_TOKENS / found["cpu_ms"] * 1e3}


class Transformers:
    """The reference implementation, eager, on the same folder and type."""

    def __init__(self, folder: Path, dtype: str) -> None:
        from transformers import Glm5NextForConditionalGeneration
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        model = Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.text, self.head = model.model.language_model, model.lm_head

    @torch.inference_mode()
    def decode_ms(self, rows: int, count: int) -> dict[str, float]:
        """Return the time of one step of `rows` rows after 256 tokens, greedy."""
        ids = torch.randint(0, self.head.weight.shape[0], (rows, CONTEXT_TOKENS))
        cache = self.text(input_ids=ids, use_cache=True).cache
        newest = ids[:, -1:]

        def one() -> object:
            h = self.text(input_ids=newest, use_cache=True, cache=cache).last_hidden_state
            return self.head(h[:, -1]).argmax(-1)

        return timed(one, count)

    @torch.inference_mode()
    def prefill_tok_s(self, rows: int, count: int) -> dict[str, float]:
        """Return tokens a CPU second over prompts of 256 tokens."""
        ids = torch.randint(0, self.head.weight.shape[0], (rows, CONTEXT_TOKENS))
        found = timed(
            lambda: self.head(self.text(input_ids=ids, use_cache=True).last_hidden_state[:, -1]), count, warmup=1
        )
        return {**found, "tok_s": rows * CONTEXT_TOKENS / found["cpu_ms"] * 1e3}


def read_bytes(config: Config, layers: tuple[LayerWeights, ...], top: LayerWeights, rows: int) -> int:
    """Return the weight bytes one decode step of `rows` rows must read: of few rows only their experts."""
    total = top["head"].numel() * top["head"].element_size() + rows * config.hidden_size * top["embed"].element_size()
    for layer in layers:
        for name, tensor in layer.items():
            size = tensor.numel() * tensor.element_size()
            if name.startswith("experts_") and not is_crowded(config, rows):
                size = size * min(config.num_experts, rows * config.num_experts_per_token) // config.num_experts
            total += size
    return total


def read_gb_s(num_bytes: int) -> float:
    """Return the gigabytes one thread reads a CPU second from a buffer of num_bytes, summing it."""
    buffer = torch.ones(num_bytes // 4)
    return num_bytes / timed(buffer.sum, 15)["cpu_ms"] / 1e6


def stand_in(config_json: dict[str, Any], folder: Path) -> Path:
    """Write a random checkpoint of the shipped model's shape to folder."""
    save_checkpoint(folder, config_json, init_weights(Config.from_json(config_json), 0))
    return folder


def bench(folder: Path, dtype: str, mode: str, cache: Path | None, quick: bool) -> dict[str, Any]:
    """Return every number of this script for the checkpoint in `folder`."""
    torch.set_num_threads(1)
    count = 20 if quick else 60
    began = time.perf_counter()
    device = CpuDevice.open(folder, settings_for(dtype), mode, cache)  # type: ignore[arg-type]
    ready_s = time.perf_counter() - began
    config = Config.read(folder)
    weights = load_weights(folder, config, getattr(torch, dtype))
    # Against main memory; a model that fits in a cache of its own can be quicker than that, hence the second figure.
    one_row = read_bytes(config, weights.layers, weights.top, 1)
    speed = {"dram_gb_s": read_gb_s(1 << 29), "resident_gb_s": read_gb_s(one_row)}
    limit_ms = one_row / speed["dram_gb_s"] / 1e6
    decode = {rows: decode_ms(device, rows, count, GREEDY) for rows in (1, 8, 32)}
    drawn = {rows: decode_ms(device, rows, count, DRAWN) for rows in (1, 8, 32)}
    prefill = {rows: prefill_tok_s(device, rows, max(4, count // 8)) for rows in (1, 4)}
    reference = Transformers(folder, dtype)
    reference_decode = {rows: reference.decode_ms(rows, max(8, count // 4)) for rows in (1, 8)}
    reference_prefill = {rows: reference.prefill_tok_s(rows, 3) for rows in (1, 4)}
    facts = device.describe()
    device.close()
    return {
        "dtype": dtype,
        "device": facts,
        "start_s": ready_s,
        "decode_greedy": decode,
        "decode_sampled": drawn,
        "prefill": prefill,
        "transformers_decode": reference_decode,
        "transformers_prefill": reference_prefill,
        "weight_bytes_read_b1": one_row,
        **speed,
        "weight_limit_ms_b1": limit_ms,
        "step_over_weight_limit_b1": decode[1]["cpu_ms"] / limit_ms,
        "step_over_resident_limit_b1": decode[1]["cpu_ms"] * speed["resident_gb_s"] * 1e6 / one_row,
        "decode_b1_vs_transformers": reference_decode[1]["cpu_ms"] / decode[1]["cpu_ms"],
        "decode_b8_vs_transformers": reference_decode[8]["cpu_ms"] / decode[8]["cpu_ms"],
        "prefill_vs_transformers": prefill[1]["tok_s"] / reference_prefill[1]["tok_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--random", action="store_true", help="random weights of that folder's config")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--mode", choices=["eager", "compiled"], default="compiled")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model
        if options.random:
            folder = stand_in(json.loads((folder / "config.json").read_text()), Path(scratch))
        found = bench(folder, options.dtype, options.mode, options.cache, options.quick)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
