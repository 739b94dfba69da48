"""The renderer's nursery tree over real sockets, in front of an engine that follows a script."""

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import trio
from attrs import frozen
from tokenizers import Tokenizer

from stages.stats.stage import open_stats
from tests.fake_engine import STOP, Exchange, FakeGenerate, Script, counting
from trnrt.render import RenderServer, model_of, serve_render
from trnrt.render_config import load_render_config

DEMO = "trnrt/models/demo_files"
MESSAGES = [{"role": "user", "content": "Hello there"}]


@frozen(eq=False)
class Rendering:
    """A renderer that runs, and its engine."""

    port: int
    server: RenderServer
    engine: FakeGenerate


@asynccontextmanager
async def rendering(
    script: Script | None = None, *flags: str, order: Script | None = None, is_up: bool = True
) -> AsyncIterator[Rendering]:
    """Serve the demo model's renderer on a free port, before an engine that follows the script if there is one.

    The engine answers its other routes by `order`.
    """
    engine_flags = () if script is None else ("--engine-url", "http://engine:1")
    # Scripts say plain text, which the model's own parsers would take for thinking.
    plain = ("--served-model-name", "demo", "--tool-call-parser", "none", "--reasoning-parser", "none")
    config = load_render_config([DEMO, "--port", "0", *plain, *engine_flags, *flags], {})
    engine = FakeGenerate(script or counting(1), order=order, is_up=is_up)
    server = RenderServer(config, model_of(config), open_stats(), 0, connect=engine.connect)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            engine.nursery = nursery
            await nursery.start(serve_render, server)
            assert server.port is not None
            yield Rendering(server.port, server, engine)
            nursery.cancel_scope.cancel()


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(f"{DEMO}/tokenizer.json")


def ids(text: str) -> Sequence[int]:
    """Ids of an answer's text."""
    return _tokenizer().encode(text, add_special_tokens=False).ids


def saying(text: str) -> Script:
    """Answer with a text, one token a frame."""
    token_ids = ids(text)

    async def script(exchange: Exchange) -> None:
        for count, token_id in enumerate(token_ids, 1):
            await exchange.tokens([token_id], count, STOP if count == len(token_ids) else None)
        await exchange.done()

    return script


def events(body: bytes) -> list[Any]:
    """What a stream of chunks holds, [DONE] as None."""
    lines = [line[6:] for line in body.decode().split("\n\n") if line.startswith("data: ")]
    return [None if line == "[DONE]" else json.loads(line) for line in lines]


JUNK = (None, True, -1, 0, 1.5, 2**62, "", "x", [], [None], [[1, 2]], {}, {"a": 1}, 1e300)


def spoiled(value: Any, choose: random.Random) -> Any:
    """The value with something in it put out of order."""
    if isinstance(value, dict) and value and choose.random() < 0.85:
        key = choose.choice(list(value))
        return {**value, key: spoiled(value[key], choose)}
    if isinstance(value, list) and value and choose.random() < 0.85:
        at = choose.randrange(len(value))
        return [*value[:at], spoiled(value[at], choose), *value[at + 1 :]]
    return choose.choice(JUNK)
