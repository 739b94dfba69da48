#!/usr/bin/env python3
"""Measure what being observed costs: the same load on servers that note nothing, that note all, and that tell all.

    scripts/bench_observers.py [--streams 64] [--repeats 5] [--soak 60]

`none` notes nothing, `stats` is the server as it starts by default, `all` has besides: two listeners at
/v1/stats/stream, /metrics scraped every five seconds, the production log, a line for every request and every HTTP call,
and a trace of every request, sent to a collector in this process. The device computes nothing (paced_server.py), so
that CPU time is that of serving alone; runs go in turns, so that all have the same neighbours. Reports CPU seconds,
tokens a CPU second and the client's gaps between tokens, each as minimum/median/maximum and as a ratio to `none` of the
medians. With --soak a server with all observers is loaded for so long and its memory told as it goes.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench_ingress import WARM_UP, cpu_s, free_port, load, server

PACED = str(Path(__file__).parent / "paced_server.py")
MODEL = "glm-5.3-flash-demo"
KINDS = ("none", "stats", "all")
NUM_LISTENERS = 2
SCRAPE_S = 5.0


@contextmanager
def watched(port: int, kind: str) -> Iterator[None]:
    """Listen and scrape for the block where everything is to be told."""
    if kind != "all":
        yield
        return
    stop = threading.Event()

    def listen() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/stats/stream") as stream:
            while not stop.is_set():
                stream.readline()

    def scrape() -> None:
        while not stop.wait(SCRAPE_S):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                answer.read()

    threads = [threading.Thread(target=listen, daemon=True) for _ in range(NUM_LISTENERS)]
    threads.append(threading.Thread(target=scrape, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(5)


class _Sink(BaseHTTPRequestHandler):
    """Takes whatever traces come."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector of traces that keeps none, giving its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as sink:
        thread = threading.Thread(target=sink.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{sink.server_address[1]}"
        finally:
            sink.shutdown()
            thread.join()


@contextmanager
def serving(kind: str, given: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Run a server of one kind, giving its pid and port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, collector() if kind == "all" else nullcontext() as otlp_endpoint:
        command = [sys.executable, PACED, "--port", str(port), "--step-s", str(given.step_s)]
        command += ["--streams", str(given.streams), "--observers", kind, "--prod-dir", folder]
        if otlp_endpoint is not None:
            command += ["--otlp-endpoint", otlp_endpoint]
        with server(command, port) as pid:
            load(port, MODEL, *WARM_UP)
            yield pid, port


def once(kind: str, given: argparse.Namespace) -> dict[str, Any]:
    with serving(kind, given) as (pid, port), watched(port, kind):
        before_s = cpu_s(pid)
        found = load(
            port, MODEL, "--streams", str(given.streams), "--rounds", str(given.rounds), "--tokens", str(given.tokens)
        )
        used_s = cpu_s(pid) - before_s
    return {**found, "cpu_s": used_s, "us_a_token": 1e6 * used_s / found["tokens"]}


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def soak(given: argparse.Namespace) -> None:
    """Load a server with all observers and tell its memory at every tenth of the time."""
    with serving("all", given) as (pid, port), watched(port, "all"):
        began_s = time.monotonic()
        tokens, told = 0, 0.0
        while (passed_s := time.monotonic() - began_s) < given.soak:
            if passed_s >= told:
                print(f"{passed_s:7.0f} s {tokens:10,} tokens {resident_mib(pid):8.1f} MiB", flush=True)
                told += given.soak / 10
            arguments = ["--streams", str(given.streams), "--rounds", "2", "--tokens", str(given.tokens)]
            tokens += load(port, MODEL, *arguments)["tokens"]
        print(f"{passed_s:7.0f} s {tokens:10,} tokens {resident_mib(pid):8.1f} MiB")


def report(rows: dict[str, list[dict[str, Any]]]) -> str:
    names = {"us_a_token": "CPU us a token", "itl_ms_p50": "ITL p50, ms", "itl_ms_p99": "ITL p99, ms"}
    lines = [f"| observers | {' | '.join(f'{text} | ratio' for text in names.values())} |", "|---" * 7 + "|"]
    for kind, runs in rows.items():
        cells = []
        for name in names:
            values = [run[name] for run in runs]
            middle = statistics.median(values)
            ratio = middle / statistics.median(run[name] for run in rows[KINDS[0]])
            cells.append(f"{middle:.2f} ({min(values):.2f} to {max(values):.2f}) | {ratio:.3f}")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--soak", type=float, default=0.0, help="seconds")
    given = parser.parse_args()
    if given.soak:
        soak(given)
        return
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for repeat in range(given.repeats):
        for kind in KINDS:
            rows[kind].append(once(kind, given))
            print(repeat, kind, json.dumps(rows[kind][-1]), file=sys.stderr, flush=True)
    print(report(rows))


if __name__ == "__main__":
    main()
