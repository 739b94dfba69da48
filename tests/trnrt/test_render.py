"""The renderer end to end: what its engine gets, and what its clients do."""

import json
import subprocess
import sys
from typing import Any

from tests.stages.ingress.http import ask
from tests.trnrt.render_kit import MESSAGES, rendering, saying

CHAT: dict[str, Any] = {"messages": MESSAGES, "rid": "r1"}


def events(body: bytes) -> list[Any]:
    """What a stream of chunks holds, [DONE] as None."""
    lines = [line[6:] for line in body.decode().split("\n\n") if line.startswith("data: ")]
    return [None if line == "[DONE]" else json.loads(line) for line in lines]


async def test_a_chat_is_answered_from_the_engines_tokens() -> None:
    async with rendering(saying("Good day")) as run:
        reply = await ask(run.port, "/v1/chat/completions", CHAT)
    choice = reply.json["choices"][0]
    assert (reply.status, choice["message"]["content"], choice["finish_reason"]) == (200, "Good day", "stop")
    assert run.engine.rids == ["r1-0"]


async def test_a_streamed_chat_is_answered_from_the_engines_tokens() -> None:
    async with rendering(saying("Good day")) as run:
        reply = await ask(run.port, "/v1/chat/completions", {**CHAT, "stream": True})
    *chunks, done = events(reply.body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert ("".join(delta.get("content") or "" for delta in deltas), done) == ("Good day", None)


async def test_what_is_rendered_is_what_the_engine_gets() -> None:
    async with rendering(saying("Good day")) as run:
        await ask(run.port, "/v1/chat/completions", CHAT)
        reply = await ask(run.port, "/v1/chat/completions/render", CHAT)
    assert {**reply.json, "stream": True, "return_text_in_logprobs": False} == run.engine.exchanges[0].body


def test_torch_is_never_imported() -> None:
    code = (
        "import sys, trio, trnrt.__main__\n"
        "from stages.stats.stage import open_stats\n"
        "from trnrt.render import RenderServer, model_of, serve_render\n"
        "from trnrt.render_config import load_render_config\n"
        "config = load_render_config(['trnrt/models/demo_files', '--port', '0', '--engine-url', 'http://127.0.0.1:9',"
        " '--tool-call-parser', 'glm47', '--reasoning-parser', 'glm45'], {})\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        await nursery.start(serve_render, RenderServer(config, model_of(config), open_stats(), 0))\n"
        "        nursery.cancel_scope.cancel()\n"
        "trio.run(main)\n"
        "print(sorted({'torch', 'safetensors', 'transformers', 'xgrammar', 'llguidance'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (run.stdout, run.returncode) == ("[]\n", 0), run.stderr
