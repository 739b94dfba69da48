"""The engine in one run on one compute thread: device beside transformers and the weight-read limit, HTTP beside both.

    python scripts/bench_engine.py [--model FOLDER] [--dtype float32] [--quick] [--json]

--json prints one object of ratios, ours over theirs: decode_b1_vs_transformers and decode_b8_vs_transformers are step
times (smaller is better), prefill_vs_transformers and http_vs_device_loop_32 are tokens/s (larger is better),
step_over_weight_limit_b1 is the step time over the time one thread needs to read a step's weights from main memory.
Without --json the tables of docs/PERFORMANCE.md are printed.

Device and reference times are medians of the process's own CPU time; HTTP and the device loop beside it are wall time,
measured in turns, the median of each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bench_device as device_bench
import httpx
import torch
from attrs import evolve
from http_load import run_streams

from graphs.config import Config as ModelConfig
from graphs.devices.cpu import CpuDevice
from graphs.weights import load_weights
from trnrt.config import Config
from trnrt.device import build_device
from trnrt.resolve import resolve
from trnrt.served import read_served_model

ROOT = Path(__file__).resolve().parent.parent
STREAMS = (1, 8, 32)
PROMPT_TOKENS = 16


def device_loop_tok_s(device: CpuDevice, rows: int, num_steps: int) -> float:
    """Return tokens/s of bare decode steps over the same contexts as the streams', wall time."""
    most = device.capacity.buckets.prefill_batch[-1]
    first = device_bench.step(device, "prefill", min(rows, most), PROMPT_TOKENS, 0, device_bench.GREEDY)
    device.run(first)
    steps = [
        device_bench.step(device, "decode", rows, 1, PROMPT_TOKENS + at, device_bench.GREEDY) for at in range(num_steps)
    ]
    began_s = time.perf_counter()
    for one in steps:
        device.run(one)
    return rows * num_steps / (time.perf_counter() - began_s)


