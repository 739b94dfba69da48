"""Conversations that pin what their next turn needs. Core; time is an argument.

A session pins one node of the prefix tree, the end of its newest turn: path and snapshot are not evicted. Pins are
bounded: beyond max_pinned the session idle for longest loses its pin, and so it does when a request could not run
otherwise. An open session without a pin is only a name, and may be one of very many; one that was never opened exists
while it has a pin.
"""

import math
import secrets
from collections import Counter

from attrs import define, field

from stages.scheduler.nodes import Node
from stages.scheduler.prefix_tree import PrefixTree


@define(eq=False)
class Session:
    """One that was opened; it is closed when none of its requests has run for timeout_s."""

    timeout_s: float
    used_s: float


@define(eq=False)
class Sessions:
    """Open sessions and pins by session id."""

    tree: PrefixTree | None
    max_pinned: int
    now_s: float = 0.0
    # Not later than the first session's time-out: using a session moves only its own.
    next_expiry_s: float = math.inf
    _open: dict[str, Session] = field(factory=dict)
    # The one used last at the end.
    _pins: dict[str, Node] = field(factory=dict)
    # How many choices of a session run, for those that have any.
    _num_running: "Counter[str]" = field(factory=Counter)

    @property
    def num_pinned(self) -> int:
        """Return how many sessions hold a pin."""
        return len(self._pins)

    def open(self, session_id: str | None, timeout_s: float | None) -> str:
        """Open a session and return its id; raises ValueError when it is open already."""
        session_id = session_id or secrets.token_hex(16)
        if session_id in self._open:
            raise ValueError(f"Session {session_id} is open already.")
        self._open[session_id] = Session(math.inf if timeout_s is None else timeout_s, self.now_s)
        self._expect_expiry(session_id)
        return session_id

    def close(self, session_id: str) -> None:
        """Close a session and unpin what it held; raises KeyError when there is none."""
        is_known = self._open.pop(session_id, None) is not None
        if not self._unpin(session_id) and not is_known:
            raise KeyError(session_id)

    def expire(self, now_s: float) -> None:
        """Close what has been idle for too long."""
        self.now_s = now_s
        if now_s < self.next_expiry_s:
            return
        self.next_expiry_s = math.inf
        for session_id, session in list(self._open.items()):
            if session_id in self._num_running:
                continue
            if now_s >= session.used_s + session.timeout_s:
                self.close(session_id)
            else:
                self._expect_expiry(session_id)

    def began(self, session_id: str) -> None:
        """Note that a choice of the session begins to run."""
        self._num_running[session_id] += 1

    def ended(self, session_id: str) -> None:
        """Note that a choice of the session has ended, whatever it leaves to pin."""
        self._num_running[session_id] -= 1
        if not self._num_running[session_id]:
            del self._num_running[session_id]
        if session_id in self._open:
            self._open[session_id].used_s = self.now_s
            self._expect_expiry(session_id)

    def pin(self, session_id: str, node: Node) -> None:
        """Pin `node` for the session's next turn, in place of what it held."""
        if self.tree is None or not self.max_pinned or node.device.snapshot is None:
            return
        self.tree.lock_snapshot(node)
        self._unpin(session_id)
        self._pins[session_id] = node
        while self.num_pinned > self.max_pinned:
            self.unpin_oldest()

    def unpin_oldest(self) -> bool:
        """Unpin what the session idle for longest holds; returns False when nothing is pinned."""
        oldest = next(iter(self._pins), None)
        return oldest is not None and self._unpin(oldest)

    def unpin_all(self) -> None:
        """Unpin everything; open sessions stay open."""
        while self.unpin_oldest():
            pass

    def _expect_expiry(self, session_id: str) -> None:
        session = self._open[session_id]
        self.next_expiry_s = min(self.next_expiry_s, session.used_s + session.timeout_s)

    def _unpin(self, session_id: str) -> bool:
        """Return whether the session held a pin, which it has no more."""
        node = self._pins.pop(session_id, None)
        if node is not None and self.tree is not None:
            self.tree.unlock_snapshot(node)
        return node is not None
