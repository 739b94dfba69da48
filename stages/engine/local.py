"""The engine of this process: submits go to admission, cancels to the scheduler's inbox."""

import trio
from attrs import frozen

from stages.channels import Channels
from stages.engine.port import Order, Scope
from stages.errors import Draining, EngineFailure, QueueFull
from stages.messages import Cancel, Command, CommandResult, Submit


@frozen(eq=False)
class LocalEngine:
    """Engine over this process's channels."""

    channels: Channels

    def submit(self, submits: tuple[Submit, ...]) -> None:
        """Queue all choices of a request or none; raises QueueFull, Draining or InvalidRequest (an id in use)."""
        try:
            self.channels.admission.send_nowait(submits)
        except trio.WouldBlock:
            raise QueueFull from None
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise Draining from None

    def cancel(
        self, request_id: str, *, deliver: bool = False, message: str = "Aborted", scope: Scope = "request"
    ) -> None:
        """Post a Cancel without awaiting; a scheduler that has gone has nothing left to free."""
        order = Cancel(request_id, deliver=deliver, message=message, scope=scope)
        try:
            self.channels.scheduler_send.send_nowait(order)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return

    async def command(self, order: Order) -> CommandResult:
        """Post a Command and wait for its result; raises Draining in a drain, EngineFailure if it is dropped."""
        if self.channels.admission.closed:
            # A pause now would keep what was accepted from ever being finished.
            raise Draining
        reply, answer = trio.open_memory_channel[CommandResult](1)
        with answer:  # a closed receive end tells the scheduler that nobody waits any more
            try:
                self.channels.scheduler_send.send_nowait(Command(order, reply))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                raise Draining from None
            try:
                return await answer.receive()
            except trio.EndOfChannel:
                raise EngineFailure("the scheduler dropped an order") from None
