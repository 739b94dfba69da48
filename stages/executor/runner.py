"""How a device step is begun and awaited: on a thread of its own, or on the clock.

A Runner takes a step's arrays and gives arrays back, so a process at the other end of a socket can be one too. Steps
run one at a time in the order they were begun, and one can be begun while another runs: the device then goes from step
to step without the event loop in between.

# Invariant: after a step that raised no other reaches the device, begun before that or after: the state is lost.
"""

import queue
import threading
from typing import Protocol

import outcome
import trio
from attrs import define

from graphs.step import Device, DeviceLost, StepInput, StepOutput
from stages.executor.bell import Bell

Result = outcome.Outcome[StepOutput]


class Pending(Protocol):
    """A step that was begun."""

    async def wait(self) -> StepOutput:
        """Return the step's output when it is done; raises what the device raised. Called by one task only."""
        ...


class Runner(Protocol):
    """Runs steps in the order they are begun."""

    def begin(self, step: StepInput) -> Pending:
        """Line up a step behind those begun before it; never blocks."""
        ...

    async def aclose(self) -> None:
        """Wait for every step that was begun and stop; idempotent. The device stays its owner's to close."""
        ...


@define(eq=False)
class ThreadPending:
    """A step on the engine thread or in line for it; the steps of a runner are awaited by one task.

    # Invariant: a step that was begun is waited for, cancelled or not: the device writes the pages it was given.
    """

    _bell: Bell
    # Set by the engine thread, before it rings.
    result: Result | None = None

    async def wait(self) -> StepOutput:
        """Return the output; cancellation is seen only after the step."""
        with trio.CancelScope(shield=True):
            while self.result is None:
                await self._bell.heard()
        assert self.result is not None
        return self.result.unwrap()


class ThreadRunner:
    """Runs a device on one long-lived thread."""

    def __init__(self, device: Device) -> None:
        """Start the thread."""
        self._device = device
        self._bell = Bell()
        self._orders: queue.SimpleQueue[tuple[StepInput, ThreadPending] | None] = queue.SimpleQueue()
        self._is_lost = False
        self._thread = threading.Thread(target=self._work, name="trnrt-engine", daemon=True)
        self._thread.start()

    def begin(self, step: StepInput) -> ThreadPending:
        """Put a step in the engine thread's queue."""
        pending = ThreadPending(self._bell)
        self._orders.put((step, pending))
        return pending

    async def aclose(self) -> None:
        """Stop the thread after all that was begun and join it, even when cancelled."""
        self._orders.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)
        self._bell.close()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            step, pending = order
            pending.result = outcome.capture(self._run, step)
            self._bell.ring()
            # Nothing of a step outlives it: an idle engine holds no arrays.
            del order, step, pending

    def _run(self, step: StepInput) -> StepOutput:
        if self._is_lost:
            raise DeviceLost("an earlier step failed")
        try:
            return self._device.run(step)
        except BaseException:
            self._is_lost = True
            raise


@define(eq=False)
class SimPending:
    """A step whose result is known and comes at done_s on trio's clock."""

    _result: Result
    _done_s: float

    async def wait(self) -> StepOutput:
        """Sleep until the step would be done and return its output."""
        await trio.sleep_until(self._done_s)
        return self._result.unwrap()


class SimRunner:
    """Runs a timed device model on trio's clock: a step takes the device_s the device reports, one after another."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free_s = 0.0
        self._is_lost = False

    def begin(self, step: StepInput) -> SimPending:
        """Run one step at once, to be done device_s after now, or after the step before it where that is later."""
        self._free_s = max(self._free_s, trio.current_time())
        result = outcome.capture(self._run, step)
        if isinstance(result, outcome.Value):
            self._free_s += result.value.device_s
        else:
            self._is_lost = True
        return SimPending(result, self._free_s)

    def _run(self, step: StepInput) -> StepOutput:
        if self._is_lost:
            raise DeviceLost("an earlier step failed")
        return self._device.run(step)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to wait for."""
        await trio.lowlevel.checkpoint()
