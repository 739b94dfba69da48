"""A contained stage may fail as often as it likes: it is begun again, ever more rarely, and nobody else hears of it."""

from typing import Any

import pytest
import trio
import trio.testing

from stages.messages import Record
from stages.stats.stage import open_stats, run_stats
from trnrt.supervise import MAX_RESTART_S, contained


async def test_a_contained_stage_is_begun_again_after_pauses_that_double(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    begun_s: list[float] = []
    start_s = trio.current_time()

    async def stage(*, task_status: "trio.TaskStatus[None]") -> None:
        begun_s.append(round(trio.current_time() - start_s, 3))
        task_status.started()
        if len(begun_s) < 10:
            raise ValueError("again")

    async with trio.open_nursery() as nursery:
        await nursery.start(contained(stage, "stats"))
    assert begun_s == [0, 1, 3, 7, 15, 31, 63, 63 + MAX_RESTART_S, 63 + 2 * MAX_RESTART_S, 63 + 3 * MAX_RESTART_S]
    assert len(caplog.records) == 9


async def test_a_contained_stage_that_returns_is_done(autojump_clock: Any) -> None:
    async def stage(*, task_status: "trio.TaskStatus[str]") -> None:
        task_status.started("here")

    async with trio.open_nursery() as nursery:
        assert await nursery.start(contained(stage, "stats")) == "here"


async def test_statistics_go_on_after_what_broke_them_with_all_they_had(autojump_clock: Any) -> None:
    stats, broken = open_stats(), []

    def tap(item: object) -> None:
        if not broken:
            broken.append(item)
            raise ValueError("of somebody who listens")

    stats.taps.append(tap)
    async with trio.open_nursery() as nursery:
        await nursery.start(contained(run_stats, "stats"), stats)
        for _ in range(5):
            stats.send.send(Record("completion_tokens", 2))
        await trio.sleep(0.5)
        # The one that broke it was counted; the others wait in the channel, and nobody for them.
        assert stats.counters.totals["completion_tokens"] == 2
        await trio.sleep(1)
        assert stats.counters.totals["completion_tokens"] == 10
        assert stats.send.num_lost == 0
        stats.send.channel.close()
