"""Tells what Dynamo's preprocessor sends to its engine; run by compare_dynamo_prompts.py with the peer's Python.

Its first argument is a file of {"models": {name: {folder, tool_parser, ...}}, "asks": [[model, body]]}; what the engine
got of each ask, or the error in its place, goes to the file of its second.
"""

import asyncio
import json
import sys
from pathlib import Path

from dynamo_serving import ask, finish, serve


async def main(work, target):
    got = []

    async def answer(request, context=None):
        got.append(request)
        yield {"token_ids": [1], "finish_reason": "stop"}

    tasks = await serve(work["models"], answer)
    results = []
    for model, body in work["asks"]:
        got.clear()
        said = json.loads(await asyncio.to_thread(ask, {"model": model, **body}))
        results.append(got[0] if got else {"error": said.get("error", "the engine got nothing")})
    assert not any(task.done() for task in tasks)
    finish(results, target)


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]))
