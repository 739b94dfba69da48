#!/usr/bin/env python3
"""Measure what serving costs without a model: our whole server over a device that gives a token a stream every step.

    scripts/bench_ingress.py [--streams 1 64 256] [--repeats 3] [--burst]
                             [--sglang-extension FOLDER] [--fastapi-python PATH]

Chat completions, streaming, 64 tokens, unique prompts, one chunk a token. Reports tokens per CPU second of the server's
process, the gap between tokens and the time to the first one as the client sees them (both at the median and the 99th
percentile), each as minimum/median/maximum of the repeats. Server and client are processes of their own. The same load
goes to SGLang's Rust server over a scheduler of ours and to a FastAPI server without tokenizer (see ingress_peers.py)
where they are given. CPU time is the number to keep; times depend on who else is running.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent
DEMO_FILES = SCRIPTS.parent / "trnrt" / "models" / "demo_files"
START_S = 30.0
WARM_UP = ["--streams", "4", "--rounds", "1", "--tokens", "8"]
MEASURES = ("itl_ms_p50", "itl_ms_p99", "ttft_ms_p50", "ttft_ms_p99")


@contextmanager
def server(command: list[str], port: int) -> Iterator[int]:
    """Run a server of one process until the block ends, giving its pid once /health answers."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            deadline_s = time.monotonic() + START_S
            while not is_well(port):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"{command[1:]} did not start")
                time.sleep(0.1)
            yield process.pid
        finally:
            process.kill()


def is_well(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as probe:
            probe.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b" 200 " in probe.recv(100)
    except OSError:
        return False


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, all its threads, ended ones too."""
    return time.clock_gettime((~pid << 3) | 2)


def load(port: int, model: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPTS / "chat_load.py"), str(port), "--model", model, *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def measure(pid: int, port: int, model: str, streams: int, given: argparse.Namespace) -> dict[str, Any]:
    load_average = os.getloadavg()[0]
    before_s = cpu_s(pid)
    arguments = ["--streams", str(streams), "--rounds", str(given.rounds), "--tokens", str(given.tokens)]
    found = load(port, model, *arguments, *(["--burst"] if given.burst else []))
    used_s = cpu_s(pid) - before_s
    return {
        **found,
        "tokens_per_cpu_s": found["tokens"] / used_s,
        "share_of_a_core": used_s / found["elapsed_s"],
        "load_average": load_average,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def contestants(given: argparse.Namespace, scratch: Path) -> dict[str, tuple[list[str], int, str]]:
    """Return the command, port and model name of each server that can be run, saying which cannot."""
    step_s, streams = str(given.step_s), str(max(given.streams))
    peers = str(SCRIPTS / "ingress_peers.py")
    ports = [free_port() for _ in range(3)]
    ours = [sys.executable, str(SCRIPTS / "paced_server.py"), "--port", str(ports[0])]
    found = {"TrnRT": ([*ours, "--step-s", step_s, "--streams", streams], ports[0], "glm-5.3-flash-demo")}
    if given.sglang_extension is None:
        print("SGLang's Rust server is left out: no --sglang-extension", file=sys.stderr)
    else:
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"):
            shutil.copy(DEMO_FILES / name, scratch)
        tail = [peers, "sglang", str(ports[1]), step_s, str(scratch), str(given.sglang_extension)]
        found["SGLang Rust, mock scheduler"] = ([given.sglang_python, *tail], ports[1], "m")
    if given.fastapi_python is None:
        print("FastAPI is left out: no --fastapi-python", file=sys.stderr)
    else:
        found["FastAPI, no tokenizer"] = (
            [given.fastapi_python, peers, "fastapi", str(ports[2]), step_s],
            ports[2],
            "m",
        )
    return found


def bench(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every server at every number of streams, in turns so that all have the same neighbours."""
    rows: dict[tuple[int, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        named = contestants(given, Path(scratch))
        for repeat in range(given.repeats):
            for name, (command, port, model) in named.items():
                with server(command, port) as pid:
                    load(port, model, *WARM_UP)
                    for streams in given.streams:
                        found = measure(pid, port, model, streams, given)
                        rows.setdefault((streams, name), []).append(found)
                        print(repeat, name, streams, json.dumps(found), file=sys.stderr)
    return [{"streams": streams, "server": name, "runs": runs} for (streams, name), runs in sorted(rows.items())]


def report(rows: list[dict[str, Any]], step_ms: float) -> str:
    """Return the table of docs/PERFORMANCE.md: median (minimum to maximum) of the repeats."""
    names = ["streams", "server", "tokens per CPU second", "share of a core"]
    names += ["ITL p50", "ITL p99", "TTFT p50", "TTFT p99", "errors"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        runs = row["runs"]
        cells = [_spread([run["tokens_per_cpu_s"] for run in runs], 0)]
        cells.append(f"{100 * statistics.median(run['share_of_a_core'] for run in runs):.0f} %")
        cells += [_spread([run[name] for run in runs], 1) + " ms" for name in MEASURES]
        cells.append(str(sum(run["errors"] for run in runs)))
        lines.append(f"| {row['streams']} | {row['server']} | " + " | ".join(cells) + " |")
    averages = [run["load_average"] for row in rows for run in row["runs"]]
    lines.append(f"\nSteps of {step_ms:g} ms; load average {min(averages):.1f} to {max(averages):.1f}.")
    return "\n".join(lines)


def _spread(values: list[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--rounds", type=int, default=4, help="requests a stream makes, one after another")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--burst", action="store_true", help="all streams begin at once")
    parser.add_argument("--sglang-extension", type=Path, help="folder with `_server*.so` of SGLang's wheel")
    parser.add_argument("--sglang-python", default=sys.executable, help="a Python with msgspec and numpy")
    parser.add_argument("--fastapi-python", help="a Python with fastapi, uvicorn, uvloop and httptools")
    parser.add_argument("--json", action="store_true", help="every run instead of the table")
    given = parser.parse_args()
    rows = bench(given)
    print(json.dumps(rows, indent=2) if given.json else report(rows, 1e3 * given.step_s))


if __name__ == "__main__":
    main()
