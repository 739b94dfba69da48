"""An engine for scripts/bench_render.py: SGLang's `/generate`, whose frames were all made before anybody asked.

    scripts/scripted_engine.py PORT FOLDER --tokens 64 --step-s 0.01 [--cumulative]

Every stream gets a token each step, all of a step at the same time, as from an engine that batches; with --step-s 0 a
stream gets all of its frames at once. FOLDER has the tokenizer.json by which the tokens are those of a text. What it
costs is a system call a token and little else; GET /cpu answers with its CPU seconds.
"""

import argparse
import json
import re
import selectors
import socket
import time
from pathlib import Path

from tokenizers import Tokenizer

TEXT = (
    "The wind over the harbour was light that morning, and the boats lay as still as if they had been painted there. "
    "Nobody on the quay was in a hurry: the baker carried his trays to the inn, a child counted gulls, and the keeper "
    "of the lighthouse, who had slept badly, was looking for his other shoe. "
)
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def frames(folder: Path, tokens: int, is_cumulative: bool) -> list[bytes]:
    """Return each frame as a chunk of HTTP's, of the shape and keys of SGLang's own; the last one ends the answer."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    once = tokenizer.encode(TEXT, add_special_tokens=False).ids
    ids = (once * (tokens // len(once) + 1))[:tokens]
    made = []
    for count in range(1, tokens + 1):
        said = ids[:count] if is_cumulative else ids[count - 1 : count]
        meta = {
            "id": "0" * 32,
            "finish_reason": {"type": "length", "length": tokens} if count == tokens else None,
            "prompt_tokens": 80,
            "weight_version": "default",
            "total_retractions": 0,
            "completion_tokens": count,
            "cached_tokens": 0,
        }
        frame = {"text": tokenizer.decode(said), "output_ids": said, "meta_info": meta}
        data = f"data: {json.dumps(frame, separators=(',', ':'))}\n\n".encode()
        made.append(b"%x\r\n%s\r\n" % (len(data), data))
    made[-1] += b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    return made


class Stream:
    """One connection: what it asked for in part, and which of the frames is its next."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.asked = bytearray()
        self.place: int | None = None
        self.unsent = b""

    def send(self, data: bytes) -> None:
        """Send what goes out at once, and keep the rest for the next time."""
        data = self.unsent + data
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self.unsent = data[sent:]


def serve(port: int, chunks: list[bytes], step_s: float) -> None:
    """Answer for ever."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    running: dict[Stream, None] = {}
    whole = HEAD + b"".join(chunks)
    next_s = time.monotonic()
    while True:
        for key, _ in selector.select(max(0.0, next_s - time.monotonic()) if running else None):
            if key.data is None:
                connection, _ = listener.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, Stream(connection))
                continue
            stream = key.data
            try:
                data = stream.socket.recv(1 << 18)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                selector.unregister(stream.socket)
                stream.socket.close()
                running.pop(stream, None)
                continue
            stream.asked += data
            if not running:
                next_s = time.monotonic() + step_s
            if is_asked(stream):
                if step_s:
                    running[stream] = None
                else:
                    stream.place, stream.unsent = None, b""
                    stream.socket.setblocking(True)
                    stream.socket.sendall(whole)
                    stream.socket.setblocking(False)
        if running and time.monotonic() >= next_s:
            next_s = max(next_s + step_s, time.monotonic())
            for stream in list(running):
                place = stream.place
                assert place is not None
                stream.send(HEAD + chunks[0] if place == 0 else chunks[place])
                stream.place = place + 1
                if stream.place == len(chunks):
                    if stream.unsent:
                        stream.socket.setblocking(True)
                        stream.socket.sendall(stream.unsent)
                        stream.socket.setblocking(False)
                        stream.unsent = b""
                    del running[stream]


def is_asked(stream: Stream) -> bool:
    """Whether the call is whole and wants tokens; every other one is answered here."""
    head, found, body = bytes(stream.asked).partition(b"\r\n\r\n")
    length = LENGTH.search(head)
    if not found or len(body) < (size := int(length[1]) if length else 0):
        return False
    stream.asked = bytearray(body[size:])
    path = head.split(b" ", 2)[1]
    if path == b"/generate":
        stream.place = 0
        return True
    text = f"{time.process_time():.3f}".encode() if path == b"/cpu" else b"{}"
    status = b"200 OK" if path in (b"/cpu", b"/health", b"/abort_request") else b"404 Not Found"
    stream.socket.sendall(
        b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(text), text)
    )
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--cumulative", action="store_true", help="frames with all ids so far")
    given = parser.parse_args()
    serve(given.port, frames(given.folder, given.tokens, given.cumulative), given.step_s)


if __name__ == "__main__":
    main()
