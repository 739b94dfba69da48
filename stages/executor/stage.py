"""The executor's tasks: one begins plans as they come, one awaits their steps in order and tells the scheduler.

They are two so that the next step is in the device's line before the last one is done. A third makes the transfers
between device and host memory, one after another, and holds up neither.
"""

import trio
from attrs import define

from stages.channels import MAX_FLIGHTS, Channels
from stages.executor.runner import Pending, Runner
from stages.messages import StartTransfer, StepDone, StepFailed, TransferDone

Begun = tuple[int, Pending]
Fact = StepDone | TransferDone | StepFailed


async def run_executor(
    runner: Runner, channels: Channels, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run every plan and every transfer until the scheduler closes both channels; closes the runner on its way out.

    Whatever a device raises means it can no longer be trusted with the state it holds: it becomes the one StepFailed,
    after which nothing is begun and nothing told, and it is the scheduler that then ends the engine, once every client
    has been told.
    """
    begun_send, begun_receive = trio.open_memory_channel[Begun](MAX_FLIGHTS)
    executor = _Executor(runner, channels)
    with channels.plans_receive, channels.transfers_receive:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(executor.begin_all, begun_send)
                nursery.start_soon(executor.await_all, begun_receive)
                nursery.start_soon(executor.transfer_all)
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

    async def transfer_all(self) -> None:
        async for order in self.channels.transfers_receive:
            if not self.is_lost:
                await self._transfer_one(order)
            del order

    async def _await_one(self, step: int, pending: Pending) -> None:
        fact: Fact
        try:
            fact = StepDone(step, await pending.wait())
        except Exception as error:
            fact = StepFailed(step, error)
        self._tell(fact)

    async def _transfer_one(self, order: StartTransfer) -> None:
        fact: Fact
        try:
            await self.runner.begin_transfer(order.transfer).wait()
            fact = TransferDone(order.number)
        except Exception as error:
            fact = StepFailed(order.number, error)
        self._tell(fact)

    def _tell(self, fact: Fact) -> None:
        if self.is_lost:
            return
        self.is_lost = isinstance(fact, StepFailed)
        try:
            self.channels.scheduler_send.send_nowait(fact)
        except trio.BrokenResourceError:
            # The scheduler is gone, so the engine is ending: nobody is left to tell.
            return
