"""A heap whose entries may change or leave: old entries stay in it and are skipped when they come up. Core."""

import heapq
from typing import Generic, TypeVar

from attrs import define, field

from stages.scheduler.eviction import Key

Item = TypeVar("Item")

# Rebuild once old entries outnumber current ones, and never for a handful.
_MIN_ENTRIES = 64


@define(eq=False)
class Ranking(Generic[Item]):
    """Items by key, the smallest first; equal keys in the order they were placed."""

    _heap: list[tuple[Key, int, Item]] = field(factory=list)
    _current: dict[Item, tuple[Key, int]] = field(factory=dict)
    _num_placed: int = 0

    def __len__(self) -> int:
        return len(self._current)

    def place(self, item: Item, key: Key) -> None:
        """Rank `item` by `key` instead of what it had; amortised O(log n)."""
        current = self._current.get(item)
        if current is not None and current[0] == key:
            return
        self._num_placed += 1
        self._current[item] = (key, self._num_placed)
        heapq.heappush(self._heap, (key, self._num_placed, item))
        if len(self._heap) > 2 * len(self._current) + _MIN_ENTRIES:
            self._heap = [(key, placed, item) for item, (key, placed) in self._current.items()]
            heapq.heapify(self._heap)

    def remove(self, item: Item) -> None:
        """Forget `item` if it is ranked."""
        self._current.pop(item, None)

    def first(self) -> Item | None:
        """Return the item with the smallest key, or None when nothing is ranked."""
        while self._heap:
            key, placed, item = self._heap[0]
            if self._current.get(item) == (key, placed):
                return item
            heapq.heappop(self._heap)
        return None

    def smallest(self, count: int) -> list[Item]:
        """Return the `count` items with the smallest keys, in order; O(count log n)."""
        best: list[tuple[Key, int, Item]] = []
        while self._heap and len(best) < count:
            entry = heapq.heappop(self._heap)
            if self._current.get(entry[2]) == entry[:2]:
                best.append(entry)
        for entry in best:
            heapq.heappush(self._heap, entry)
        return [item for _, _, item in best]
