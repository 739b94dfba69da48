"""Events go to the sink that a waiting reader lends, or into the channel, and never past each other."""

from typing import Any

import pytest
import trio
import trio.testing

from stages.channels import open_mailbox
from stages.messages import Delta, Event


def delta(number: int) -> Delta:
    return Delta(0, (number,))


async def test_what_a_sink_takes_wakes_nobody_and_what_it_declines_wakes_the_reader_and_ends_the_loan() -> None:
    mailbox, events = open_mailbox(8, 1)
    taken: list[int] = []

    def sink(event: Event) -> bool:
        assert isinstance(event, Delta)
        if event.token_ids == (2,):
            return False
        taken.extend(event.token_ids)
        return True

    async def read(task_status: "trio.TaskStatus[None]") -> None:
        with mailbox.lent(sink):
            task_status.started()
            assert await events.receive() == delta(2)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(read)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(5):
                mailbox.send_nowait(delta(number))
    assert taken == [0, 1]
    assert [events.receive_nowait() for _ in range(2)] == [delta(3), delta(4)]


async def test_a_loan_ends_with_the_wait_however_it_ends() -> None:
    mailbox, events = open_mailbox(8, 1)
    with trio.move_on_after(0), mailbox.lent(lambda event: True):
        await events.receive()
    mailbox.send_nowait(delta(1))
    assert events.receive_nowait() == delta(1)


async def test_a_closed_mailbox_takes_nothing_by_its_sink_either() -> None:
    mailbox, events = open_mailbox(8, 1)
    with mailbox.lent(lambda event: True):
        mailbox.close()
        with pytest.raises(trio.ClosedResourceError):
            mailbox.send_nowait(delta(1))
        with pytest.raises(trio.EndOfChannel):
            await events.receive()


async def test_a_mailbox_knows_whether_its_reader_is_there(autojump_clock: Any) -> None:
    mailbox, events = open_mailbox(8, 1)
    assert mailbox.has_reader
    events.close()
    assert not mailbox.has_reader
