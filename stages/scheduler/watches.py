"""Prompts that wait and want to know what the prefix tree could give them, kept current change by change. Core.

Theory of operation. A watch stands at a *place*: a node and a position within (start, end] where its prompt stops
agreeing with the tree (a root has the one position 0). In a place watches are grouped by their next token. So
- a new child meets only the group of its first token in the place at its parent's end; those walk on from there,
- a split moves whole places, those up to the cut, to the upper half,
- a leaf that goes puts its watches to its parent's end.
A watch also hangs at the node it would *resume* at, the root when there is none. A node that loses its last snapshot
hands its watches on to the next one above. One that gains its first looks either at the watches that hang above it or
at those that stand beneath it, whichever are fewer. Callbacks run at the end of a change, when the tree is whole again,
and only for watches whose answer differs from what was told.
"""

from collections.abc import Callable, Iterator, Mapping

from attrs import define, field

from stages.scheduler.matching import descend
from stages.scheduler.nodes import Ints32, Node, subtree, upwards

_NO_TOKEN = -1


@define(eq=False)
class Watch:
    """What the tree knows of one prompt: tokens that agree, tokens a resume would save, the number of its node."""

    namespace: str
    tokens: Ints32
    limit: int
    on_change: "Callable[[Watch], None]"
    num_matched: int = 0
    usable_tokens: int = 0
    node: int = 0
    # Where it stands, in the group of the first token that the tree does not have, or of -1 when it has all.
    place: "Place | None" = None
    group: int = _NO_TOKEN
    # The root when the tree has nothing to resume at.
    resume: Node | None = None
    told: tuple[int, int] = (0, 0)

    def is_beneath(self, node: Node) -> bool:
        """Return whether it stands in `node` or further down."""
        return self.place is not None and node in upwards(self.place.node)


@define(eq=False)
class Place:
    """A point in the tree where prompts stop agreeing with it, and those prompts by their next token."""

    node: Node
    position: int
    groups: dict[int, dict[Watch, None]] = field(factory=dict)
    num_watches: int = 0

    def watches(self) -> Iterator[Watch]:
        """Yield all watches here."""
        for group in self.groups.values():
            yield from group


@define(eq=False)
class Watches:
    """All watches of a tree; the tree reports its changes right after it made them."""

    _places: dict[Node, dict[int, Place]] = field(factory=dict)
    _resuming: dict[Node, dict[Watch, None]] = field(factory=dict)
    _changed: dict[Watch, None] = field(factory=dict)

    def is_watched(self, node: Node) -> bool:
        """Return whether a watch stands in `node`."""
        return node in self._places

    def add(self, watch: Watch, root: Node) -> None:
        """Begin to keep `watch` current; what is known at once is not a change."""
        self._put(watch, root, 0)
        self._resume_at(watch, root)
        self._follow(watch, root)
        self._changed.pop(watch)
        watch.told = (watch.usable_tokens, watch.node)

    def remove(self, watch: Watch) -> None:
        """Stop keeping `watch` current; raises ValueError when nobody does."""
        if watch.place is None:
            raise ValueError("this prompt is not watched")
        self._lift(watch)
        self._resume_at(watch, None)
        self._changed.pop(watch, None)

    def grown(self, child: Node) -> None:
        """Let the watches that waited for just this child walk on."""
        assert child.parent is not None
        place = self._places.get(child.parent, {}).get(child.start)
        if place is not None:
            for watch in list(place.groups.get(int(child.tokens[0]), ())):
                self._follow(watch, child.parent)

    def was_split(self, upper: Node, lower: Node) -> None:
        """Move the places up to the cut to the upper half."""
        places = self._places.get(lower, {})
        for position in [position for position in places if position <= upper.end]:
            place = places.pop(position)
            place.node = upper
            self._places.setdefault(upper, {})[position] = place
            for watch in place.watches():
                watch.node = upper.number
                self._changed[watch] = None
        if not places:
            self._places.pop(lower, None)

    def gained_snapshot(self, node: Node) -> None:
        """Let the watches through all of `node` resume there if they had nothing better."""
        hanging = self._resuming.get(_next_above(node), {})
        for watch in self._going_through(node, hanging):
            if watch.usable_tokens < node.end <= watch.limit:
                self._resume_at(watch, node)

    def lost_snapshot(self, node: Node) -> None:
        """Let the watches that would have resumed at `node` resume at the next one above."""
        for watch in list(self._resuming.get(node, ())):
            # Whatever is above ends before node does and so within the limit.
            self._resume_at(watch, _next_above(node))

    def removed(self, leaf: Node) -> None:
        """Put the watches in a leaf that is no more to its parent's end."""
        assert leaf.parent is not None
        for place in list(self._places.get(leaf, {}).values()):
            for watch in list(place.watches()):
                self._put(watch, leaf.parent, leaf.start)

    def tell(self) -> None:
        """Call on_change of every watch whose answer is not what it was told."""
        changed, self._changed = self._changed, {}
        for watch in changed:
            answer = (watch.usable_tokens, watch.node)
            if watch.place is not None and answer != watch.told:
                watch.told = answer
                watch.on_change(watch)

    def _going_through(self, node: Node, hanging: Mapping[Watch, None]) -> list[Watch]:
        """Return the watches that go through all of `node`; those that hang at it or beneath it may be left out."""
        standing: list[Watch] = []
        num_visited = 0
        for beneath in subtree(node):
            for place in self._places.get(beneath, {}).values():
                if place.position >= node.end and num_visited + place.num_watches <= len(hanging):
                    standing += place.watches()
                num_visited += place.num_watches
            num_visited += 1
            if num_visited > len(hanging):
                return [watch for watch in hanging if watch.num_matched >= node.end and watch.is_beneath(node)]
        return standing

    def _follow(self, watch: Watch, node: Node) -> None:
        entered, num_matched = descend(node, watch.tokens)
        self._put(watch, entered[-1] if entered else node, num_matched)
        reach = min(num_matched, watch.limit)
        for deepest in reversed(entered):
            if deepest.end <= reach and deepest.has_snapshot:
                self._resume_at(watch, deepest)
                break

    def _put(self, watch: Watch, node: Node, position: int) -> None:
        self._lift(watch)
        watch.num_matched, watch.node = position, node.number
        watch.group = int(watch.tokens[position]) if position < len(watch.tokens) else _NO_TOKEN
        places = self._places.setdefault(node, {})
        place = places.get(position)
        if place is None:
            place = places[position] = Place(node, position)
        watch.place = place
        place.num_watches += 1
        place.groups.setdefault(watch.group, {})[watch] = None
        self._changed[watch] = None

    def _lift(self, watch: Watch) -> None:
        place, watch.place = watch.place, None
        if place is None:
            return
        place.num_watches -= 1
        group = place.groups[watch.group]
        del group[watch]
        if not group:
            del place.groups[watch.group]
        if not place.groups:
            del self._places[place.node][place.position]
            if not self._places[place.node]:
                del self._places[place.node]

    def _resume_at(self, watch: Watch, node: Node | None) -> None:
        if watch.resume is not None:
            resuming = self._resuming[watch.resume]
            del resuming[watch]
            if not resuming:
                del self._resuming[watch.resume]
        watch.resume, watch.usable_tokens = node, node.end if node is not None else 0
        if node is not None:
            self._resuming.setdefault(node, {})[watch] = None
        self._changed[watch] = None


def _next_above(node: Node) -> Node:
    """Return the nearest ancestor with a snapshot, or the root."""
    assert node.parent is not None
    above = node.parent
    while above.parent is not None and not above.has_snapshot:
        above = above.parent
    return above
