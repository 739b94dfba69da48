"""The scheduler's view of what waits: columns for the policy, kept current by the prefix tree. Core.

Theory of operation. Admission owns the queue; this table mirrors it in arrays, so that a policy orders thousands with a
few vector operations. A row is appended on arrival and never moves relative to others: row order is order of arrival.
A removed row is a hole until holes are half of all rows or the arrays are full, then everything moves up; holes at the
front are skipped for nothing, which is all of them under fcfs. Without holes and deferred rows a policy reads the
arrays in place, else a gathered copy.

How much of a prompt the cache could give is never looked up when ordering: the tree watches each waiting prompt and
tells when its match changes, which touches only the prompts concerned. That is why there is no number of waiting
requests above which an order would stop looking at the cache.

With priorities the best rank is served first, and the policy orders the equals.
"""

import hashlib
import heapq
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import attrs
import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from graphs.step import Ints
from stages.messages import ChoiceKey, Submit
from stages.scheduler.policies import Policy, Situation, WaitingRows
from stages.settings import PrioritySettings

# Ranks stay far from the ends of int64, whatever number a client sends; no number is as bad as having none.
_WORST_RANK = -(2**62)
_MAX_PRIORITY = 2**61

_FIRST_CAPACITY = 64
# The rows of the table's array: the columns of WaitingRows in their order, and the rank.
_NUM_COLUMNS = len(attrs.fields(WaitingRows))
_CACHED, _NODE, _RANK = 2, 6, _NUM_COLUMNS


class Watch(Protocol):
    """The tree's current knowledge of one waiting prompt."""

    @property
    def usable_tokens(self) -> int:
        """Return how many tokens the cache could give, in either tier."""
        ...

    @property
    def node(self) -> int:
        """Return the number of the deepest node that the prompt reaches, 0 for the root."""
        ...


class WatchingTree(Protocol):
    """What the table asks of the prefix tree."""

    def watch(self, namespace: str, tokens: "NDArray[np.int32]", limit: int, on_change: Callable[[Any], None]) -> Watch:
        """Begin to keep the match of `tokens`, of at most `limit`, current; on_change(watch) follows every change."""
        ...

    def unwatch(self, watch: Any) -> None:
        """End a watch."""
        ...

    def parents(self) -> Ints:
        """Return the tree's own array of each node's parent [M], by number: 0 for the children of a root."""
        ...


@define(eq=False)
class _Entry:
    submit: Submit
    arrival: int
    row: int
    watch: Watch | None = None


