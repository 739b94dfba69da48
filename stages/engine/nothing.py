"""The engine of a server that has none: what would generate is refused."""

from stages.engine.port import Order, Scope
from stages.errors import EngineFailure, Unavailable
from stages.messages import CommandResult, Submit


class NoEngine:
    """Engine that runs no choice."""

    def submit(self, submits: tuple[Submit, ...]) -> None:
        """Raise Unavailable."""
        raise Unavailable("This server has no engine (--engine-url).")

    def cancel(
        self, request_id: str, *, deliver: bool = False, message: str = "Aborted", scope: Scope = "request"
    ) -> None:
        """Do nothing."""

    async def command(self, order: Order) -> CommandResult:
        """Raise EngineFailure."""
        raise EngineFailure("there is no engine")
