from typing import Any

from stages.ingress.feed import admit, collect
from stages.messages import Ask, Ended, Limits
from tests.fakes import counting, fake_services


async def test_prompts_and_events_of_a_batch_stand_in_ask_order_however_they_were_admitted(autojump_clock: Any) -> None:
    asks = [Ask(f"r{index}", "x" * (index + 1), limits=Limits(max_new_tokens=index + 1)) for index in range(8)]
    async with fake_services(counting(99)) as fakes:
        async with admit(asks, fakes.services) as feed:
            assert [len(prompt.token_ids) for prompt in feed.prompts] == [1, 2, 3, 4, 5, 6, 7, 8]
            collected = await collect(asks, feed)
            assert await feed.next() == []
    assert [len(one.prompt.token_ids) for one in collected] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [len(one.events) for one in collected] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert all(isinstance(one.events[-1], Ended) for one in collected)


async def test_leaving_a_feed_early_cancels_what_still_runs(autojump_clock: Any) -> None:
    asks = [Ask(f"r{index}", "x", limits=Limits(max_new_tokens=64)) for index in range(3)]
    async with fake_services(counting(99)) as fakes:
        async with admit(asks, fakes.services) as feed:
            await feed.next()
        assert fakes.engine.running == {}
        assert sorted(fakes.engine.cancelled) == ["r0", "r1", "r2"]
