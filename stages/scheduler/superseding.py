"""Which snapshots another one has made worthless: those a conversation left behind as it grew. Core.

# Invariant: from a superseded node a chain without a fork leads to a deeper snapshot, so whoever goes through the node
can resume deeper; an abandoned answer is no fork. What breaks the chain (a new branch, the loss of the deeper snapshot)
unmarks the nearest above; those further up are superseded by that one.
"""

from stages.scheduler.nodes import Node, upwards


def mark_above(node: Node) -> list[Node]:
    """Mark the snapshots above `node` that one deeper on its path supersedes, giving those that were not marked."""
    marked: list[Node] = []
    is_covered = node.has_snapshot and not node.is_abandoned
    for above in upwards(node.parent):
        is_covered = is_covered and is_chain(above)
        if above.has_snapshot:
            if is_covered and not above.is_superseded:
                above.is_superseded = True
                marked.append(above)
            is_covered = True
    return marked


def is_chain(node: Node) -> bool:
    """Return whether at most one way on from `node` is still gone: answers that were left behind do not count."""
    ways = (child for child in node.children.values() if not child.is_abandoned)
    next(ways, None)
    return next(ways, None) is None


def unmark_nearest(node: Node | None) -> Node | None:
    """Unmark the first snapshot at or above `node`, which a prompt may need again, and return its node."""
    for above in upwards(node):
        if above.has_snapshot:
            above.is_superseded = False
            return above
    return None
