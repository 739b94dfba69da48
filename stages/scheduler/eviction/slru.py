"""Two segments: what was used again goes after all that was not; in each the least recently used first."""

from attrs import field, frozen, validators

from stages.scheduler.eviction import Key, NodeFacts


@frozen
class Slru:
    """A node is protected from protected_threshold hits on; the insertion that made it is the first."""

    protected_threshold: float = field(default=2, validator=validators.ge(1))

    def key(self, node: NodeFacts) -> Key:
        """Return whether the node is protected, and the last access."""
        return (node.hits >= self.protected_threshold, node.last_access)


EVICTION = Slru
