"""A prefix tree that knows what a test tells it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import define, field

from graphs.step import Ints


@define(eq=False)
class FakeWatch:
    on_change: Callable[["FakeWatch"], None]
    namespace: str
    tokens: list[int]
    limit: int
    usable_tokens: int = 0
    node: int = 0


@define(eq=False)
class FakeTree:
    """Gives every new watch the same match, until a test changes it."""

    usable_tokens: int = 0
    node: int = 0
    watches: list[FakeWatch] = field(factory=list)
    # So far every node lies under the root.
    shape: Ints = field(factory=lambda: np.zeros(64, np.int64))

    def watch(self, namespace: str, tokens: Any, limit: int, on_change: Callable[[Any], None]) -> FakeWatch:
        assert tokens.dtype == np.int32
        usable_tokens = min(self.usable_tokens, limit)
        self.watches.append(FakeWatch(on_change, namespace, tokens.tolist(), limit, usable_tokens, self.node))
        return self.watches[-1]

    def unwatch(self, watch: FakeWatch) -> None:
        self.watches.remove(watch)

    def parents(self) -> Ints:
        return self.shape

    def change(self, index: int, usable_tokens: int, node: int = 0) -> None:
        watch = self.watches[index]
        watch.usable_tokens, watch.node = usable_tokens, node
        watch.on_change(watch)