@contextmanager
def server(*flags: str) -> Any:
    """Start `python -m trnrt` on a free port; give its url, process and the seconds until it listened."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "trnrt",
            "--port",
            "0",
            "--device-threads",
            "1",
            "--incremental-streaming-output",
            *flags,
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = next(line.split()[-1] for line in process.stderr if "listening on" in line)
        yield url, process, time.perf_counter() - began_s
    finally:
        process.terminate()
        process.communicate()


def wait_until_compiled(url: str) -> None:
    while (graphs := httpx.get(url + "/server_info").json()["graphs"])["graphs_ready"] < graphs["graphs_total"]:
        time.sleep(0.5)


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def bench_http(device: CpuDevice, flags: list[str], quick: bool) -> dict[str, Any]:
    """Return tokens/s of the device loop and through HTTP at 1, 8 and 32 streams, start-up and peak memory."""
    num_tokens, rounds = (64, 2) if quick else (256, 3)
    with server(*flags) as (url, process, listening_s):
        first_s = listening_s + run_streams(url, 1, 2)["first_token_s_p50"]
        wait_until_compiled(url)
        run_streams(url, 32, 8)
        table = {}
        for num_streams in STREAMS:
            loop, http, delay = [], [], []
            for _ in range(rounds):
                loop.append(device_loop_tok_s(device, num_streams, num_tokens))
                found = run_streams(url, num_streams, num_tokens, PROMPT_TOKENS)
                http.append(found["tokens_per_s"])
                delay.append(found["first_token_s_p50"])
            loop_tok_s, http_tok_s = statistics.median(loop), statistics.median(http)
            table[num_streams] = {
                "device_loop_tok_s": loop_tok_s,
                "http_tok_s": http_tok_s,
                "ratio": http_tok_s / loop_tok_s,
                "first_token_ms": statistics.median(delay) * 1e3,
            }
        return {
            "streams": table,
            "listening_s": listening_s,
            "first_token_s": first_s,
            "peak_bytes": peak_bytes(process.pid),
        }


def bench(folder: Path | None, dtype: str, cache: Path | None, quick: bool) -> dict[str, Any]:
    """Return every number of this script."""
    torch.set_num_threads(1)
    flags = Config(model_path=str(folder) if folder else None, device_threads=1, dtype=dtype)  # type: ignore[arg-type]
    model = read_served_model(flags)
    config = resolve(evolve(flags, compile_cache_dir=str(cache) if cache else None), model)
    began_s = time.perf_counter()
    device = build_device(config, model, "compiled")
    compiled_s = time.perf_counter() - began_s
    count = 20 if quick else 60
    decode = {rows: device_bench.decode_ms(device, rows, count, device_bench.GREEDY) for rows in STREAMS}
    drawn = {rows: device_bench.decode_ms(device, rows, count, device_bench.DRAWN) for rows in STREAMS}
    prefill = device_bench.prefill_tok_s(device, 1, max(4, count // 8))
    reference = device_bench.Transformers(model.folder, config.dtype)
    theirs = {rows: reference.decode_ms(rows, max(8, count // 4)) for rows in (1, 8)}
    their_prefill = reference.prefill_tok_s(1, 3)
    del reference
    shape = ModelConfig.read(model.folder)
    weights = load_weights(model.folder, shape, getattr(torch, config.dtype))
    read_bytes = device_bench.read_bytes(shape, weights.layers, weights.top, 1)
    limit_ms = read_bytes / device_bench.read_gb_s(1 << 29) / 1e6
    resident_ms = read_bytes / device_bench.read_gb_s(read_bytes) / 1e6
    shared = [f"--dtype={config.dtype}", f"--compile-cache-dir={config.compile_cache_dir}"]
    http = bench_http(device, shared + ([f"--model-path={folder}"] if folder else []), quick)
    device.close()
    return {
        "dtype": config.dtype,
        "compiled_s": compiled_s,
        "decode": decode,
        "drawn": drawn,
        "prefill": prefill,
        "their_decode": theirs,
        "their_prefill": their_prefill,
        "weight_limit_ms": limit_ms,
        "resident_limit_ms": resident_ms,
        "read_bytes": read_bytes,
        "http": http,
    }


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """Return ours over theirs, by name."""
    return {
        "decode_b1_vs_transformers": found["decode"][1]["cpu_ms"] / found["their_decode"][1]["cpu_ms"],
        "decode_b8_vs_transformers": found["decode"][8]["cpu_ms"] / found["their_decode"][8]["cpu_ms"],
        "prefill_vs_transformers": found["prefill"]["tok_s"] / found["their_prefill"]["tok_s"],
        "http_vs_device_loop_32": found["http"]["streams"][32]["ratio"],
        "step_over_weight_limit_b1": found["decode"][1]["cpu_ms"] / found["weight_limit_ms"],
    }


def report(found: dict[str, Any]) -> str:
    """Return the tables of docs/PERFORMANCE.md."""
    ratio = ratios(found)
    lines = ["| what | ours | transformers eager | ratio | aim |", "|---|---|---|---|---|"]
    for rows in (1, 8):
        ours, theirs = found["decode"][rows]["cpu_ms"], found["their_decode"][rows]["cpu_ms"]
        lines.append(f"| decode step, batch {rows} | {ours:.2f} ms | {theirs:.1f} ms | {ours / theirs:.3f} | <= 0.2 |")
    ours, theirs = found["prefill"]["tok_s"], found["their_prefill"]["tok_s"]
    lines.append(f"| prefill, 256 tokens | {ours:.0f} tok/s | {theirs:.0f} tok/s | {ours / theirs:.1f} | >= 4 |")
    lines += ["", "| decode step | greedy | drawn (temperature, top-p) |", "|---|---|---|"]
    for rows in STREAMS:
        lines.append(
            f"| batch {rows} | {found['decode'][rows]['cpu_ms']:.2f} ms | {found['drawn'][rows]['cpu_ms']:.2f} ms |"
        )
    lines += ["", "| streams | device loop | through HTTP | ratio | first token |", "|---|---|---|---|---|"]
    for num_streams, row in found["http"]["streams"].items():
        lines.append(
            f"| {num_streams} | {row['device_loop_tok_s']:.0f} tok/s | {row['http_tok_s']:.0f} tok/s "
            f"| {row['ratio']:.2f} | {row['first_token_ms']:.0f} ms |"
        )
    http = found["http"]
    lines += [
        "",
        "| what | value |",
        "|---|---|",
        f"| type of weights | {found['dtype']} |",
        f"| weight-read limit at batch 1: {found['read_bytes'] / 1e6:.1f} MB from main memory "
        f"| {found['weight_limit_ms']:.2f} ms |",
        f"| step over that limit | {ratio['step_over_weight_limit_b1']:.1f} |",
        f"| the same bytes from the cache, where they fit here | {found['resident_limit_ms']:.2f} ms |",
        f"| loading and compiling, or taking from the cache | {found['compiled_s']:.1f} s |",
        f"| start to listening | {http['listening_s']:.1f} s |",
        f"| start to first token | {http['first_token_s']:.1f} s |",
        f"| peak memory of the server | {http['peak_bytes'] / 1e6:.0f} MB |",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint folder; the shipped model when absent")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--cache", type=Path, help="folder of compiled graphs; a fresh one with `--cache new`")
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    parser.add_argument("--json", action="store_true", help="the five ratios as one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch) if options.cache == Path("new") else options.cache
        found = bench(options.model, options.dtype, cache, options.quick)
    print(json.dumps(ratios(found)) if options.json else report(found))


if __name__ == "__main__":
    main()
