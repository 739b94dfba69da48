"""Counting: totals, rates on a given clock, and losses that never touch the sender."""

import trio
import trio.testing

from stages.channels import STATS_QUEUE
from stages.messages import Load, Record
from stages.stats.counters import RATE_WINDOW_S, Counters
from stages.stats.stage import open_stats, run_stats

LOAD = Load(1, 2, 30, 4, 50, 6, 70, 8)


def test_records_of_one_name_add_up_and_outcomes_are_gathered():
    counters = Counters()
    for name, value in (("choices_stop", 1), ("choices_stop", 2), ("choices_abort", 1), ("prompt_tokens", 40)):
        counters.record(Record(name, value), 0.0)
    snapshot = counters.snapshot(0.0)
    assert snapshot.choices_by_outcome == {"stop": 3, "abort": 1}
    assert (snapshot.prompt_tokens, snapshot.completion_tokens) == (40, 0)
    assert snapshot.totals["choices_stop"] == 3
    assert snapshot.load is None


def test_the_hit_rate_is_the_share_of_prompt_tokens_that_either_tier_had():
    counters = Counters()
    assert counters.snapshot(0.0).cache_hit_rate == 0.0
    for name, value in (("looked_up_tokens", 40), ("cached_tokens_device", 10), ("cached_tokens_host", 5)):
        counters.record(Record(name, value), 0.0)
    snapshot = counters.snapshot(0.0)
    assert (snapshot.cached_tokens_device, snapshot.cached_tokens_host) == (10, 5)
    assert snapshot.cache_hit_rate == 0.375


def test_a_snapshot_does_not_change_afterwards():
    counters = Counters()
    before = counters.snapshot(0.0)
    counters.record(Record("prompt_tokens", 3), 0.0)
    assert before.totals.get("prompt_tokens", 0) == 0


def test_the_rate_is_over_the_last_seconds_and_falls_to_zero_when_nothing_comes():
    counters = Counters()
    for second in range(100, 130):
        counters.record(Record("completion_tokens", 30), second + 0.25)
        counters.record(Record("completion_tokens", 20), second + 0.75)
    assert counters.snapshot(129.9).completion_tokens_per_s == 50.0
    assert counters.snapshot(134.0).completion_tokens_per_s == 25.0
    assert counters.snapshot(140.0).completion_tokens_per_s == 0.0
    assert counters.snapshot(140.0).completion_tokens == 1500
    assert len(counters._seconds) <= RATE_WINDOW_S


async def test_the_stage_counts_what_arrives_until_the_senders_end(autojump_clock: trio.testing.MockClock):
    stats = open_stats()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_stats, stats)
        stats.send.send(Record("completion_tokens", 5))
        stats.send.send(LOAD)
        await trio.sleep(1.0)
        snapshot = stats.snapshot(trio.current_time())
        assert (snapshot.completion_tokens, snapshot.load, snapshot.num_lost) == (5, LOAD, 0)
        stats.send.channel.close()


async def test_what_nobody_takes_is_lost_and_counted_and_the_sender_never_waits():
    stats = open_stats()
    for _ in range(STATS_QUEUE + 3):
        stats.send.send(Record("completion_tokens"))
    assert stats.snapshot(0.0).num_lost == 3
    stats.receive.close()
    stats.send.send(LOAD)
    assert stats.snapshot(0.0).num_lost == 4
    stats.send.channel.close()
    stats.send.send(LOAD)
    assert stats.snapshot(0.0).num_lost == 5


async def test_totals_survive_a_stats_stage_that_is_restarted(autojump_clock: trio.testing.MockClock):
    stats = open_stats()
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_stats, stats)
            stats.send.send(Record("completion_tokens", 5))
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
    assert stats.snapshot(trio.current_time()).completion_tokens == 10
