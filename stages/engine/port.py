"""The seam between request tasks and an engine."""

from typing import Protocol

from stages.messages import Submit


class Engine(Protocol):
    """Runs choices; a local one is the scheduler, executor and detokenizer of this process."""

    def submit(self, submits: tuple[Submit, ...]) -> None:
        """Queue all choices of a request or none, events go to each Submit's mailbox; raises QueueFull or Draining."""
        ...

    def cancel(self, request_id: str, *, deliver: bool = False, message: str = "Aborted") -> None:
        """End every choice of a request and free what it holds, without awaiting; unknown ids are ignored."""
        ...
