"""An inbox notes how its stage's time went, to the instant, and the most that stood in it."""

import pytest
import trio
import trio.testing

from stages.inbox import Inbox, Meter


async def test_time_is_waited_until_an_item_comes_and_worked_until_the_next_is_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    send, receive = trio.open_memory_channel[int](10)
    inbox = Inbox(receive)

    async def stage() -> None:
        async for item in inbox:
            await trio.sleep(item)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage)
        await trio.sleep(2)
        send.send_nowait(3)  # worked from 2 to 5
        await trio.sleep(4)
        send.send_nowait(1)  # from 6 to 7
        await trio.sleep(0.5)
        assert inbox.meter.times(trio.current_time()) == (3.0, 3.5)
        await trio.sleep(2.5)
        assert inbox.meter.times(trio.current_time()) == (5.0, 4.0)
        send.close()
    assert inbox.meter.received == 2


async def test_the_most_there_ever_was_is_seen_though_it_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    send, receive = trio.open_memory_channel[int](10)
    inbox = Inbox(receive)
    for number in range(7):
        send.send_nowait(number)
    assert [await inbox.receive(), inbox.receive_nowait(), await inbox.receive()] == [0, 1, 2]
    assert (inbox.meter.high_water, inbox.meter.received) == (7, 3)
    assert inbox.statistics().current_buffer_used == 4


async def test_a_wait_that_is_given_up_was_waited(autojump_clock: trio.testing.MockClock) -> None:
    _, receive = trio.open_memory_channel[int](10)
    inbox = Inbox(receive)
    with trio.move_on_after(3):
        await inbox.receive()
    await trio.sleep(1)
    assert inbox.meter.times(trio.current_time()) == (3.0, 1.0)
    assert inbox.meter.received == 0


async def test_it_ends_as_its_channel_does() -> None:
    send, receive = trio.open_memory_channel[int](10)
    async with Inbox(receive) as inbox:
        send.close()
        with pytest.raises(trio.EndOfChannel):
            await inbox.receive()
        assert [item async for item in inbox] == []
    with pytest.raises(trio.ClosedResourceError):
        inbox.receive_nowait()


def test_a_stage_that_never_began_has_no_time() -> None:
    assert Meter().times(50.0) == (0.0, 0.0)
