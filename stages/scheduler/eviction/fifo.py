"""Oldest first."""

from attrs import frozen

from stages.scheduler.eviction import Key, NodeFacts


@frozen
class Fifo:
    """Order of creation."""

    def key(self, node: NodeFacts) -> Key:
        """Return the time of creation."""
        return (node.created,)


EVICTION = Fifo
