"""A light load client: n streams of chat completions in a closed loop, their tokens timed as they arrive.

    scripts/chat_load.py PORT --streams 64 --rounds 4 --tokens 64 [--burst]

Each stream sends its next request when the last one ended, on the same connection. The streams begin one after another
over `--spread` seconds, so that requests come evenly; with --burst all at once. Prints one JSON object.
"""

import argparse
import json
import random
import selectors
import socket
import time
from typing import Any

# fmt: off
WORDS = (
    "time", "people", "world", "life", "hand", "part", "child", "eye", "woman", "place", "work", "week", "case",
    "point", "company", "number", "group", "fact", "water", "money", "story", "month", "lot", "right", "study", "book",
)
# fmt: on
PROMPT_WORDS = 40
COMPLETION_TOKENS = b'"completion_tokens":'
CONTENT = b'"content":"'
END = b"\r\n0\r\n\r\n"


def request(model: str, tokens: int, seed: int) -> bytes:
    """Return one streaming chat completion with a prompt of its own."""
    words = random.Random(seed)
    content = " ".join(words.choice(WORDS) for _ in range(PROMPT_WORDS))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{seed} {content}"}],
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


class Stream:
    """One connection, its requests, and when their tokens came."""

    def __init__(self, port: int, requests: list[bytes], begin_s: float) -> None:
        self.port = port
        self.requests = requests
        self.begin_s = begin_s
        self.socket: socket.socket | None = None
        self.first_s: list[float] = []
        self.gaps_s: list[float] = []
        self.tokens = 0
        self.errors: list[str] = []

    def send_next(self) -> bool:
        """Send the next request, on a new connection where the server closed the old one; False when there is none."""
        if not self.requests:
            return False
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port))
            self.socket.setblocking(False)
        self.socket.sendall(self.requests.pop())
        self.sent_s = self.last_s = time.perf_counter()
        self.is_first = True
        self.tail = b""
        return True

    def read(self) -> bool:
        """Take what came; True when the answer has ended."""
        assert self.socket is not None
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        now_s = time.perf_counter()
        if not data:
            self.errors.append(f"cut after {self.tail[-200:]!r}")
            self.socket.close()
            self.socket = None
            return True
        num_chunks = data.count(CONTENT) - data.count(b'"content":""')
        if num_chunks > 0:
            if self.is_first:
                self.first_s.append(now_s - self.sent_s)
                self.is_first = False
            else:
                self.gaps_s.append(now_s - self.last_s)
            self.gaps_s.extend([0.0] * (num_chunks - 1))
            self.last_s = now_s
        self.tail = self.tail[-300:] + data if len(data) < 400 else data
        if not self.tail.endswith(END):
            return False
        if COMPLETION_TOKENS in self.tail:
            counted = self.tail.rpartition(COMPLETION_TOKENS)[2]
            self.tokens += int(counted[: len(counted) - len(counted.lstrip(b"0123456789"))])
        else:
            self.errors.append(repr(self.tail[-300:]))
        return True


def run(port: int, model: str, streams: int, rounds: int, tokens: int, spread_s: float) -> dict[str, Any]:
    """Run every request of every stream, giving what came and how quickly."""
    seed = random.randrange(1 << 40)
    began_s = time.perf_counter()
    waiting = [
        Stream(
            port,
            [request(model, tokens, seed + index * rounds + at) for at in range(rounds)],
            began_s + spread_s * index / streams,
        )
        for index in range(streams)
    ]
    every = list(waiting)
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and waiting[0].begin_s <= time.perf_counter():
                stream = waiting.pop(0)
                stream.send_next()
                selector.register(stream.socket, selectors.EVENT_READ, stream)  # type: ignore[arg-type]
            timeout_s = max(0.0, waiting[0].begin_s - time.perf_counter()) if waiting else None
            for key, _ in selector.select(timeout_s):
                stream = key.data
                if stream.read():
                    selector.unregister(key.fileobj)
                    if stream.send_next():
                        selector.register(stream.socket, selectors.EVENT_READ, stream)  # type: ignore[arg-type]
    elapsed_s = time.perf_counter() - began_s
    gaps = sorted(gap for stream in every for gap in stream.gaps_s)
    firsts = sorted(first for stream in every for first in stream.first_s)
    errors = [error for stream in every for error in stream.errors]
    return {
        "tokens": sum(stream.tokens for stream in every),
        "elapsed_s": elapsed_s,
        "client_cpu_s": time.process_time(),
        "itl_ms_p50": _at(gaps, 0.5),
        "itl_ms_p99": _at(gaps, 0.99),
        "ttft_ms_p50": _at(firsts, 0.5),
        "ttft_ms_p99": _at(firsts, 0.99),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
    }


def _at(ordered_s: list[float], share: float) -> float:
    return round(1e3 * ordered_s[min(len(ordered_s) - 1, int(len(ordered_s) * share))], 2) if ordered_s else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--model", default="m")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--spread-s", type=float, default=0.64)
    parser.add_argument("--burst", action="store_true", help="begin all streams at once")
    given = parser.parse_args()
    spread_s = 0.0 if given.burst else given.spread_s
    print(json.dumps(run(given.port, given.model, given.streams, given.rounds, given.tokens, spread_s)))


if __name__ == "__main__":
    main()
