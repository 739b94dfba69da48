"""Two other servers for scripts/bench_ingress.py to stand beside, each run by a Python that has what it needs.

    scripts/ingress_peers.py fastapi PORT STEP_S                         needs fastapi, uvicorn, uvloop, httptools
    scripts/ingress_peers.py sglang PORT STEP_S FOLDER EXTENSION_FOLDER  needs msgspec, numpy

fastapi streams chat completion chunks of our shape, made by json.dumps, and knows no tokenizer. sglang is the Rust
server of SGLang's wheel (EXTENSION_FOLDER holds its `_server*.so`, FOLDER a tokenizer.json, its config and a chat
template) over a scheduler of this file, which gives every request one token a step.
"""

import sys
import time
from typing import Any


def serve_fastapi(port: int, step_s: float) -> None:
    import asyncio
    import json
    from collections.abc import AsyncIterator

    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import StreamingResponse

    app = FastAPI()
    queues: dict[object, asyncio.Queue[str]] = {}

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s += step_s
            await asyncio.sleep(next_s - loop.time())
            for queue in queues.values():
                queue.put_nowait(" word")

    def event(delta: dict[str, object], **more: object) -> str:
        choice = {"index": 0, "delta": {"reasoning_content": None, **delta}, "logprobs": None, "finish_reason": None}
        choice |= {"matched_stop": None}
        chunk = {"id": "chatcmpl-10a8ebb1bcd8f1f8ee7ae659e3ea93dc", "object": "chat.completion.chunk"}
        whole = {**chunk, "created": 1796066127, "model": "m", "choices": [choice], "usage": None, **more}
        return f"data: {json.dumps(whole, separators=(',', ':'))}\n\n"

    async def answer(tokens: int) -> AsyncIterator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        key = object()
        queues[key] = queue
        try:
            yield event({"role": "assistant", "content": ""})
            for _ in range(tokens):
                yield event({"content": await queue.get()})
        finally:
            del queues[key]
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        yield event({}, finish_reason="length")
        yield event({}, choices=[], usage=usage)
        yield "data: [DONE]\n\n"

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        body = await request.json()
        return StreamingResponse(answer(body["max_tokens"]), media_type="text/event-stream")

    tasks: list[asyncio.Task[None]] = []

    @app.get("/health")
    async def health() -> dict[str, str]:
        if not tasks:
            tasks.append(asyncio.create_task(steps()))
        return {}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", loop="uvloop", http="httptools")


def serve_sglang(port: int, step_s: float, folder: str, extension_folder: str) -> None:
    import array

    sys.path.insert(0, extension_folder)
    import _server as extension  # type: ignore[import-not-found]
    import msgspec

    absent = (
        "revision hicache_storage_backend hicache_storage_backend_extra_config grpc_port chat_template "
        "tool_call_parser reasoning_parser default_priority_value load_snapshot_path accelerator metrics"
    )
    off = (
        "stream_response_default_include_usage skip_tokenizer_init enable_request_header_overrides "
        "incremental_streaming_output enable_strict_thinking allow_auto_truncate enable_return_hidden_states"
    )
    named: dict[str, Any] = {
        **dict.fromkeys(absent.split()),
        **dict.fromkeys(off.split(), False),
        "load_format": "auto",
        "weight_version": "default",
        "hicache_storage_prefetch_policy": "best_effort",
        "hicache_write_policy": "write_through",
        "log_level": "error",
        "log_level_http": "error",
        "default_chat_template_kwargs": "{}",
        "tokenizer_worker_num": 1,
        "detokenizer_worker_num": 1,
        "skip_server_warmup": True,
        "health_generate_headers": {},
        "preferred_sampling_params": None,
        "default_max_new_tokens": 128,
        "lora_ids": {},
        "limit_mm_data_per_request": [],
        "num_reserved_tokens": 0,
        "tokenizer_model_max_length": 8192,
        "version": "0.5.23",
        "max_total_num_tokens": 1_000_000,
        "deployment_info": "{}",
        "launch_server_info": "{}",
        "load_snapshot_dp_size": 0,
        "load_snapshot_dp_rank": 0,
        "num_accelerators": 1,
    }
    shape = extension.ModelConfig(
        context_len=2048,
        vocab_size=2560,
        is_multimodal=False,
        model_type="llama",
        default_sampling_params=extension.DefaultSamplingParams(),
    )
    server = extension.Server(
        extension.ServerArgs(
            model_path=folder,
            served_model_name="m",
            tokenizer_path=folder,
            host="127.0.0.1",
            port=port,
            disaggregation_mode=extension.DisaggregationMode.Null,
            model_config=shape,
            **named,
        ),
        port_offset=None,
        cores=None,
    )
    running: dict[str, list[int]] = {}
    done_s = time.monotonic()
    while True:
        if not running:
            server.wait_request(1000)
        for request in server.recv_requests(1024):
            header = msgspec.msgpack.decode(request.header)
            ids = dict(request.buffers).get("input_ids")
            if ids is not None:
                named_ones = [item for item in header if isinstance(item, dict) and "max_new_tokens" in item]
                listed = [item for item in header if isinstance(item, list) and len(item) > 15]
                budget = named_ones[0]["max_new_tokens"] if named_ones else listed[0][0]
                running[header[1]] = [0, budget, len(ids)]
        if not running:
            continue
        now_s = time.monotonic()
        done_s = (done_s if now_s - done_s < step_s / 2 else now_s) + step_s
        time.sleep(max(0.0, done_s - now_s))
        ends: list[dict[str, object] | None] = []
        for state in running.values():
            state[0] += 1
            ends.append({"type": "length", "length": state[1]} if state[0] >= state[1] else None)
        count = len(running)
        prompts = [state[2] for state in running.values()]
        header = msgspec.msgpack.encode([list(running), ends, prompts, [1] * count, [0] * count, [0] * count])
        ids = array.array("q", [300 + 7 * state[0] % 200 for state in running.values()])
        server.push_decode_result_batch(header, [ids.tobytes()])
        for name, end in zip(list(running), ends, strict=True):
            if end is not None:
                del running[name]


if __name__ == "__main__":
    kind, port, step_s, *rest = sys.argv[1:]
    if kind == "fastapi":
        serve_fastapi(int(port), float(step_s))
    else:
        serve_sglang(int(port), float(step_s), *rest)
