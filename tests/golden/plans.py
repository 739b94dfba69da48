"""Workloads from a seed, run by hand on the scheduler with the default flags, and what it planned for them, in short.

A plan is everything a device is given: key, tokens, starts, slots, page tables, copies. A change of any number in any
step changes the workload's digest; the counts beside it say what kind of change it is.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from functools import cache

import attrs
import numpy as np
from attrs import define, evolve, field, frozen

from graphs.step import Capacity, StepInput
from stages.messages import Cancel, Sampling, Submit
from stages.settings import SchedulerSettings
from tests.sim.asks import ASKS, asking
from tests.sim.bench import Bench
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import submit
from trnrt.config import Config
from trnrt.resolve import resolve
from trnrt.scheduling import scheduler_settings
from trnrt.served import ServedModel, read_served_model
from trnrt.shapes import graph_settings

SEEDS = range(16)
# A workload still at it after so many steps is caught in a circle.
MAX_STEPS = 5000


@define(eq=False)
class Talk:
    """One conversation: at which step each turn comes after the one before has ended, and what it brings."""

    name: str
    prompt_ids: tuple[int, ...]
    waits: list[int]
    num_new: Callable[[], int]
    num_generated: Callable[[], int]
    session: str | None = None
    num_choices: int = 1
    temperature: float = 0.0
    # What it asks besides (tests.sim.asks).
    asks: str = ""
    # After how many steps of a turn it is cancelled.
    leaves_after: int | None = None
    turn: int = 0
    sent_at: int = 0


@frozen
class Kind:
    """How a kind of workload makes its conversations, and what of the defaults it changes."""

    talks: Callable[[random.Random], list[Talk]]
    settings: Mapping[str, object] = {}
    max_snapshots: int | None = None
    num_pages: int | None = None


def _ids(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(10 + int(draw.random() * 900) for _ in range(count))


def _between(draw: random.Random, low: int, high: int) -> int:
    # Only random() is promised to be the same in every Python.
    return low + int(draw.random() * (high - low + 1))


def _singles(draw: random.Random, num: int = 8, longest: int = 400, generated: tuple[int, int] = (1, 24)) -> list[Talk]:
    return [
        Talk(
            f"r{index}",
            _ids(draw, _between(draw, 1, longest)),
            [_between(draw, 0, 20)],
            lambda: 0,
            lambda: _between(draw, *generated),
            temperature=float(index % 2),
        )
        for index in range(num)
    ]


def _under_pressure(draw: random.Random) -> list[Talk]:
    return _singles(draw, 8, 200, (30, 90))


def _cancelled(draw: random.Random) -> list[Talk]:
    talks = _singles(draw, 10)
    for talk in talks[::2]:
        talk.leaves_after = _between(draw, 0, 8)
    return talks


def _asking(draw: random.Random) -> list[Talk]:
    talks = _conversations(draw, 3) + _singles(draw, 6, 200)
    for talk in talks:
        talk.asks = ASKS[_between(draw, 0, len(ASKS) - 1)]
    return talks


def _conversations(draw: random.Random, num: int = 4, has_sessions: bool = False) -> list[Talk]:
    system = _ids(draw, _between(draw, 60, 200))
    return [
        Talk(
            f"t{index}",
            (*system, _turn_token(), *_ids(draw, _between(draw, 1, 80))),
            [_between(draw, 0, 12) for _ in range(3)],
            lambda: _between(draw, 1, 60),
            lambda: _between(draw, 1, 24),
            session=f"s{index}" if has_sessions and index % 2 else None,
        )
        for index in range(num)
    ]


def _sessions(draw: random.Random) -> list[Talk]:
    return _conversations(draw, has_sessions=True)


def _bursts(draw: random.Random) -> list[Talk]:
    common = _ids(draw, _between(draw, 70, 300))
    return [
        Talk(
            f"b{index}",
            common + _ids(draw, _between(draw, 1, 70)),
            [_between(draw, 0, 3)],
            lambda: 0,
            lambda: _between(draw, 1, 8),
            num_choices=_between(draw, 1, 3),
        )
        for index in range(5)
    ]


KINDS: Mapping[str, Kind] = {
    "plain": Kind(_singles),
    "in turn": Kind(_singles, {"overlap": False}),
    "pressure": Kind(_under_pressure, {"schedule_conservativeness": 0.0}, num_pages=11),
    "cancelled": Kind(_cancelled),
    "conversations": Kind(_conversations),
    "sessions": Kind(_sessions, num_pages=31),
    "crowded": Kind(lambda draw: _conversations(draw, 8), max_snapshots=4),
    "bursts": Kind(_bursts),
    "asking": Kind(_asking),
    "asking, in turn": Kind(_asking, {"overlap": False}),
    "asking, pressure": Kind(_asking, {"schedule_conservativeness": 0.0}, num_pages=11),
}


@cache
def _model() -> ServedModel:
    return read_served_model(Config())


def _turn_token() -> int:
    """Return a token with which a turn begins."""
    return min(_model().settings.eos_token_ids)


@cache
def defaults() -> tuple[SchedulerSettings, Capacity]:
    """Return what the scheduler is given by a server that is started without flags."""
    model = _model()
    config = resolve(Config(), model)
    shapes = graph_settings(config, model.settings)
    capacity = Capacity(
        num_pages=shapes.num_pages,
        page_size_tokens=shapes.page_size_tokens,
        num_slots=shapes.num_slots,
        buckets=shapes.buckets,
        vocab_size=model.settings.vocab_size,
        context_length_tokens=model.settings.context_length_tokens,
        max_top_logprobs=20,
    )
    return scheduler_settings(config, model.settings.eos_token_ids), capacity


def record(kind_name: str, seed: int) -> dict[str, object]:
    """Run one workload and return its digest and counts."""
    kind = KINDS[kind_name]
    settings, capacity = defaults()
    if kind.num_pages is not None:
        capacity = evolve(capacity, num_pages=kind.num_pages)
    if kind.max_snapshots is not None and settings.cache is not None:
        settings = evolve(settings, cache=evolve(settings.cache, max_snapshots=kind.max_snapshots))
    capacity = evolve(capacity, takes_mask=True, adjust_tokens=(64, 1024, capacity.vocab_size))
    bench = Bench(evolve(settings, **kind.settings), HistoryDevice(capacity))  # type: ignore[arg-type]
    return _Run(bench, kind.talks(random.Random(f"{kind_name} {seed}"))).record()


@define(eq=False)
class _Run:
    bench: Bench
    talks: list[Talk]
    step: int = 0
    digest: "hashlib._Hash" = field(factory=hashlib.sha256)
    num_steps: dict[str, int] = field(factory=lambda: {"prefill": 0, "decode": 0})
    num_prefilled: int = 0
    num_cached: int = 0
    num_retractions: int = 0

    def record(self) -> dict[str, object]:
        pending = {talk.name: (talk.waits[0], talk) for talk in self.talks}
        running: dict[str, tuple[Talk, tuple[Submit, ...]]] = {}
        while pending or running:
            for name, (at, talk) in list(pending.items()):
                if at <= self.step:
                    del pending[name]
                    running[name] = talk, self.send(talk)
            self.advance(running)
            for name, (talk, orders) in list(running.items()):
                if self.has_ended(orders):
                    del running[name]
                    self.count(orders)
                    talk.turn += 1
                    if talk.turn < len(talk.waits):
                        talk.prompt_ids += self.bench.answers[orders[0].key.request_id]
                        talk.prompt_ids += (_turn_token(), *_ids(random.Random(f"{name} {talk.turn}"), talk.num_new()))
                        pending[name] = self.step + talk.waits[talk.turn], talk
            self.step += 1
            assert self.step < MAX_STEPS, f"{sorted(running)} do not end"
        for given in self.bench.steps():
            self.note(given)
        assert self.bench.core.is_idle
        return {
            "digest": self.digest.hexdigest()[:12],
            "prefill_steps": self.num_steps["prefill"],
            "decode_steps": self.num_steps["decode"],
            "prefilled": self.num_prefilled,
            "cached": self.num_cached,
            "retractions": self.num_retractions,
        }

    def send(self, talk: Talk) -> tuple[Submit, ...]:
        # Choices of one request: the bench keeps what it hears by request, so each is a request of its own.
        num_generated = talk.num_generated()
        orders = tuple(
            submit(
                f"{talk.name}.{talk.turn}.{choice}",
                talk.prompt_ids,
                max_new_tokens=num_generated,
                sampling=Sampling(temperature=talk.temperature),
                seed=choice,
                session=talk.session,
                stop_token_ids=frozenset({self.bench.device.capacity.vocab_size}),
                **asking(talk.asks, len(talk.prompt_ids), self.bench.device.capacity.vocab_size),  # type: ignore[arg-type]
            )
            for choice in range(talk.num_choices)
        )
        self.bench.send(*orders)
        talk.sent_at = self.step
        return orders

    def advance(self, running: Mapping[str, tuple[Talk, tuple[Submit, ...]]]) -> None:
        core = self.bench.core
        for talk, orders in running.values():
            if talk.leaves_after is not None and self.step == talk.sent_at + talk.leaves_after:
                for order in orders:
                    core.cancel(Cancel(order.key.request_id, deliver=True))
        given = self.bench.step()
        if given is not None:
            self.note(given)
        self.bench.hear()

    def note(self, given: StepInput) -> None:
        copies = given.copies
        self.num_steps[given.key.family] += 1
        if given.key.family == "prefill":
            self.num_prefilled += int(given.num_valid.sum())
            self.update(given.tokens)
        self.digest.update(str(given.key).encode())
        for array in (given.start, given.num_valid, given.slots, given.page_table):
            self.update(array)
        for array in (copies.pages, copies.slots, copies.captures, copies.saves):
            self.update(array)

        if given.edits is not None:
            adjust = given.edits.adjust
            columns = attrs.astuple(adjust, recurse=False) if adjust is not None else ()
            for column in (given.edits.allowed, *columns):
                self.digest.update(b"-" if column is None else column.astype("<f4").tobytes())
        for numbers in (given.wanted_ids, given.scoring.targets if given.scoring is not None else None):
            if numbers is not None:
                self.update(numbers)

    def update(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> None:
        self.digest.update(str(array.shape).encode() + array.astype("<i8").tobytes())

    def has_ended(self, orders: tuple[Submit, ...]) -> bool:
        return all(order.key.request_id in self.bench.ends for order in orders)

    def count(self, orders: tuple[Submit, ...]) -> None:
        for order in orders:
            usage = self.bench.usages[order.key.request_id]
            self.num_cached += usage.cached_tokens
            self.num_retractions += usage.num_retractions
