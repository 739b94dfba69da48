"""Whatever bytes a client sends, it is answered without a 5xx or cut off, and a stream beside it goes on."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fakes import counting
from tests.small_tokenizer import write_small_tokenizer
from tests.stages.ingress.http import Running, alive, connected, eventually, parse_head, running
from tests.stages.ingress.openapi_kit import DIALECTS, WITH_BODY, body_of, smallest_bodies

# Every example is a server of its own, so there are few of many calls each; more are run by hand (FUZZ_EXAMPLES).
NUM_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "3"))
BODIES = [(path, body) for path, _, one in WITH_BODY for body in smallest_bodies(body_of(one))]
NAMES = sorted({name for _, _, one in WITH_BODY for name in body_of(one)["properties"]})

# As JSON text: what no parser of Python objects could be handed.
ODD = [
    b"NaN", b"-Infinity", b"1e999", b"-0", b"1" * 5000, b"9223372036854775808", b"18446744073709551616", b"1E400",
    b'"\\ud83d"', b'"\\udc00\\ud83d"', b'"\\u0000"', b'"' + "\U0001f469\u200d\U0001f680".encode() + b'"',
    b'"\xff"', b'"\xed\xa0\x80"', b"[" * 10_000, b"[" * 100 + b"]" * 100, b"[" * 127 + b"]" * 127,
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b"[" + b"0," * 60_000 + b"0]", b"[" + b"{}," * 30_000 + b"{}]",
    b'"' + b"x" * 200_000 + b'"', b"null", b"true", b"{}", b"[]", b"[[]]", b"[{}]", b'""', b"[null]", b"[0.5]",
    b'[{"role":null,"content":null}]', b'{"type":"function"}', b'[{"type":"function","function":null}]', b"-1", b"1.0",
]  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a path and a body near one it takes: fields added, replaced or there twice, as text; then perhaps cut."""
    path, least = draw(st.sampled_from(BODIES))
    members = [(orjson.dumps(name), orjson.dumps(value)) for name, value in least.items()]
    for _ in range(draw(st.integers(0, 3))):
        name = orjson.dumps(draw(st.sampled_from([*NAMES, *least, "no_such_field", "", "__class__", "a" * 300])))
        members.insert(draw(st.integers(0, len(members))), (name, draw(st.sampled_from(ODD))))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(members) - 1)) if members else 0
        members[at : at + 1] = [(name, draw(st.sampled_from(ODD))) for name, _ in members[at : at + 1]]
    text = b"{" + b",".join(name + b":" + value for name, value in members) + b"}"
    if draw(st.integers(0, 5)) == 0:
        text = text[: draw(st.integers(0, min(len(text), 400)))] + draw(st.binary(max_size=3))
    return path, text


TARGETS = st.sampled_from(
    [path for path, _ in BODIES]
    + [
        "/",
        "//",
        "/%00",
        "/%ff%fe",
        "/v1/models/%2e%2e%2f",
        "/generate?x=%zz",
        "/../generate",
        "/v1/%63hat/completions",
        "/health;x",
        "*",
        "/generate/",
        "/flush_cache?timeout=nan",
        "/flush_cache?timeout=1e999",
        "/v1/loads?include=%ff",
        "/v1/loads?dp_rank=-",
        "http://x/generate",
        "/é",
        "/v1/loads?dp_rank=%C2%B2",
        "/v1/responses/%0d%0ax:y",
        "/v1/models/a%2Fb",
    ]
    + ["/v1/models/" + "a" * 4000, "/v1/loads?dp_rank=" + "9" * 5000]
)
METHODS = st.sampled_from(
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "QUERY"]
)
HEADERS = st.lists(
    st.sampled_from(
        [
            "content-type: application/json",
            "content-type: application/json; charset=utf-16",
            "content-type: text/plain",
            "content-type:",
            "content-type: multipart/form-data; boundary=x",
            "content-type: ÿ",
            "content-type: application/x-www-form-urlencoded",
            "content-length: 2",
            "content-length: 3",
            "content-length: -1",
            "content-length: 99999999999999999999",
            "content-length: 2, 2",
            "content-length: +2",
            "content-length: ²",
            "transfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: identity",
            "content-encoding: gzip",
            "expect: 100-continue",
            "expect: the-unexpected",
            "connection: close",
            "connection: upgrade",
            "upgrade: websocket",
            "x-request-id: a b",
            "authorization: Bearer",
            "authorization: ÿ",
            "x-api-key:",
            "range: bytes=0-",
            "accept: image/png",
            "host: y",
            "x-smg-routing-key: ÿ",
            "x-data-parallel-rank: x",
            "origin: null",
            "x-priority: 1",
            "cookie: a=b; a",
            "te: trailers",
            "anthropic-version: ÿ",
            "x-request-id: " + "x" * 5000,
            "x: " + "y" * 9000,
        ]
    ),
    max_size=5,
)
CONTENT = st.sampled_from(
    [
        *(b"", b"{}", b"2\r\n{}\r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\nx: y\r\n\r\n"),
        *(b"zz\r\n{}", b"ffffffffffffffff\r\n{}", b"{}GET / HTTP/1.1\r\n\r\n"),
    ]
)
LINES = st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "HTTP/1.1 x"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_tokenizer(tmp_path_factory.mktemp("model")))


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def exchange(server: Running, data: bytes, *, ends: bool = False) -> list[int]:
    """Send bytes and read all that comes; gives the statuses of what has a proper head. An end of ours is a leaving."""
    with trio.fail_after(30):
        async with connected(server.port) as client:
            try:
                await client.send(data)
                if ends:
                    await client.stream.send_eof()
            except trio.BrokenResourceError:
                pass
            answer = await client.to_end()
    statuses = []
    while answer.startswith(b"HTTP/1.1 ") and b"\r\n\r\n" in answer:
        head, _, answer = answer.partition(b"\r\n\r\n")
        status, headers = parse_head(head)
        if status == 100:
            continue
        statuses.append(status)
        answer = answer[int(headers.get("content-length", len(answer))) :]
    return statuses


