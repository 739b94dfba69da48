"""Newest first."""

from attrs import frozen

from stages.scheduler.eviction import Key, NodeFacts


@frozen
class Filo:
    """Reverse order of creation."""

    def key(self, node: NodeFacts) -> Key:
        """Return the time of creation, negated."""
        return (-node.created,)


EVICTION = Filo
