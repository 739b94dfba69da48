"""A RemoteEngine and a detokenizer in front of a scripted engine, and submits for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define

from stages.channels import open_mailbox
from stages.detokenizer.choice import Decoding
from stages.detokenizer.stage import Detokenizer
from stages.detokenizer.vocabulary import Vocabulary
from stages.engine.http_client import Connect
from stages.engine.origin import Origin
from stages.engine.remote import RemoteEngine, run_remote_engine
from stages.messages import ChoiceKey, Ended, Event, Sampling, Submit, TextForm, Tokens
from stages.settings import RemoteSettings
from tests.fake_engine import FakeGenerate, Script

ORIGIN = Origin("http", "engine", 80)
VOCABULARY = Vocabulary(tuple(f"{number} ".encode() for number in range(500)), frozenset(), {})


@define(eq=False)
class Remote:
    engine: RemoteEngine
    fake: FakeGenerate
    nursery: trio.Nursery


@asynccontextmanager
async def remote_engine(
    script: Script, origin: Origin | None = None, connect: Connect | None = None, **settings: Any
) -> AsyncIterator[Remote]:
    """Run the engine for the block, over streams in memory unless it is somewhere."""
    fake = FakeGenerate(script)
    tokens, batches = trio.open_memory_channel[Tokens](float("inf"))
    async with trio.open_nursery() as nursery:
        fake.nursery = nursery

        async def run(*, task_status: "trio.TaskStatus[RemoteEngine]") -> None:
            chosen = RemoteSettings(origin or ORIGIN, **settings)
            opens = fake.connect if origin is None else connect
            await run_remote_engine(chosen, tokens, connect=opens, task_status=task_status)

        engine: RemoteEngine = await nursery.start(run)
        nursery.start_soon(_detokenize, Detokenizer(Decoding(VOCABULARY), engine.obey), batches)
        yield Remote(engine, fake, nursery)
        nursery.cancel_scope.cancel()


async def _detokenize(detokenizer: Detokenizer, batches: "trio.MemoryReceiveChannel[Tokens]") -> None:
    async for batch in batches:
        detokenizer.deliver(batch)
        del batch


def submits_of(
    request_id: str = "a", n: int = 1, *, room: int = 64, **fields: Any
) -> "tuple[tuple[Submit, ...], trio.MemoryReceiveChannel[Event]]":
    """Return the choices of a request and where their events come."""
    mailbox, events = open_mailbox(room, n)
    given: dict[str, Any] = {
        "prompt_ids": (1, 2, 3),
        "sampling": Sampling(),
        "seed": 5,
        "max_new_tokens": 64,
        "min_new_tokens": 0,
        "stop_token_ids": frozenset(),
        "stop": (),
        "form": TextForm(),
        "in_reasoning": False,
        "logprobs": False,
        "num_top_logprobs": 0,
        **fields,
    }
    return tuple(Submit(key=ChoiceKey(request_id, index), mailbox=mailbox, **given) for index in range(n)), events


async def answer_of(
    remote: Remote, n: int = 1, *, within_s: float = 1e6, **fields: Any
) -> tuple[list[Event], list[Ended]]:
    """Submit a request and return its deltas and its ends."""
    submits, events = submits_of(n=n, **fields)
    remote.engine.submit(submits)
    deltas: list[Event] = []
    ends: list[Ended] = []
    with trio.fail_after(within_s):
        while len(ends) < n:
            event = await events.receive()
            if isinstance(event, Ended):
                ends.append(event)
            else:
                deltas.append(event)
    remote.engine.cancel("a")
    return deltas, ends