@define(eq=False)
class Waiting:
    """What waits, in the order in which it should be let in."""

    policy: Policy
    priority: PrioritySettings | None
    tree: WatchingTree | None
    _entries: dict[ChoiceKey, _Entry] = field(factory=dict)
    # Invariant: row r is alive if _rows[r] is an entry, and then _rows[r].row == r; the first row is alive.
    _rows: list[_Entry | None] = field(factory=list)
    _begin: int = 0
    _columns: Ints = field(factory=lambda: np.zeros((_NUM_COLUMNS + 1, _FIRST_CAPACITY), np.int64))
    # Whether a row is alive and not deferred.
    _is_open: "NDArray[np.bool_]" = field(factory=lambda: np.zeros(_FIRST_CAPACITY, np.bool_))
    _num_open: int = 0
    _arrivals: "itertools.count[int]" = field(factory=itertools.count)
    # (instant, arrival, key), some of them of choices that have left.
    _expiries: list[tuple[float, int, ChoiceKey]] = field(factory=list)

    def __len__(self) -> int:
        """Return how many choices wait, deferred ones counted."""
        return len(self._entries)

    @property
    def can_starve(self) -> bool:
        """Return whether newcomers can keep a waiting choice waiting for ever."""
        return self.policy.can_starve or self.priority is not None

    def add(self, submit: Submit, served_tokens: int) -> None:
        """Append a choice that came when the engine had processed served_tokens; raises ValueError for a known one."""
        if submit.key in self._entries:
            raise ValueError(f"{submit.key} waits already")
        self._make_room()
        arrival, num_tokens = next(self._arrivals), len(submit.prompt_ids)
        entry = self._entries[submit.key] = _Entry(submit, arrival, len(self._rows))
        self._columns[:, entry.row] = (
            arrival,
            num_tokens,
            0,
            submit.max_new_tokens,
            served_tokens,
            routing_number(submit.routing_key),
            0,
            self.rank(submit),
        )
        self._rows.append(entry)
        self._is_open[entry.row] = True
        self._num_open += 1
        if submit.wait_until_s < math.inf:
            self._push_expiry(submit.wait_until_s, entry)
        if self.tree is not None and self.policy.needs_cache:
            tokens = np.asarray(submit.prompt_ids, np.int32)
            # The last token is always computed: its logits are what is sampled from. So is what is scored.
            scored_from = submit.prompt_logprobs_from
            limit = num_tokens - 1 if scored_from is None else min(num_tokens - 1, scored_from)
            entry.watch = self.tree.watch(submit.namespace, tokens, limit, partial(self._changed, entry))
            self._changed(entry, entry.watch)

    def remove(self, key: ChoiceKey) -> None:
        """Forget a choice, whether it is let in, cancelled, bumped or timed out; an unknown one is ignored."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        if entry.watch is not None and self.tree is not None:
            self.tree.unwatch(entry.watch)
        self._rows[entry.row] = None
        self._set_open(entry.row, False)
        while self._begin < len(self._rows) and self._rows[self._begin] is None:
            self._begin += 1

    def best(self, limit: int, now: Situation) -> list[Submit]:
        """Return at most `limit` choices, best first, without the deferred; the tree's shape is filled into `now`."""
        limit = min(limit, self._num_open)
        if limit <= 0:
            return []
        if self.tree is not None and self.policy.needs_cache:
            now = attrs.evolve(now, parents=self.tree.parents())
        begin, end = self._begin, len(self._rows)
        if self._num_open == end - begin:
            columns = self._columns[:, begin:end]
            chosen = self._order(columns, now, limit) + begin
        else:
            rows = np.flatnonzero(self._is_open[begin:end]) + begin
            chosen = rows[self._order(self._columns.take(rows, axis=1), now, limit)]
        entries = [self._rows[row] for row in chosen[:limit].tolist()]
        return [entry.submit for entry in entries if entry is not None]

    def defer(self, key: ChoiceKey) -> None:
        """Leave a choice out of `best` until it is undeferred: another computes the prefix that they share."""
        if key in self._entries:
            self._set_open(self._entries[key].row, False)

    def undefer(self, key: ChoiceKey) -> None:
        """Let a deferred choice take part again, at the place it always had."""
        if key in self._entries:
            self._set_open(self._entries[key].row, True)

    def rank(self, submit: Submit) -> int:
        """Return how good the choice's priority is, higher is better; all are equal without priority scheduling."""
        return 0 if self.priority is None else rank_of(submit, self.priority)

    def expired(self, now_s: float) -> list[Submit]:
        """Return the choices whose time to wait is over, the earliest first, each once; they stay until removed."""
        result = []
        while self.next_expiry_s <= now_s:
            result.append(self._entries[heapq.heappop(self._expiries)[2]].submit)
        return result

    @property
    def next_expiry_s(self) -> float:
        """Return when the next choice's time to wait is over, or infinity."""
        while self._expiries and not self._waits(self._expiries[0]):
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else math.inf

    def _push_expiry(self, at_s: float, entry: _Entry) -> None:
        if len(self._expiries) > 2 * len(self._entries) + _FIRST_CAPACITY:
            self._expiries = [expiry for expiry in self._expiries if self._waits(expiry)]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (at_s, entry.arrival, entry.submit.key))

    def _waits(self, expiry: tuple[float, int, ChoiceKey]) -> bool:
        entry = self._entries.get(expiry[2])
        return entry is not None and entry.arrival == expiry[1]

    def _order(self, columns: Ints, now: Situation, limit: int) -> Ints:
        """Return indices into `columns`, best first: by rank, then the policy."""
        if self.priority is None:
            return self.policy.order(WaitingRows(*columns[:_RANK]), now, limit)
        ranks = columns[_RANK]
        # Only the last rank that gets a place can be a crowd; the better ones are fewer than `limit` together.
        last = np.partition(ranks, -limit)[-limit]
        better = np.flatnonzero(ranks > last)
        groups = [better[ranks[better] == rank] for rank in sorted(set(ranks[better].tolist()), reverse=True)]
        ordered = [group[self._order_equals(columns, group, now, len(group))] for group in groups]
        crowd = np.flatnonzero(ranks == last)
        ordered.append(crowd[self._order_equals(columns, crowd, now, limit - len(better))])
        return np.concatenate(ordered)

    def _order_equals(self, columns: Ints, group: Ints, now: Situation, limit: int) -> Ints:
        rows = WaitingRows(*columns[:_RANK].take(group, axis=1))
        return self.policy.order(rows, now, limit)[:limit]

    def _changed(self, entry: _Entry, watch: Watch) -> None:
        self._columns[_CACHED, entry.row] = watch.usable_tokens
        self._columns[_NODE, entry.row] = watch.node

    def _set_open(self, row: int, is_open: bool) -> None:
        self._num_open += int(is_open) - int(self._is_open[row])
        self._is_open[row] = is_open

    def _make_room(self) -> None:
        """Close the holes when they are half of all rows; double the arrays when those are full of rows."""
        if len(self._rows) < len(self._is_open):
            return
        if 2 * len(self._entries) <= len(self._rows):
            alive = np.array([entry.row for entry in self._rows if entry is not None], np.int64)
            self._columns[:, : len(alive)] = self._columns[:, alive]
            self._is_open[: len(alive)] = self._is_open[alive]
            self._rows = [entry for entry in self._rows if entry is not None]
            for row, entry in enumerate(self._entries.values()):
                entry.row = row
            self._begin = 0
        else:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
            self._is_open = np.concatenate((self._is_open, np.zeros_like(self._is_open)))


def rank_of(submit: Submit, settings: PrioritySettings) -> int:
    """Return how good the choice's priority is, higher is better; one without any, or a default, is the worst."""
    value = submit.priority if submit.priority is not None else settings.default
    if value is None:
        return _WORST_RANK
    value = max(-_MAX_PRIORITY, min(value, _MAX_PRIORITY))
    return -value if settings.low_values_first else value


def routing_number(key: str | None) -> int:
    """Return the number that stands for a routing key everywhere, -1 for none.

    A digest instead of a count, so that no table of every key a client ever sent has to be kept.
    """
    if key is None:
        return -1
    return int.from_bytes(hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest()) >> 1
