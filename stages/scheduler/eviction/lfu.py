"""Least often used first, among equals the least recently used."""

from attrs import frozen

from stages.scheduler.eviction import Key, NodeFacts


@frozen
class Lfu:
    """Order of the hits, then of the last access."""

    def key(self, node: NodeFacts) -> Key:
        """Return the hits and the last access."""
        return (node.hits, node.last_access)


EVICTION = Lfu
