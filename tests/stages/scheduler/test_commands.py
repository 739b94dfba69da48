"""Orders of an operator that wait for the engine to be quiet or idle, by hand."""

import trio
from attrs import define, field

from stages.channels import Admission
from stages.messages import Command, CommandResult, FlushCache, Pause
from stages.scheduler.commands import FLUSH_PENDING, Commands
from stages.scheduler.core import SchedulerCore
from stages.scheduler.policies import load_policy
from stages.settings import CacheSettings, SchedulerSettings
from tests.sim.simkit import capacity, submit


@define(eq=False)
class Desk:
    """A core that runs one choice, and the orders given to it."""

    core: SchedulerCore = field(init=False)
    commands: Commands = field(init=False)

    def __attrs_post_init__(self) -> None:
        queue = Admission(8, lambda _: None)
        settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=2, cache=CacheSettings())
        self.core = SchedulerCore(settings, capacity(), queue, load_policy("fcfs"))
        self.commands = Commands(self.core)
        queue.send_nowait((submit("a", tuple(range(40))),))
        assert self.core.plan() is not None

    def order(self, order: FlushCache | Pause) -> "trio.MemoryReceiveChannel[CommandResult]":
        """Give an order, giving the end at which its answer is awaited."""
        reply, answer = trio.open_memory_channel[CommandResult](1)
        self.commands.take(Command(order, reply))
        return answer

    def results(self) -> list[CommandResult]:
        """Return what was answered since the last call."""
        return [result for _, result in self.commands.take_answers()]


def test_a_second_flush_is_refused_only_while_somebody_awaits_the_first():
    desk = Desk()
    first = desk.order(FlushCache(waits=True))
    with desk.order(FlushCache()):
        assert desk.results() == [CommandResult(False, FLUSH_PENDING)]
    first.close()
    with desk.order(FlushCache()):
        assert desk.results() == [CommandResult(False)]
    with desk.order(FlushCache(waits=True)):
        desk.commands.settle()
        assert desk.results() == []
        assert [command.order for command in desk.commands._pending] == [FlushCache(waits=True)]
