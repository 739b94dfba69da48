"""Conversations that pin what their next turn needs. Core; time is an argument.

A session pins one node of the prefix tree, the end of its newest turn: path and snapshot are not evicted. Pins are
bounded: beyond max_pinned the session idle for longest loses its pin, and so it does when a request could not run
otherwise. An open session without a pin is only a name; one that was never opened exists while it has a pin.
"""

import math
import secrets

from attrs import define, field

from stages.scheduler.nodes import Node
from stages.scheduler.prefix_tree import PrefixTree


@define(eq=False)
class Session:
    """One conversation; it is closed when it has been idle for timeout_s."""

    is_open: bool = False
    timeout_s: float = math.inf
    used_s: float = 0.0
    node: Node | None = None


@define(eq=False)
class Sessions:
    """Sessions by id, the one used last at the end."""

    tree: PrefixTree | None
    max_pinned: int
    now_s: float = 0.0
    _sessions: dict[str, Session] = field(factory=dict)

    @property
    def num_pinned(self) -> int:
        """Return how many sessions hold a pin."""
        return sum(session.node is not None for session in self._sessions.values())

    @property
    def next_expiry_s(self) -> float:
        """Return when the first session times out."""
        return min((session.used_s + session.timeout_s for session in self._sessions.values()), default=math.inf)

    def open(self, session_id: str | None, timeout_s: float | None) -> str:
        """Open a session and return its id; raises ValueError when it is open already."""
        session_id = session_id or secrets.token_hex(16)
        session = self._sessions.setdefault(session_id, Session())
        if session.is_open:
            raise ValueError(f"Session {session_id} is open already.")
        session.is_open, session.used_s = True, self.now_s
        session.timeout_s = math.inf if timeout_s is None else timeout_s
        return session_id

    def close(self, session_id: str) -> None:
        """Close a session and unpin what it held; raises KeyError when there is none."""
        self._unpin(self._sessions.pop(session_id))

    def expire(self, now_s: float) -> None:
        """Close what has been idle for too long."""
        self.now_s = now_s
        if now_s >= self.next_expiry_s:
            for session_id, session in list(self._sessions.items()):
                if now_s >= session.used_s + session.timeout_s:
                    self.close(session_id)

    def pin(self, session_id: str, node: Node) -> None:
        """Pin `node` for the session's next turn, in place of what it held."""
        if self.tree is None or not self.max_pinned or node.device.snapshot is None:
            return
        session = self._sessions.pop(session_id, None) or Session()
        self.tree.lock_snapshot(node)
        self._unpin(session)
        session.node, session.used_s = node, self.now_s
        self._sessions[session_id] = session
        while self.num_pinned > self.max_pinned:
            self.unpin_oldest()

    def unpin_oldest(self) -> bool:
        """Unpin what the session idle for longest holds; returns False when nothing is pinned."""
        for session_id, session in self._sessions.items():
            if session.node is not None:
                self._unpin(session)
                if not session.is_open:
                    del self._sessions[session_id]
                return True
        return False

    def unpin_all(self) -> None:
        """Unpin everything; open sessions stay open."""
        while self.unpin_oldest():
            pass

    def _unpin(self, session: Session) -> None:
        if session.node is not None and self.tree is not None:
            self.tree.unlock_snapshot(session.node)
        session.node = None
