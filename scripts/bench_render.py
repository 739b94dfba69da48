#!/usr/bin/env python3
"""Measure the renderer in front of an engine that costs next to nothing (scripts/scripted_engine.py).

    scripts/bench_render.py [--streams 1 64 256] [--prompts 100 2000 30000] [--repeats 3] [--workers 1 2]
                            [--dynamo-python PATH] [--only prompts|streams]

Prompts: CPU of one prompt of so many tokens, by /v1/chat/completions/render and as a chat of one token. Streams: tokens
per CPU second and the gaps between tokens with a token every --step-s, and tokens a second when the engine says all at
once. Memory: the proportional set size of the server's processes, at rest and the most under load. Beside it, in turns,
Dynamo's frontend (a Python with ai-dynamo-runtime and tokenizers) with the same tokenizer, template and tokens. Client,
server and engine are processes of their own; CPU is the server's. CPU time is the number to keep.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench_ingress import DEMO_FILES, SCRIPTS, cpu_s, free_port, load
from scripted_engine import TEXT
from tokenizers import Tokenizer

START_S = 60.0
SAMPLE_S = 0.2
# Requests of each prompt length, fewer of those that take long.
NUM_PROMPTS = {100: 400, 2_000: 120}
TURN_WORDS = 60


def model_folder(folder: Path) -> None:
    """Write a model that every server can read: the shipped tokenizer and template, and a context for long prompts."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(DEMO_FILES / name, folder)
    ends = json.loads((DEMO_FILES / "generation_config.json").read_text())["eos_token_id"]
    shape = {"vocab_size": 2560, "max_position_embeddings": 131_072, "bos_token_id": ends[0], "eos_token_id": ends}
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **shape})
    )


def tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").iterdir():
            found.extend(map(int, (task / "children").read_text().split()))
    return found


def used_cpu_s(pid: int) -> float:
    return sum(cpu_s(each) for each in tree(pid))


def pss_mb(pid: int) -> float:
    total = 0
    for each in tree(pid):
        for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1000


class Memory:
    """The most that a process tree takes while the block runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.most_mb = 0.0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Memory":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while True:
            self.most_mb = max(self.most_mb, pss_mb(self.pid))
            if self.ended.wait(SAMPLE_S):
                return


@contextmanager
def running(command: list[str], port: int, path: str, sign: bytes, log: int | None = None) -> Iterator[int]:
    """Run a server until the block ends, giving its pid once it answers path with the sign in its body."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) as process:
        try:
            deadline_s = time.monotonic() + START_S
            while not answers(port, path, sign):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"{command[1:]} did not start")
                time.sleep(0.05)
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def answers(port: int, path: str, sign: bytes) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status == 200 and sign in answer.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Servers:
    """How each server, with an engine of its own, is started for so many tokens at such a pace."""

    def __init__(self, given: argparse.Namespace, scratch: Path) -> None:
        self.given = given
        self.scratch = scratch
        self.folder = scratch / "m"
        self.folder.mkdir()
        model_folder(self.folder)

    def names(self) -> list[str]:
        ours = ["TrnRT" if workers == 1 else f"TrnRT, {workers} workers" for workers in self.given.workers]
        if self.given.dynamo_python is None:
            print("Dynamo is left out: no --dynamo-python", file=sys.stderr)
            return ours
        return [*ours, "Dynamo"]

    @contextmanager
    def started(self, name: str, tokens: int, step_s: float) -> Iterator[tuple[int, int, int]]:
        """Give the pids of server and engine, and the server's port."""
        port, engine_port = free_port(), free_port()
        with ExitStack() as stack:
            if name == "Dynamo":
                store = tempfile.mkdtemp(dir=self.scratch)
                peer = [self.given.dynamo_python, str(SCRIPTS / "dynamo_frontend.py")]
                work = [*peer, "engine", store, str(self.folder), str(tokens), str(step_s)]
                engine = stack.enter_context(subprocess.Popen(work, stdout=subprocess.DEVNULL))
                stack.callback(engine.kill)
                command, path, sign = [*peer, "frontend", str(port), store], "/v1/models", b'"m"'
                # It logs a line a request at any level.
                server = running(command, port, path, sign, subprocess.DEVNULL)
                yield stack.enter_context(server), engine.pid, port
                return
            work = [sys.executable, str(SCRIPTS / "scripted_engine.py"), str(engine_port), str(self.folder)]
            work += [
                "--tokens",
                str(tokens),
                "--step-s",
                str(step_s),
                *(["--cumulative"] if self.given.cumulative else []),
            ]
            engine_pid = stack.enter_context(running(work, engine_port, "/cpu", b""))
            command = [sys.executable, "-m", "trnrt", "render", str(self.folder), "--port", str(port)]
            command += ["--engine-url", f"http://127.0.0.1:{engine_port}", "--served-model-name", "m"]
            command += ["--log-level", "warning"]
            if name != "TrnRT":
                command += ["--workers", name.split()[1]]
            yield stack.enter_context(running(command, port, "/v1/models", b'"m"')), engine_pid, port


