"""How far a prompt agrees with the prefix tree and where it can resume. Core."""

from attrs import frozen

from stages.scheduler.nodes import Ints32, Node


@frozen
class Match:
    """How far tokens agree with the tree and where they can resume: from any tier, and from the device alone.

    `left` is the node that the tokens enter and leave before its end.
    """

    num_matched: int
    resume: Node | None
    on_device: Node | None
    left: Node | None = None


def num_agreeing(left: Ints32, right: Ints32) -> int:
    """Return how many first tokens of two arrays are the same."""
    size = min(len(left), len(right))
    if not size:
        return 0
    differs = left[:size] != right[:size]
    first = int(differs.argmax())
    return first if differs[first] else size


def descend(node: Node, tokens: Ints32) -> tuple[list[Node], int]:
    """Return the nodes beneath `node` that `tokens` enters and how many tokens agree; the last may be entered in part.

    The first node.end tokens must be those on the way to `node`.
    """
    entered: list[Node] = []
    position = node.end
    while position == node.end and position < len(tokens):
        child = node.children.get(int(tokens[position]))
        if child is None:
            break
        entered.append(child)
        position += num_agreeing(child.tokens, tokens[position:])
        node = child
    return entered, position


def match_from(root: Node, tokens: Ints32, limit: int) -> Match:
    """Return how far `tokens` agrees with the tree under `root` and its deepest resume points up to `limit`."""
    entered, num_matched = descend(root, tokens)
    resume: Node | None = None
    is_left = num_matched < len(tokens) and entered and entered[-1].end > num_matched
    left = entered[-1] if is_left else None
    for node in reversed(entered):
        if node.end > min(limit, num_matched):
            continue
        if resume is None and node.has_snapshot:
            resume = node
        if node.device.snapshot is not None:
            return Match(num_matched, resume, node, left)
    return Match(num_matched, resume, None, left)
