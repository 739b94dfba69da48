"""Least recently used first."""

from attrs import frozen

from stages.scheduler.eviction import Key, NodeFacts


@frozen
class Lru:
    """Order of the last access."""

    def key(self, node: NodeFacts) -> Key:
        """Return the last access."""
        return (node.last_access,)


EVICTION = Lru
