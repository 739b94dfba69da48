"""What the scheduler's core needs of the queue in front of it, stages.channels.Admission. Core."""

from collections.abc import Container
from typing import Protocol

from stages.messages import ChoiceKey, Submit


class Queue(Protocol):
    """The choices that were accepted and wait, in order of arrival."""

    waiting: dict[ChoiceKey, Submit]
    waiting_tokens: int
    running: Container[str]

    def take(self, key: ChoiceKey) -> Submit:
        """Remove and return one waiting choice; raises KeyError."""
        ...

    def take_fresh(self) -> list[Submit]:
        """Return what came since the last call and still waits."""
        ...

    def choices_of(self, request_id: str) -> list[ChoiceKey]:
        """Return the waiting choices of a request."""
        ...
