"""Runs a whole engine under trio's virtual clock with a seeded task order: the same seed gives the same run."""

import gc
import math
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, evolve, field, frozen

from graphs.keys import Buckets, doubling
from graphs.step import Capacity, Device
from stages.channels import Channels, open_mailbox
from stages.engine.local import LocalEngine
from stages.engine.port import Order
from stages.executor.runner import Runner
from stages.messages import (
    Cancel,
    ChoiceKey,
    CommandResult,
    Ended,
    Event,
    Penalties,
    Rules,
    Sampling,
    Submit,
    TextForm,
    Usage,
)
from stages.scheduler.core import SchedulerCore
from stages.settings import SchedulerSettings
from stages.stats.stage import Stats
from tests.sim.fake_grammar import FakeGuides, run_fake_grammar
from trnrt.simulation.clock import run_virtually
from trnrt.simulation.engine import virtual_engine

# Under the name the tests know.
run_sim = run_virtually


def capacity(
    *,
    num_pages: int = 65,
    page_size_tokens: int = 8,
    num_slots: int = 9,
    max_batch: int = 8,
    max_prefill_batch: int = 4,
    max_chunk_tokens: int = 16,
    vocab_size: int = 997,
    max_row_pages: int = 64,
    num_host_pages: int = 1,
    num_host_slots: int = 1,
) -> Capacity:
    """Return a small device's capacity; every number of pages and slots counts the null one."""
    return Capacity(
        num_pages=num_pages,
        page_size_tokens=page_size_tokens,
        num_slots=num_slots,
        buckets=Buckets(
            batch=doubling(1, max_batch),
            prefill_batch=doubling(1, max_prefill_batch),
            tokens=doubling(4, max_chunk_tokens),
            pages=doubling(1, max_row_pages),
        ),
        vocab_size=vocab_size,
        context_length_tokens=max_row_pages * page_size_tokens,
        max_top_logprobs=4,
        num_host_pages=num_host_pages,
        num_host_slots=num_host_slots,
        takes_mask=True,
        adjust_tokens=(4, 32, vocab_size),
    )


def submit(
    request_id: str,
    prompt_ids: tuple[int, ...],
    *,
    mailbox: "trio.MemorySendChannel[Event] | None" = None,
    choice: int = 0,
    max_new_tokens: int = 4,
    min_new_tokens: int = 0,
    # One that is never drawn: with none at all nothing but the limit could end it.
    stop_token_ids: frozenset[int] = frozenset({997}),
    sampling: Sampling = Sampling(temperature=0.0),  # noqa: B008  # frozen
    seed: int = 0,
    logprobs: bool = False,
    num_top_logprobs: int = 0,
    stop: tuple[str, ...] = (),
    stop_regex: tuple[str, ...] = (),
    priority: int | None = None,
    namespace: str = "",
    session: str | None = None,
    routing_key: str | None = None,
    wait_until_s: float = math.inf,
    tells_start: bool = False,
    rules: Rules | None = None,
    penalties: Penalties = Penalties(),  # noqa: B008  # frozen
    logit_bias: tuple[tuple[int, float], ...] = (),
    logprob_token_ids: tuple[int, ...] = (),
    prompt_logprobs_from: int | None = None,
) -> Submit:
    """Return a Submit with defaults; without a mailbox its events have nowhere to go."""
    return Submit(
        key=ChoiceKey(request_id, choice),
        prompt_ids=prompt_ids,
        sampling=sampling,
        seed=seed,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop_token_ids=stop_token_ids,
        stop=stop,
        stop_regex=stop_regex,
        form=TextForm(),
        in_reasoning=False,
        logprobs=logprobs,
        num_top_logprobs=num_top_logprobs,
        mailbox=mailbox if mailbox is not None else open_mailbox(1, 1)[0],
        priority=priority,
        namespace=namespace,
        session=session,
        routing_key=routing_key,
        wait_until_s=wait_until_s,
        tells_start=tells_start,
        rules=rules,
        penalties=penalties,
        logit_bias=logit_bias,
        logprob_token_ids=logprob_token_ids,
        prompt_logprobs_from=prompt_logprobs_from,
    )


