"""Worst priority first, among equals the least recently used."""

from attrs import frozen

from stages.scheduler.eviction import Key, NodeFacts


@frozen
class Priority:
    """Order of the best priority that inserted a node, then of the last access."""

    def key(self, node: NodeFacts) -> Key:
        """Return the priority and the last access."""
        return (node.priority, node.last_access)


EVICTION = Priority
