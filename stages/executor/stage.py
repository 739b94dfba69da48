"""The executor's tasks: one begins plans as they come, the other awaits their steps in order and tells the scheduler.

They are two so that the next step is in the device's line before the last one is done.
"""

import trio
from attrs import define

from stages.channels import MAX_FLIGHTS, Channels
from stages.executor.runner import Pending, Runner
from stages.messages import StepDone, StepFailed

Begun = tuple[int, Pending]


async def run_executor(
    runner: Runner, channels: Channels, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run every plan until the scheduler closes the channel; closes the runner on its way out.

    Whatever a device raises means it can no longer be trusted with the state it holds: it becomes the one StepFailed,
    after which nothing is begun and nothing told, and it is the scheduler that then ends the engine, once every client
    has been told.
    """
    begun_send, begun_receive = trio.open_memory_channel[Begun](MAX_FLIGHTS)
    executor = _Executor(runner, channels)
    with channels.plans_receive:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(executor.begin_all, begun_send)
                nursery.start_soon(executor.await_all, begun_receive)
                task_status.started()
        finally:
            await runner.aclose()


@define(eq=False)
class _Executor:
    runner: Runner
    channels: Channels
    is_lost: bool = False

    async def begin_all(self, begun: "trio.MemorySendChannel[Begun]") -> None:
        with begun:
            async for plan in self.channels.plans_receive:
                if not self.is_lost:
                    begun.send_nowait((plan.step, self.runner.begin(plan.input)))
                # An idle executor holds no arrays.
                del plan

    async def await_all(self, begun: "trio.MemoryReceiveChannel[Begun]") -> None:
        async for step, pending in begun:
            await self._await_one(step, pending)
            del pending

    async def _await_one(self, step: int, pending: Pending) -> None:
        fact: StepDone | StepFailed
        try:
            fact = StepDone(step, await pending.wait())
        except Exception as error:
            fact = StepFailed(step, error)
        if not self.is_lost:
            self.is_lost = isinstance(fact, StepFailed)
            self._post(fact)

    def _post(self, fact: StepDone | StepFailed) -> None:
        try:
            self.channels.scheduler_send.send_nowait(fact)
        except trio.BrokenResourceError:
            # The scheduler is gone, so the engine is ending: nobody is left to tell.
            return
