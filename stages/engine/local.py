"""The engine of this process: submits go to admission, cancels to the scheduler's inbox."""

import trio
from attrs import frozen

from stages.channels import Channels
from stages.errors import Draining, QueueFull
from stages.messages import Cancel, Submit


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

    def cancel(self, request_id: str, *, deliver: bool = False, message: str = "Aborted") -> None:
        """Post a Cancel without awaiting; a scheduler that has gone has nothing left to free."""
        try:
            self.channels.scheduler_send.send_nowait(Cancel(request_id, deliver=deliver, message=message))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return