def conversation(tokenizer: Tokenizer, tokens: int, rng: random.Random) -> list[dict[str, str]]:
    """Return turns of about so many tokens that no other conversation has."""
    words = TEXT.split()
    messages: list[dict[str, str]] = []
    while tokens > 0:
        text = " ".join(rng.choice(words) for _ in range(TURN_WORDS))
        encoded = tokenizer.encode(text, add_special_tokens=False)
        if len(encoded) > tokens:
            text = text[: encoded.offsets[tokens - 1][1]]
        tokens -= len(encoded)
        messages.append({"role": "assistant" if len(messages) % 2 else "user", "content": text})
    if len(messages) % 2 == 0:
        messages.append({"role": "user", "content": "And then?"})
    return messages


def ask_all(port: int, path: str, bodies: list[bytes], parallel: int = 4) -> int:
    """Post every body over a few connections, giving the prompt tokens that one of them had."""

    def some(mine: list[bytes]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for body in mine:
            connection.request("POST", path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            if answer.status != 200:
                raise SystemExit(f"{path}: {answer.status} {data[:300]!r}")
        connection.close()
        last = json.loads(data)
        return len(last["input_ids"]) if "input_ids" in last else int(last["usage"]["prompt_tokens"])

    with ThreadPoolExecutor(parallel) as pool:
        return max(pool.map(some, [bodies[at::parallel] for at in range(parallel)]))


def bench_prompts(servers: Servers, name: str, rows: list[dict[str, Any]]) -> None:
    tokenizer = Tokenizer.from_file(str(servers.folder / "tokenizer.json"))
    rng = random.Random()
    with servers.started(name, 1, 0.0) as (pid, engine_pid, port):
        for tokens in servers.given.prompts:
            number = NUM_PROMPTS.get(tokens, 24)
            for path in ("/v1/chat/completions/render", "/v1/chat/completions"):
                if path.endswith("render") and name == "Dynamo":
                    continue
                bodies = [
                    json.dumps(
                        {"model": "m", "messages": conversation(tokenizer, tokens, rng), "max_tokens": 1}
                    ).encode()
                    for _ in range(number)
                ]
                ask_all(port, path, bodies[:4])
                before_s, engine_s, began_s = used_cpu_s(pid), used_cpu_s(engine_pid), time.perf_counter()
                with Memory(pid) as memory:
                    found = ask_all(port, path, bodies)
                took_s = time.perf_counter() - began_s
                cost_s = used_cpu_s(pid) - before_s
                row = {
                    "server": name,
                    "path": path,
                    "tokens": tokens,
                    "real_tokens": found,
                    "bytes": len(bodies[0]),
                    "cpu_ms": 1e3 * cost_s / number,
                    "per_s": number / took_s,
                    "cores": cost_s / took_s,
                    "engine_cores": (used_cpu_s(engine_pid) - engine_s) / took_s,
                    "most_mb": memory.most_mb,
                }
                rows.append(row)
                print(json.dumps(row), file=sys.stderr)


def bench_streams(servers: Servers, name: str, step_s: float, rows: list[dict[str, Any]]) -> None:
    given = servers.given
    with servers.started(name, given.tokens, step_s) as (pid, engine_pid, port):
        load(port, "m", "--streams", "4", "--rounds", "2", "--tokens", str(given.tokens), "--burst")
        rest_mb = pss_mb(pid)
        for streams in given.streams:
            rounds = given.rounds if streams > 1 or step_s else given.rounds * 8
            before_s, engine_s = used_cpu_s(pid), used_cpu_s(engine_pid)
            asked = ["--streams", str(streams), "--rounds", str(rounds), "--tokens", str(given.tokens)]
            with Memory(pid) as memory:
                found = load(port, "m", *asked)
            cost_s, took_s = used_cpu_s(pid) - before_s, found["elapsed_s"]
            row = {
                "server": name,
                "step_s": step_s,
                "streams": streams,
                **found,
                "tokens_per_cpu_s": found["tokens"] / cost_s,
                "tokens_per_s": found["tokens"] / took_s,
                "cores": cost_s / took_s,
                "client_cores": found["client_cpu_s"] / took_s,
                "engine_cores": (used_cpu_s(engine_pid) - engine_s) / took_s,
                "rest_mb": rest_mb,
                "most_mb": memory.most_mb,
                "load_average": os.getloadavg()[0],
            }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)


def middle(rows: list[dict[str, Any]], name: str, digits: int = 0) -> str:
    """Return the median, and between which values it lies where there are several."""
    values = [row[name] for row in rows]
    text = f"{statistics.median(values):,.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def grouped(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def report(prompts: list[dict[str, Any]], streams: list[dict[str, Any]]) -> str:
    """Return the tables of docs/PERFORMANCE.md."""
    lines = ["| prompt tokens | route | server | CPU ms | a second | cores busy | most MB |", "|---" * 7 + "|"]
    for (tokens, path, name), runs in sorted(grouped(prompts, "tokens", "path", "server").items()):
        cells = [middle(runs, "cpu_ms", 2), middle(runs, "per_s", 1), middle(runs, "cores", 2), middle(runs, "most_mb")]
        lines.append(f"| {tokens:,} | `{path}` | {name} | " + " | ".join(cells) + " |")
    names = [
        "engine",
        "streams",
        "server",
        "tokens per CPU second",
        "tokens/s",
        "ITL p50 / p99 ms",
        "TTFT p50 / p99 ms",
    ]
    names += ["cores: server, client, engine", "MB at rest, most", "errors"]
    lines += ["", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for (step_s, number, name), runs in sorted(grouped(streams, "step_s", "streams", "server").items(), reverse=True):
        cells = [middle(runs, "tokens_per_cpu_s"), middle(runs, "tokens_per_s")]
        cells += [" / ".join(middle(runs, f"{each}_ms_{at}", 1) for at in ("p50", "p99")) for each in ("itl", "ttft")]
        cells.append(", ".join(middle(runs, each, 2) for each in ("cores", "client_cores", "engine_cores")))
        cells += [", ".join(middle(runs, each) for each in ("rest_mb", "most_mb")), str(sum(r["errors"] for r in runs))]
        pace = f"a token each {1e3 * step_s:g} ms" if step_s else "all at once"
        lines.append(f"| {pace} | {number} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--prompts", type=int, nargs="+", default=[100, 2_000, 30_000])
    parser.add_argument("--rounds", type=int, default=3, help="requests a stream makes, one after another")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--step-s", type=float, nargs="+", default=[0.01, 0.0], help="0 is everything at once")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="*", default=[1], help="of our server")
    parser.add_argument("--cumulative", action="store_true", help="our engine repeats all tokens in every frame")
    parser.add_argument("--dynamo-python", help="a Python with ai-dynamo-runtime and tokenizers")
    parser.add_argument("--only", choices=("prompts", "streams"))
    parser.add_argument("--json", action="store_true", help="every run instead of the tables")
    given = parser.parse_args()
    prompts: list[dict[str, Any]] = []
    streams: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        servers = Servers(given, Path(scratch))
        names = servers.names()
        for _ in range(given.repeats):
            for name in names if given.only != "streams" else ():
                bench_prompts(servers, name, prompts)
            for step_s in given.step_s if given.only != "prompts" else ():
                for name in names:
                    bench_streams(servers, name, step_s, streams)
    print(json.dumps({"prompts": prompts, "streams": streams}, indent=2) if given.json else report(prompts, streams))


if __name__ == "__main__":
    main()
