"""Which snapshots another one has made worthless: those a conversation left behind as it grew. Core.

# Invariant: from a superseded node a chain without a fork leads to a deeper snapshot, so whoever goes through the node
can resume deeper. What breaks the chain (a new branch, the loss of the deeper snapshot) unmarks the nearest above;
those further up are superseded by that one.
"""

from stages.scheduler.nodes import Node, upwards


def mark_above(node: Node) -> list[Node]:
    """Mark the snapshots above `node` that one deeper on its path supersedes, giving those that were not marked."""
    marked: list[Node] = []
    is_covered = node.has_snapshot
    for above in upwards(node.parent):
        is_covered = is_covered and len(above.children) == 1
        if above.has_snapshot:
            if is_covered and not above.is_superseded:
                above.is_superseded = True
                marked.append(above)
            is_covered = True
    return marked


def unmark_nearest(node: Node | None) -> Node | None:
    """Unmark the first snapshot at or above `node`, which a prompt may need again, and return its node."""
    for above in upwards(node):
        if above.has_snapshot:
            above.is_superseded = False
            return above
    return None
