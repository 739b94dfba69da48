"""How a device step is begun and awaited: on a thread of its own, or on the clock.

A Runner takes a step's arrays and gives arrays back, so a process at the other end of a socket can be one too. Steps
run one at a time in the order they were begun, and one can be begun while another runs: the device then goes from step
to step without the event loop in between. Transfers between device and host memory have a line of their own, beside
the steps': neither waits for the other.

# Invariant: after a step or a transfer that raised nothing more reaches the device, begun before that or after, but
# what ran beside it: the state is lost.
"""

import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import outcome
import trio
from attrs import define

from graphs.step import Device, DeviceLost, StepInput, StepOutput, Transfer
from stages.executor.bell import Bell

Order = TypeVar("Order")
Answer = TypeVar("Answer")


class Pending(Protocol):
    """A step that was begun."""

    async def wait(self) -> StepOutput:
        """Return the step's output when it is done; raises what the device raised. Called by one task only."""
        ...


class PendingTransfer(Protocol):
    """A transfer that was begun."""

    async def wait(self) -> float:
        """Return the seconds the transfer took when it is done; raises what the device raised. Called by one task."""
        ...


class Runner(Protocol):
    """Runs steps in the order they are begun, and transfers beside them."""

    def begin(self, step: StepInput) -> Pending:
        """Line up a step behind those begun before it; never blocks."""
        ...

    def begin_transfer(self, transfer: Transfer) -> PendingTransfer:
        """Line up a transfer behind those begun before it; never blocks, and no step waits for it."""
        ...

    async def aclose(self) -> None:
        """Wait for all that was begun and stop; idempotent. The device stays its owner's to close."""
        ...


@define(eq=False)
class ThreadPending(Generic[Answer]):
    """Work on a thread or in line for it; all that one thread does is awaited by one task.

    # Invariant: what was begun is waited for, cancelled or not: the device writes the pages it was given.
    """

    _bell: Bell
    # Set by the thread, before it rings.
    result: "outcome.Outcome[Answer] | None" = None

    async def wait(self) -> Answer:
        """Return what the device answered; cancellation is seen only after that."""
        with trio.CancelScope(shield=True):
            while self.result is None:
                await self._bell.heard()
        assert self.result is not None
        return self.result.unwrap()


class Line(Generic[Order, Answer]):
    """Orders in line for one long-lived thread, which does them one after another."""

    def __init__(self, name: str, do: Callable[[Order], Answer]) -> None:
        """Start the thread."""
        self._do = do
        self._bell = Bell()
        self._orders: queue.SimpleQueue[tuple[Order, ThreadPending[Answer]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def begin(self, order: Order) -> ThreadPending[Answer]:
        """Put an order at the end of the line."""
        pending: ThreadPending[Answer] = ThreadPending(self._bell)
        self._orders.put((order, pending))
        return pending

    def end(self) -> None:
        """Let the thread stop after all that was begun."""
        self._orders.put(None)

    async def aclose(self) -> None:
        """Stop the thread after all that was begun and join it, even when cancelled."""
        self.end()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.thread.join)
        self._bell.close()

    def _work(self) -> None:
        while (next_one := self._orders.get()) is not None:
            order, pending = next_one
            pending.result = outcome.capture(self._do, order)
            self._bell.ring()
            # Nothing of an order outlives it: an idle engine holds no arrays.
            del next_one, order, pending


class ThreadRunner:
    """Runs a device's steps on one long-lived thread, and its transfers, once there is one, on another."""

    def __init__(self, device: Device) -> None:
        """Start the thread of the steps."""
        self._device = device
        self._is_lost = False
        self.steps = Line("trnrt-engine", self._run)
        self.transfers: Line[Transfer, float] | None = None

    def begin(self, step: StepInput) -> ThreadPending[StepOutput]:
        """Put a step in the engine thread's line."""
        return self.steps.begin(step)

    def begin_transfer(self, transfer: Transfer) -> ThreadPending[float]:
        """Put a transfer in the copy thread's line."""
        if self.transfers is None:
            self.transfers = Line("trnrt-copy", self._transfer)
        return self.transfers.begin(transfer)

    async def aclose(self) -> None:
        """Stop both threads after all that was begun and join them, even when cancelled."""
        await self.steps.aclose()
        if self.transfers is not None:
            await self.transfers.aclose()

    def _run(self, step: StepInput) -> StepOutput:
        return self._call(self._device.run, step)

    def _transfer(self, transfer: Transfer) -> float:
        return self._call(self._device.transfer, transfer)

    def _call(self, do: Callable[[Order], Answer], order: Order) -> Answer:
        if self._is_lost:
            raise DeviceLost("an earlier step failed")
        try:
            return do(order)
        except BaseException:
            self._is_lost = True
            raise


@define(eq=False)
class SimPending(Generic[Answer]):
    """Work whose result is known and comes at done_s on trio's clock."""

    _result: "outcome.Outcome[Answer]"
    _done_s: float

    async def wait(self) -> Answer:
        """Sleep until the work would be done and return its result."""
        await trio.sleep_until(self._done_s)
        return self._result.unwrap()


class SimRunner:
    """Runs a timed device model on trio's clock: a step takes the device_s the device reports, one after another.

    Transfers take the seconds the device reports, one after another, beside the steps.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free_s = 0.0
        self._copy_free_s = 0.0
        self._is_lost = False

    def begin(self, step: StepInput) -> SimPending[StepOutput]:
        """Run one step at once, to be done device_s after now, or after the step before it where that is later."""
        result = self._call(self._device.run, step)
        self._free_s = max(self._free_s, trio.current_time())
        if isinstance(result, outcome.Value):
            self._free_s += result.value.device_s
        return SimPending(result, self._free_s)

    def begin_transfer(self, transfer: Transfer) -> SimPending[float]:
        """Copy at once, to be done its seconds after now, or after the transfer before it where that is later."""
        result = self._call(self._device.transfer, transfer)
        self._copy_free_s = max(self._copy_free_s, trio.current_time())
        if isinstance(result, outcome.Value):
            self._copy_free_s += result.value
        return SimPending(result, self._copy_free_s)

    def _call(self, do: Callable[[Order], Answer], order: Order) -> "outcome.Outcome[Answer]":
        if self._is_lost:
            return outcome.Error(DeviceLost("an earlier step failed"))
        result = outcome.capture(do, order)
        self._is_lost = isinstance(result, outcome.Error)
        return result

    async def aclose(self) -> None:
        """Do nothing: there is nothing to wait for."""
        await trio.lowlevel.checkpoint()
