"""When a connection between requests is closed, on virtual time."""

import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from stages.ingress.idling import Idling

LIMIT_S = 5.0


@define(eq=False)
class Spawner:
    """Starts tasks as hypercorn's TaskGroup does, and counts them."""

    nursery: trio.Nursery
    num_tasks: int = 0

    def spawn(self, run: object, *args: object) -> None:
        self.num_tasks += 1
        self.nursery.start_soon(run, *args)  # type: ignore[arg-type]


@define(eq=False)
class Closing:
    """Remembers when it was closed; closing takes a second."""

    closed_s: list[float] = field(factory=list)

    async def close(self) -> None:
        await trio.sleep(1.0)
        self.closed_s.append(trio.current_time())


async def test_a_connection_is_closed_once_it_has_idled_for_the_limit(autojump_clock: MockClock) -> None:
    closing = Closing()
    async with trio.open_nursery() as nursery:
        begin_s = trio.current_time()
        await Idling(LIMIT_S, trio.Event().wait, closing.close).restart(Spawner(nursery), None)
    assert closing.closed_s == [begin_s + LIMIT_S + 1.0]


async def test_a_request_stops_the_count_and_the_next_silence_begins_it_anew(autojump_clock: MockClock) -> None:
    closing = Closing()
    async with trio.open_nursery() as nursery:
        begin_s = trio.current_time()
        spawner = Spawner(nursery)
        idling = Idling(LIMIT_S, trio.Event().wait, closing.close)
        for _ in range(3):
            await idling.restart(spawner, None)
            await trio.sleep(LIMIT_S - 1.0)
            await idling.stop()
            await trio.sleep(10 * LIMIT_S)
        await idling.restart(spawner, None)
    assert closing.closed_s == [begin_s + 3 * (11 * LIMIT_S - 1.0) + LIMIT_S + 1.0]
    assert spawner.num_tasks == 1


async def test_a_request_that_comes_as_the_limit_passes_keeps_its_connection(autojump_clock: MockClock) -> None:
    closing = Closing()
    async with trio.open_nursery() as nursery:
        idling = Idling(LIMIT_S, trio.Event().wait, closing.close)
        idling_since_s = trio.current_time()
        await idling.restart(Spawner(nursery), None)
        await wait_all_tasks_blocked()
        # Jumps past the limit without letting the waiting task run in between.
        autojump_clock.jump(LIMIT_S + 1.0)
        await idling.stop()
        await trio.sleep(LIMIT_S)
        assert closing.closed_s == []
        assert trio.current_time() > idling_since_s + LIMIT_S
        idling.end()


async def test_a_stop_of_the_server_closes_what_idles_at_once_and_leaves_what_is_busy(
    autojump_clock: MockClock,
) -> None:
    idle, busy, stopping = Closing(), Closing(), trio.Event()
    async with trio.open_nursery() as nursery:
        begin_s = trio.current_time()
        for closing in (idle, busy):
            idling = Idling(LIMIT_S, stopping.wait, closing.close)
            await idling.restart(Spawner(nursery), None)
        await idling.stop()
        await trio.sleep(2.0)
        stopping.set()
    assert idle.closed_s == [begin_s + 3.0]
    assert busy.closed_s == []


async def test_the_end_of_a_connection_ends_the_count_but_not_a_close_under_way(autojump_clock: MockClock) -> None:
    early, late = Closing(), Closing()
    async with trio.open_nursery() as nursery:
        begin_s = trio.current_time()
        idlings = [Idling(LIMIT_S, trio.Event().wait, closing.close) for closing in (early, late)]
        for idling in idlings:
            await idling.restart(Spawner(nursery), None)
        await trio.sleep(1.0)
        idlings[0].end()
        await trio.sleep(LIMIT_S - 0.5)
        idlings[1].end()
    assert early.closed_s == []
    assert late.closed_s == [begin_s + LIMIT_S + 1.0]
