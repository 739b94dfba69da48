"""The seam between request tasks and an engine."""

from typing import Literal, Protocol

from stages.messages import CloseSession, CommandResult, FlushCache, OpenSession, Pause, Resume, Submit

Order = FlushCache | Pause | Resume | OpenSession | CloseSession
Scope = Literal["request", "prefix", "all"]


class Engine(Protocol):
    """Runs choices; a local one is the scheduler, executor and detokenizer of this process."""

    def submit(self, submits: tuple[Submit, ...]) -> None:
        """Queue all choices of a request or none, events go to each Submit's mailbox; raises QueueFull or Draining."""
        ...

    def cancel(
        self, request_id: str, *, deliver: bool = False, message: str = "Aborted", scope: Scope = "request"
    ) -> None:
        """End every choice that request_id and scope name, without awaiting; unknown ids are ignored."""
        ...

    async def command(self, order: Order) -> CommandResult:
        """Have `order` carried out, giving what came of it; raises Draining or EngineFailure where nothing will.

        A caller that stops waiting takes its order back, unless it was carried out already.
        """
        ...
