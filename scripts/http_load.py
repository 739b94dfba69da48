"""A light load client for the benches: n streams on raw sockets, tokens counted as they arrive."""

import json
import re
import selectors
import socket
import time
from urllib.parse import urlparse

COMPLETION_TOKENS = re.compile(rb'"completion_tokens":(\d+)')


class Stream:
    """One streaming /generate call and when its tokens came."""

    def __init__(self, url: str, prompt_ids: list[int], max_new_tokens: int) -> None:
        address = urlparse(url)
        params = {"max_new_tokens": max_new_tokens, "ignore_eos": True, "temperature": 0.0}
        body = json.dumps({"input_ids": prompt_ids, "sampling_params": params, "stream": True}).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: {address.hostname}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket = socket.create_connection((address.hostname, address.port))
        self.sent_s = time.perf_counter()
        self.socket.sendall(head.encode() + body)
        self.arrivals: list[tuple[float, int]] = []
        self.done = False

    def read(self) -> None:
        data = self.socket.recv(1 << 16)
        counts = COMPLETION_TOKENS.findall(data)
        if counts:
            self.arrivals.append((time.perf_counter(), int(counts[-1])))
        self.done = not data or b"[DONE]" in data

    def tokens_by(self, when_s: float) -> int:
        return max((count for at_s, count in self.arrivals if at_s <= when_s), default=0)


def run_streams(url: str, num_streams: int, max_new_tokens: int, prompt_tokens: int = 16) -> dict[str, float]:
    """Run num_streams at once, giving tokens/s while all of them run, and the first token's delay in s."""
    streams = [
        Stream(url, [300 + (index * 7 + at) % 900 for at in range(prompt_tokens)], max_new_tokens)
        for index in range(num_streams)
    ]
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select():
                key.data.read()
                if key.data.done:
                    selector.unregister(key.fileobj)
                    key.data.socket.close()
    assert all(stream.arrivals and stream.arrivals[-1][1] == max_new_tokens for stream in streams), "a stream was cut"
    begin_s = max(stream.arrivals[0][0] for stream in streams)
    end_s = min(stream.arrivals[-1][0] for stream in streams)
    tokens = sum(stream.tokens_by(end_s) - stream.tokens_by(begin_s) for stream in streams)
    first = sorted(stream.arrivals[0][0] - stream.sent_s for stream in streams)
    return {"tokens_per_s": tokens / (end_s - begin_s), "first_token_s_p50": first[len(first) // 2]}
