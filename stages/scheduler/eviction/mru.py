"""Most recently used first."""

from attrs import frozen

from stages.scheduler.eviction import Key, NodeFacts


@frozen
class Mru:
    """Reverse order of the last access."""

    def key(self, node: NodeFacts) -> Key:
        """Return the last access, negated."""
        return (-node.last_access,)


EVICTION = Mru