def request_bytes(path: str, body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "connection: close", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "content-type: application/json", "", ""]).encode() + body


@pytest.fixture
def _log_level() -> Iterator[None]:
    import logging

    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


BOUNDS: Any = settings(
    max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)


@pytest.mark.usefixtures("_log_level")
@given(st.data())
@BOUNDS
async def test_no_body_makes_a_server_fail_or_stops_a_stream(folder: str, data: st.DataObject) -> None:
    async with running(counting(5000, 0.01), dialects=DIALECTS, tokenizer=folder, within_s=300) as server:
        async with connected(server.port) as other:
            await other.post("/generate", {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 4000}})
            for path, text in data.draw(st.lists(texts(), min_size=25, max_size=25)):
                if path in ("/abort_request", "/pause_generation"):
                    continue
                shorter = text.replace(b'"stream":true', b'"stream":false')
                if path == "/generate" or b"max" not in text:
                    shorter = shorter[:-1] + b',"max_tokens":2,"sampling_params":{"max_new_tokens":2}}'
                (status,) = await exchange(server, request_bytes(path, shorter)) or [0]
                assert 200 <= status < 500, (path, text[:200], status)
                other.buffer = b""
                await other.until(b"data: ")
        await eventually(lambda: not server.engine.running)


@pytest.mark.usefixtures("_log_level")
@given(st.data())
@BOUNDS
async def test_no_head_makes_a_server_fail(folder: str, data: st.DataObject) -> None:
    async with running(
        counting(2, 0.0), dialects=DIALECTS, tokenizer=folder, within_s=300, body_timeout_s=0.3
    ) as server:
        for _ in range(60):
            line = f"{data.draw(METHODS)} {data.draw(TARGETS)} {data.draw(LINES)}"
            head = "\r\n".join([line, *data.draw(st.sampled_from([["host: x"], []])), *data.draw(HEADERS), "", ""])
            request = head.encode("latin-1") + data.draw(CONTENT)
            for status in await exchange(server, request, ends=True):
                assert 200 <= status < 500 or status in (501, 505), (request[:300], status)
        assert await alive(server.port)


async def test_bodies_that_are_refused_or_not_leave_nothing_behind(folder: str) -> None:
    bodies = [
        ("/v1/chat/completions", b'{"messages":[' + b'{"role":"user","content":"x"},' * 20_000 + b'{"role":7}]}'),
        ("/v1/completions", b'{"prompt":[' + b"5," * 300_000 + b"5]}"),
        ("/detokenize", b'{"tokens":[' + b"5," * 100_000 + b"5]}"),
        ("/generate", b'{"text":"a","no_such_field":[' + b"[]," * 200_000 + b"[]]}"),
        ("/generate", b'{"text":"a","no_such_field":[' + b"[]," * 200_000 + b"[}"),
        ("/v1/responses", b"[" * 500_000),
    ]
    async with running(counting(2, 0.0), dialects=DIALECTS, tokenizer=folder, within_s=300) as server:
        for path, body in bodies * 2:
            await exchange(server, request_bytes(path, body))
        before_bytes = resident_bytes()
        for path, body in bodies * 4:
            await exchange(server, request_bytes(path, body))
        assert resident_bytes() - before_bytes < 60_000_000, sys.platform
