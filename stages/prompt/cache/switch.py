"""What the prompt stages of one process share of the prompt token cache: its store, its figures, and whether it is on.

It is turned off once and for good: a cache that was wrong once is not trusted again before somebody has looked.
"""

import logging
from collections import Counter
from threading import Lock
from typing import Any

from attrs import asdict, define, field

from stages.messages import Record
from stages.prompt.cache.store import PieceStore
from stages.stats.statistics import PromptCache as Facts

log = logging.getLogger(__name__)
PREFIX = "prompt_cache_"


@define(eq=False)
class PromptCache:
    """A store within max_bytes; audit_share of the hits are encoded whole and compared."""

    max_bytes: int
    audit_share: float = 0.01
    reason: str | None = field(default=None, init=False)
    store: PieceStore = field(init=False)
    totals: "Counter[str]" = field(factory=Counter, init=False)
    _untold: "Counter[str]" = field(factory=Counter, init=False)
    # The first hit is audited, whatever the share.
    _due: float = field(default=1.0, init=False)
    _lock: Lock = field(factory=Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self.store = PieceStore(self.max_bytes)

    @property
    def is_on(self) -> bool:
        """Return whether it may be used."""
        return self.reason is None

    def count(self, **counts: int) -> None:
        """Add to the figures."""
        with self._lock:
            self.totals.update(counts)
            self._untold.update(counts)

    def audits_this(self) -> bool:
        """Return whether this hit is one to audit: as many of them as the share says, evenly."""
        if not self.audit_share:
            return False
        with self._lock:
            is_due = self._due >= 1
            self._due += self.audit_share - is_due
        return is_due

    def turn_off(self, reason: str, *, is_mismatch: bool, audits: int = 0) -> None:
        """Use it no more and give its memory back; a mismatch is an error, what cannot be cached a warning."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
        # Together, so that nobody sees an audit that was neither equal nor not.
        self.count(turned_off=1, mismatches=int(is_mismatch), audits=audits)
        log.log(logging.ERROR if is_mismatch else logging.WARNING, "the prompt token cache is off: %s", reason)
        self.store.close()

    def records(self) -> list[Record]:
        """Return what was counted since the last time, for stats."""
        with self._lock:
            counted, self._untold = self._untold, Counter()
        return [Record(f"{PREFIX}{name}", float(count)) for name, count in sorted(counted.items()) if count]

    def facts(self) -> Facts:
        """Return how it stands."""
        names = ("hits", "misses", "found_tokens", "encoded_tokens", "audits", "mismatches")
        return Facts(
            is_on=self.is_on,
            reason=self.reason,
            num_bytes=self.store.num_bytes,
            max_bytes=self.max_bytes,
            num_pieces=len(self.store),
            **{name: self.totals[name] for name in names},
        )

    def info(self) -> dict[str, Any]:
        """Return the facts as the info routes show them."""
        return asdict(self.facts())
