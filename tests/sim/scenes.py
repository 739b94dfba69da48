"""Scenes: who asks for what at which instant, played on the real scheduler and a device whose steps take known times.

A prefill step takes half a second and computes at most a chunk of 16 tokens a row, a decode step an eighth.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

import trio

from graphs.step import StepInput, Transfer
from stages.errors import QueueFull
from stages.messages import Submit
from stages.settings import CacheSettings, SchedulerSettings
from tests.sim.fake_grammar import allowed_after
from tests.sim.history_device import HistoryDevice, answer_of
from tests.sim.simkit import Heard, SimEngine, capacity, instantly, run_sim, sim_engine

PREFILL_S, DECODE_S = 0.5, 0.125
COPY_S = 0.25
CHUNK_TOKENS = 16

Event = tuple[float, Submit]
Act = Callable[[SimEngine], Awaitable[None]]


def settings(*, cache: CacheSettings | None = CacheSettings(max_snapshots=8), **changes: object) -> SchedulerSettings:  # noqa: B008
    """Return settings with chunks of 16 tokens and a prefix cache, changed as said."""
    values: dict[str, object] = {"chunked_prefill_size_tokens": CHUNK_TOKENS, "max_running_requests": 8, "cache": cache}
    return SchedulerSettings(**{**values, **changes})  # type: ignore[arg-type]


def step_s(step: StepInput) -> float:
    return PREFILL_S if step.key.family == "prefill" else DECODE_S


def make_device(copy_s: float = COPY_S, **sizes: int) -> HistoryDevice:
    """Return a device with slots for eight rows, their shadows and eight snapshots; it looks at the clock."""
    sizes = {"num_slots": 25, **sizes}

    def seconds(_: Transfer) -> float:
        return copy_s

    return HistoryDevice(capacity(**sizes), step_s, transfer_s=seconds, clock=trio.current_time)


def words(length: int, salt: int = 0) -> tuple[int, ...]:
    """Return a prompt of its own for each salt: no two begin alike."""
    return tuple((salt * 131 + index * 7) % 997 for index in range(length))


def answer(order: Submit) -> tuple[int, ...]:
    """Return what `order` is answered when nothing ends it early."""
    return answer_of(order, order.max_new_tokens, 997, allowed_after)


async def play_on(
    engine: SimEngine, events: Iterable[Event], acts: Mapping[float, Act] | None = None
) -> dict[str, Heard]:
    """Let each request of one choice be asked, and each act happen, at its instant; refused ones are not heard."""
    heard: dict[str, Heard] = {}

    async def ask(at_s: float, order: Submit) -> None:
        await trio.sleep_until(at_s)
        try:
            heard[order.key.request_id] = await engine.ask(order)
        except QueueFull:
            return

    async def do(at_s: float, act: Act) -> None:
        await trio.sleep_until(at_s)
        await act(engine)

    async with trio.open_nursery() as nursery:
        for at_s, order in events:
            nursery.start_soon(ask, at_s, order)
        for at_s, act in (acts or {}).items():
            nursery.start_soon(do, at_s, act)
    return heard


def play(
    wanted: SchedulerSettings,
    device: HistoryDevice,
    events: Iterable[Event],
    acts: Mapping[float, Act] | None = None,
    mask_s: Callable[[Submit], float] = instantly,
) -> dict[str, Heard]:
    """Play a scene and return what each request heard; whoever ran to its limit must have heard the right tokens."""
    events = list(events)

    async def main() -> dict[str, Heard]:
        async with sim_engine(wanted, device, mask_s=mask_s) as engine:
            return await play_on(engine, events, acts)

    heard = run_sim(main)
    for _, order in events:
        one = heard.get(order.key.request_id)
        if one is not None:
            right = answer(order)
            assert one.token_ids == (right if one.ended.finish.kind == "length" else right[: len(one.token_ids)])
    return heard


def firsts(heard: Mapping[str, Heard]) -> dict[str, float]:
    """Return the instant of each request's first token."""
    return {name: one.times_s[0] for name, one in heard.items() if one.times_s}


def prefilled(device: HistoryDevice) -> int:
    """Return how many prompt tokens the device has computed."""
    return sum(int(step.num_valid.sum()) for step in device.steps if step.key.family == "prefill")