@frozen(eq=False)
class Heard:
    """What one choice brought its client, with the instant of each token and of each time it was let in."""

    token_ids: tuple[int, ...]
    times_s: tuple[float, ...]
    ended: Ended
    starts: tuple[tuple[float, Usage], ...] = ()

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Return the time between each token and the one before."""
        return tuple(round(later - earlier, 9) for earlier, later in zip(self.times_s, self.times_s[1:], strict=False))


@define(eq=False)
class SimEngine:
    """An engine of real scheduler and executor stages, with a client's view of it."""

    core: SchedulerCore
    channels: Channels
    engine: LocalEngine
    stats: Stats
    # Choices of which something was told and the end not yet: what a detokenizer would keep.
    known: set[ChoiceKey] = field(factory=set)
    # Every Submit that was ever sent and is still referenced by anybody, and with it its mailbox.
    submits: "weakref.WeakSet[Submit]" = field(factory=weakref.WeakSet)
    guides: FakeGuides = field(factory=FakeGuides)

    async def ask(self, order: Submit) -> Heard:
        """Submit one choice and listen to its end; leaving early cancels it as a request task does."""
        (heard,) = await self.ask_choices((order,))
        return heard

    async def ask_choices(self, orders: tuple[Submit, ...]) -> tuple[Heard, ...]:
        """Submit all choices of a request and listen until each has ended."""
        send, receive = open_mailbox(max(order.max_new_tokens for order in orders), len(orders))
        submits = tuple(evolve(order, mailbox=send) for order in orders)
        self.engine.submit(submits)
        self.submits.update(submits)
        del submits
        heard: dict[int, list[tuple[int, float]]] = {order.key.choice: [] for order in orders}
        starts: dict[int, list[tuple[float, Usage]]] = {order.key.choice: [] for order in orders}
        ended: dict[int, Ended] = {}
        try:
            while len(ended) < len(orders):
                event = await receive.receive()
                assert event.choice not in ended, "an event came after the end"
                if isinstance(event, Ended):
                    ended[event.choice] = event
                elif not event.token_ids:
                    assert not heard[event.choice], "a start came after a token"
                    starts[event.choice].append((trio.current_time(), event.usage))
                else:
                    heard[event.choice] += [(token_id, trio.current_time()) for token_id in event.token_ids]
        finally:
            self.engine.cancel(orders[0].key.request_id)
            receive.close()
        return tuple(
            Heard(
                tuple(token_id for token_id, _ in heard[order.key.choice]),
                tuple(at_s for _, at_s in heard[order.key.choice]),
                ended[order.key.choice],
                tuple(starts[order.key.choice]),
            )
            for order in orders
        )

    def cancel(self, order: Cancel) -> None:
        """Post a Cancel."""
        self.channels.scheduler_send.send_nowait(order)

    async def order(self, order: Order) -> CommandResult:
        """Give an operator's order and wait for its result."""
        return await self.engine.command(order)

    def assert_all_returned(self) -> None:
        """Check that nothing is held of any request that ever ran."""
        load = self.core.load()
        assert (load.running, load.waiting, load.waiting_tokens) == (0, 0, 0)
        # What is left is the cache's, and would be given.
        assert (load.used_pages - load.evictable_pages, load.used_slots) == (0, 0)
        assert self.core.is_idle
        assert not self.core.roster.requests
        assert not self.known
        if self.submits:
            gc.collect()
        assert not self.submits, "a Submit, and its mailbox, outlives its choice"
        assert not self.guides.told


def instantly(_: Submit) -> float:
    return 0.0


@asynccontextmanager
async def sim_engine(
    settings: SchedulerSettings,
    device: Device,
    *,
    runner: Runner | None = None,
    mask_s: Callable[[Submit], float] = instantly,
) -> AsyncIterator[SimEngine]:
    """Run an engine for the block, then drain it; the block's end is only passed once everything has ended.

    A mask comes mask_s after it was asked for.
    """
    async with trio.open_nursery() as nursery:
        async with virtual_engine(settings, device, runner=runner) as parts:
            engine = SimEngine(parts.core, parts.channels, parts.engine, parts.stats, parts.known)
            nursery.start_soon(run_fake_grammar, parts.channels, mask_s, engine.guides)
            yield engine
        nursery.cancel_scope.cancel()
    # What sessions pin stays pinned for as long as the engine lives.
    engine.core.sessions.unpin_all()
    engine.assert_all_returned()
