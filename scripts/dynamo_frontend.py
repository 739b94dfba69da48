"""Dynamo's HTTP frontend and an engine of one token a step behind it, for scripts/bench_render.py; run by its Python.

    scripts/dynamo_frontend.py frontend PORT STORE_FOLDER
    scripts/dynamo_frontend.py engine STORE_FOLDER MODEL_FOLDER TOKENS STEP_S

Two processes that find each other by files in STORE_FOLDER: what the first one costs is the frontend alone.
"""

import asyncio
import os
import sys

if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    os.environ |= {"DYN_LOG": "error", "DYN_SELF_HOST_METADATA": "0"}
    os.environ["DYN_FILE_KV"] = rest[1] if kind == "frontend" else rest[0]

from dynamo._core import DistributedRuntime, ModelRuntimeConfig
from dynamo.llm import (
    EngineType,
    EntrypointArgs,
    ModelInput,
    ModelType,
    WorkerType,
    make_engine,
    register_model,
    run_input,
)
from scripted_engine import TEXT
from tokenizers import Tokenizer


async def frontend(port: str, _: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    place = EntrypointArgs(EngineType.Dynamic, http_host="127.0.0.1", http_port=int(port))
    await run_input(runtime, "http", await make_engine(runtime, place))


async def engine(_: str, folder: str, tokens: str, step_s: str) -> None:
    once = Tokenizer.from_file(f"{folder}/tokenizer.json").encode(TEXT, add_special_tokens=False).ids
    ids = (once * (int(tokens) // len(once) + 1))[: int(tokens)]
    made = [{"token_ids": [each]} for each in ids]
    made[-1]["finish_reason"] = "length"
    step = asyncio.Event()

    async def steps() -> None:
        nonlocal step
        while True:
            await asyncio.sleep(float(step_s))
            step.set()
            step = asyncio.Event()

    async def answer(request: object, context: object = None) -> object:
        for each in made:
            if float(step_s):
                await step.wait()
            yield each

    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    endpoint = runtime.endpoint("bench.w0.generate")
    tasks = [asyncio.ensure_future(steps()), asyncio.ensure_future(endpoint.serve_endpoint(answer))]
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat,
        endpoint,
        folder,
        "m",
        worker_type=WorkerType.Aggregated,
        runtime_config=ModelRuntimeConfig(),
    )
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run({"frontend": frontend, "engine": engine}[kind](*rest))
