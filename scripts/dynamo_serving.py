"""Serves models of Dynamo's frontend before an engine that is a coroutine; used by the dynamo_*peer.py scripts."""

import asyncio
import json
import os
import urllib.error
import urllib.request

os.environ.setdefault("DYN_LOG", "error")
os.environ.setdefault("DYN_SELF_HOST_METADATA", "0")

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

PORT = int(os.environ.get("PEER_PORT", "18771"))
READY_S = 60.0


async def serve(models, answer):
    """Serve {name: {folder, tool_parser, reasoning_parser, structural_tag}}; returns the tasks that do."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    tasks = []
    for number, (name, model) in enumerate(models.items()):
        endpoint = runtime.endpoint(f"compare.w{number}.generate")
        config = ModelRuntimeConfig()
        config.tool_call_parser = model.get("tool_parser")
        config.reasoning_parser = model.get("reasoning_parser")
        if model.get("structural_tag") is not None:
            config.set_structural_tag(model["structural_tag"])
        tasks.append(asyncio.ensure_future(endpoint.serve_endpoint(answer)))
        await register_model(
            ModelInput.Tokens,
            ModelType.Chat,
            endpoint,
            model["folder"],
            name,
            worker_type=WorkerType.Aggregated,
            runtime_config=config,
        )
    engine = await make_engine(runtime, EntrypointArgs(EngineType.Dynamic, http_host="127.0.0.1", http_port=PORT))
    tasks.append(asyncio.ensure_future(run_input(runtime, "http", engine)))
    async with asyncio.timeout(READY_S):
        while len(await asyncio.to_thread(served)) < len(models):  # noqa: ASYNC110  # another process's state
            await asyncio.sleep(0.2)
    return tasks


def served():
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models", timeout=5) as answer:
            return json.loads(answer.read())["data"]
    except OSError:
        return []


def ask(body):
    """Return the text of a chat's answer, of an error {"error": its body}."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/chat/completions", data, {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return json.dumps({"error": error.read().decode()})


def finish(results, target):
    with open(target, "w") as file:
        json.dump(results, file, ensure_ascii=False)
    # The peer's own end hangs on a closed loop.
    os._exit(0)
