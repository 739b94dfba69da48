"""A conversation with the shipped model over HTTP: what usage says was cached, on the device and in host memory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from graphs.devices.cpu import CpuDevice
from stages.stats.stage import open_stats
from trnrt.config import Config
from trnrt.device import build_device
from trnrt.resolve import resolve
from trnrt.scheduling import engine_channels, scheduler_settings
from trnrt.serve import Server, drain, serve
from trnrt.served import read_served_model

# A page is 64 tokens.
PROMPT = [20 + index * 7 % 400 for index in range(150)]


@asynccontextmanager
async def serving(**flags: Any) -> AsyncIterator[Server]:
    """Serve the shipped model eagerly in fp32, for two requests and three snapshots."""
    sizes = {"max_running_requests": 2, "snapshot_slots": 3, "max_total_tokens": 4096, "context_length": 1024}
    config = Config(port=0, device_mode="eager", dtype="float32", device_threads=1, **{**sizes, **flags})
    model = read_served_model(config)
    config = resolve(config, model)
    device: CpuDevice = build_device(config, model)
    server = Server(config, model, device, engine_channels(scheduler_settings(config)), open_stats(), started_s=0)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, server)
            yield server
            nursery.start_soon(drain, server)


async def post(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of one answer."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    assert server.port is not None
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(head.encode() + data)
        got = b"".join([piece async for piece in stream])
    head_text, _, answer = got.partition(b"\r\n\r\n")
    assert head_text.startswith(b"HTTP/1.1 200"), got
    if answer[:1] != b"{":
        return {"text": answer.decode()}
    found: dict[str, Any] = json.loads(answer)
    return found


async def generate(server: Server, ids: list[int], num_new: int = 10) -> tuple[list[int], dict[str, Any]]:
    """Return the generated ids and the meta_info of a greedy answer."""
    sampling = {"temperature": 0, "max_new_tokens": num_new, "ignore_eos": True}
    answer = await post(server, "/generate", {"input_ids": ids, "sampling_params": sampling})
    return answer["output_ids"], answer["meta_info"]


async def test_the_second_turn_is_cached_and_after_a_flush_it_is_not() -> None:
    async with serving() as server:
        said, first = await generate(server, PROMPT)
        turn = PROMPT + said + [40, 41, 42, 43, 44]
        warm_said, warm = await generate(server, turn)
        # 159 tokens were read, and 156 of them end a group of four.
        assert (first["cached_tokens"], warm["cached_tokens"]) == (0, 156)
        await post(server, "/flush_cache", {})
        cold_said, cold = await generate(server, turn)
        assert cold["cached_tokens"] == 0
        assert warm_said == cold_said


async def test_what_was_evicted_from_the_device_comes_back_from_host_memory() -> None:
    async with serving(host_cache_gb=0.05) as server:
        said, _ = await generate(server, PROMPT)
        for salt in range(4):
            await generate(server, [30 + salt + index * 11 % 300 for index in range(100)], 3)
        _, again = await generate(server, PROMPT + said + [40])
        assert again["cached_tokens"] == 156
        assert again["cached_tokens_details"] == {"device": 0, "host": 156}


async def test_the_choices_of_a_chat_share_its_prompt_and_usage_says_so() -> None:
    async with serving() as server:
        body = {
            "model": "glm-5.3-flash-demo",
            "messages": [{"role": "user", "content": "Tell me a story about a river. " * 12}],
            "max_tokens": 4,
        }
        alone = await post(server, "/v1/chat/completions", body)
        both = await post(server, "/v1/chat/completions", {**body, "n": 2})
        prompt_tokens = alone["usage"]["prompt_tokens"]
        assert prompt_tokens > 65
        assert alone["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert both["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt_tokens - 1) // 64 * 64
