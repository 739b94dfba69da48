"""What the next turn can do without first, then least recently used.

The next turn of a conversation of H tokens is expected to bring next_prompt_estimate new ones, and to keep its time to
the first token it may compute `threshold` tokens. So the end of the conversation, from H + next_prompt_estimate -
threshold on, can go without harm.
"""

from attrs import frozen

from stages.scheduler.eviction import Key, NodeFacts


@frozen
class Tlru:
    """Both parameters are tokens, 0 <= next_prompt_estimate < threshold."""

    threshold: float
    next_prompt_estimate: float

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.next_prompt_estimate < self.threshold:
            got = f"{self.next_prompt_estimate} and {self.threshold}"
            raise ValueError(f"tlru needs 0 <= next_prompt_estimate < threshold, got {got}")

    def key(self, node: NodeFacts) -> Key:
        """Return whether the next turn needs the node, and the last access."""
        is_needed = node.start < max(node.history_tokens + self.next_prompt_estimate - self.threshold, 0)
        return (is_needed, node.last_access)


EVICTION = Tlru
