"""A trace: conversations whose next turn is asked when the answer to the last one is there and its time has passed.

A turn's prompt is the prompt of the turn before it, that turn's answer as the engine gave it, and the turn's own fresh
tokens. So what arrives when depends on the engine, as it does in life. A conversation of one turn is a plain request.
"""

from attrs import evolve, frozen

# What stands in a prompt for the chat template's marks; every other token of a trace is FIRST_TOKEN or above.
USER, ASSISTANT, FIRST_TOKEN = 1, 2, 16
VOCAB_SIZE = 154_880


@frozen(eq=False)
class Turn:
    """One request: the tokens it adds to the conversation and how many the answer has, the first of them reasoning.

    pause_s is the time since the answer before it, in the first turn since the conversation's start.
    """

    fresh: tuple[int, ...]
    output_tokens: int
    reasoning_tokens: int = 0
    pause_s: float = 0.0


@frozen(eq=False)
class Conversation:
    """Turns in their order; the first is asked pause_s after start_s."""

    name: str
    start_s: float
    turns: tuple[Turn, ...]
    priority: int | None = None


@frozen(eq=False)
class Trace:
    """Conversations in order of their start."""

    name: str
    conversations: tuple[Conversation, ...]

    @property
    def num_requests(self) -> int:
        """Return the number of turns."""
        return sum(len(conversation.turns) for conversation in self.conversations)

    def denser(self, factor: float) -> "Trace":
        """Return the same conversations starting `factor` times as densely; pauses stay as they are."""
        return Trace(self.name, tuple(evolve(one, start_s=one.start_s / factor) for one in self.conversations))
