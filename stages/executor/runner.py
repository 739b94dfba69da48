"""How a device step is awaited: on a thread of its own, or on the clock.

A Runner takes a step's arrays and gives arrays back, so a process at the other end of a socket can be one too.
"""

import queue
import threading
from collections.abc import Callable
from typing import Protocol

import outcome
import trio

from graphs.step import Device, StepInput, StepOutput


class Runner(Protocol):
    """Runs steps one at a time."""

    async def run(self, step: StepInput) -> StepOutput:
        """Run one step; raises what the device raised, DeviceLost when it is gone. Called by one task only."""
        ...

    async def aclose(self) -> None:
        """Wait for a step that is still running and stop; idempotent. The device stays its owner's to close."""
        ...


_Deliver = Callable[["outcome.Outcome[StepOutput]"], None]


class ThreadRunner:
    """Runs a device on one long-lived thread, one hop each way a step.

    # Invariant: a step that was begun is waited for, cancelled or not: the device writes the pages it was given.
    """

    def __init__(self, device: Device) -> None:
        """Start the thread; must be called inside trio."""
        self._device = device
        self._trio_token = trio.lowlevel.current_trio_token()
        self._orders: queue.SimpleQueue[tuple[StepInput, _Deliver] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="trnrt-engine", daemon=True)
        self._thread.start()

    async def run(self, step: StepInput) -> StepOutput:
        """Run one step on the engine thread; cancellation is seen only after it."""
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()
        self._orders.put((step, lambda result: trio.lowlevel.reschedule(task, result)))

        def refuse(_: object) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.FAILED

        output: StepOutput = await trio.lowlevel.wait_task_rescheduled(refuse)
        return output

    async def aclose(self) -> None:
        """Stop the thread after what it runs and join it, even when cancelled."""
        self._orders.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            step, deliver = order
            result = outcome.capture(self._device.run, step)
            try:
                self._trio_token.run_sync_soon(deliver, result)
            except trio.RunFinishedError:
                return
            # Nothing of a step outlives it: an idle engine holds no arrays.
            del order, step, deliver, result


class SimRunner:
    """Runs a timed device model on trio's clock: a step takes the device_s the device reports."""

    def __init__(self, device: Device) -> None:
        self._device = device

    async def run(self, step: StepInput) -> StepOutput:
        """Run one step and sleep as long as it would have taken."""
        output = self._device.run(step)
        await trio.sleep(output.device_s)
        return output

    async def aclose(self) -> None:
        """Do nothing: there is nothing to wait for."""
        await trio.lowlevel.checkpoint()
