"""Hundreds of requests of every kind over real sockets, a third of them dropped at random moments: nothing is left."""

import gc
import json
import random

import pytest
import trio

import trnrt.serve
from stages.detokenizer.choice import Choice
from stages.messages import Submit
from tests.small_server import small_server
from trnrt.serve import drain, serve

NUM_REQUESTS = 500
AT_ONCE = 40
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def random_call(rng: random.Random) -> tuple[str, dict[str, object]]:
    words = " ".join(rng.choices(["red", "blue", "seven", "Paris", "cat", "🙂"], k=rng.randint(1, 80)))
    stream = rng.random() < 0.5
    length = rng.randint(1, 60)
    stop = ["a"] if rng.random() < 0.3 else None
    kind = rng.choice(["chat", "tools", "completion", "generate", "batch"])
    if kind in ("chat", "tools"):
        tools = {"tools": [TOOL]} if kind == "tools" else {}
        messages = [{"role": "user", "content": words}]
        n = rng.choice([1, 1, 3])
        return "/v1/chat/completions", {
            "messages": messages, "max_tokens": length, "stream": stream, "stop": stop, "n": n, **tools
        }  # fmt: skip
    if kind == "completion":
        return "/v1/completions", {"prompt": words, "max_tokens": length, "stream": stream, "stop": stop, "logprobs": 2}
    params = {"max_new_tokens": length, "ignore_eos": rng.random() < 0.5, "stop": stop}
    text = words if kind == "generate" else [words, words[:5] or "x", "one more"]
    return "/generate", {"text": text, "sampling_params": params, "stream": stream}


async def post(port: int, path: str, body: dict[str, object]) -> tuple[int, bytes]:
    """POST on a connection of its own; httpx does not bear being cancelled under trio."""
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n"
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
        answer = b"".join([part async for part in stream])
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


async def one_request(port: int, seed: int, outcomes: list[str]) -> None:
    rng = random.Random(seed)
    path, body = random_call(rng)
    patience_s = rng.random() * 0.3 if rng.random() < 1 / 3 else 60
    with trio.move_on_after(patience_s) as scope:
        status, content = await post(port, path, body)
        assert status in (200, 503), content
        if status == 200 and body["stream"]:
            assert content.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), content[-300:]
        else:
            json.loads(content)
        outcomes.append(f"{status}")
    if scope.cancelled_caught:
        outcomes.append("left")


def live(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def num_tasks() -> int:
    def count(task: trio.lowlevel.Task) -> int:
        return 1 + sum(count(child) for nursery in task.child_nurseries for child in nursery.child_tasks)

    root = trio.lowlevel.current_root_task()
    assert root is not None
    return count(root)


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> None:
    # serve() freezes the collector, which would hide what is counted here.
    monkeypatch.setattr(trnrt.serve.gc, "freeze", lambda: None)


async def test_after_500_requests_a_third_of_them_dropped_everything_is_back() -> None:
    # Instant, and so small a cache that choices are retracted all the time.
    server = small_server(lambda step: 0.0, max_running_requests=8, max_total_tokens=1024, max_queued_requests=64)
    outcomes: list[str] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, server)
        tasks_before = num_tasks()
        assert server.port is not None
        for first in range(0, NUM_REQUESTS, AT_ONCE):
            async with trio.open_nursery() as batch:
                for seed in range(first, min(first + AT_ONCE, NUM_REQUESTS)):
                    batch.start_soon(one_request, server.port, seed, outcomes)
        assert server.core is not None
        with trio.fail_after(10):
            while not server.core.is_idle or num_tasks() > tasks_before:  # noqa: ASYNC110
                await trio.sleep(0.01)

        load = server.load()
        assert (load.running, load.waiting, load.used_pages - load.evictable_pages, load.used_slots) == (0, 0, 0, 0)
        assert not server.serving.live_ids
        assert live(Submit) == 0
        assert live(Choice) == 0
        assert len(outcomes) == NUM_REQUESTS
        assert outcomes.count("left") > 50
        assert outcomes.count("200") > 200

        await drain(server)
