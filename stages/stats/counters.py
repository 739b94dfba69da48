"""Totals since the start and rates over the last seconds. Core: times are passed in.

| record | counts | from |
|---|---|---|
| choices_stop, _length, _abort, _error | ended choices | scheduler |
| looked_up_tokens | prompt tokens looked up in the cache, once a choice, at its first admission | scheduler |
| prompt_tokens | prompt tokens, once a choice, when its first token is out | scheduler |
| admissions | choices let in for the first time | scheduler |
| prefill_tokens | prompt tokens computed, those of retracted choices again | scheduler |
| cached_tokens_device, _host | prompt tokens found cached, once a choice, at its first admission | scheduler |
| completion_tokens | generated tokens | scheduler |
| steps_prefill, steps_decode | finished steps | scheduler |
| device_s | seconds the device worked | scheduler |
| retractions | choices that gave their memory back because a running one found none, to be computed again | scheduler |
| preemptions | choices that gave way to a better priority, to be computed again | scheduler |
| prompt_cache_hits, _misses | chats of which any part was found, of which none was | prompt |
| prompt_cache_found_tokens, _encoded_tokens | tokens of chats | prompt |
| prompt_cache_audits, _mismatches, _turned_off | hits compared; found wrong; the cache turned off for good | prompt |
"""

from collections import defaultdict, deque
from collections.abc import Mapping

from attrs import define, field, frozen

from stages.messages import Load, Record

RATE_WINDOW_S = 10
_OUTCOME = "choices_"


@frozen
class Snapshot:
    """Where the server stands: the newest load, totals by record name, and what follows from them.

    choices_by_outcome has stop, length, abort and error; num_lost counts records that never arrived.
    """

    load: Load | None
    totals: Mapping[str, float]
    choices_by_outcome: Mapping[str, int]
    prompt_tokens: int
    completion_tokens: int
    completion_tokens_per_s: float
    num_lost: int
    cached_tokens_device: int = 0
    cached_tokens_host: int = 0

    @property
    def cache_hit_rate(self) -> float:
        """Return the share of looked-up prompt tokens that were cached, of every choice since the start."""
        looked_up = self.totals.get("looked_up_tokens", 0.0)
        return (self.cached_tokens_device + self.cached_tokens_host) / looked_up if looked_up else 0.0


@define(eq=False)
class Counters:
    """Adds up records; the last RATE_WINDOW_S whole seconds of completion tokens are kept one by one."""

    totals: defaultdict[str, float] = field(factory=lambda: defaultdict(float))
    newest_load: Load | None = None
    # (second, completion tokens in it), rising.
    _seconds: deque[tuple[int, float]] = field(factory=deque)

    def record(self, record: Record, now_s: float) -> None:
        """Add one record that arrived at now_s."""
        self.totals[record.name] += record.value
        if record.name == "completion_tokens":
            self._add_to_second(int(now_s), record.value)

    def load(self, load: Load) -> None:
        """Keep the newest load."""
        self.newest_load = load

    def snapshot(self, now_s: float, num_lost: int = 0) -> Snapshot:
        """Return everything as of now_s; the rate is over the last RATE_WINDOW_S seconds."""
        first = int(now_s) - RATE_WINDOW_S
        in_window = sum(count for second, count in self._seconds if second > first)
        outcomes = {
            name.removeprefix(_OUTCOME): int(value) for name, value in self.totals.items() if name.startswith(_OUTCOME)
        }
        return Snapshot(
            load=self.newest_load,
            totals=dict(self.totals),
            choices_by_outcome=outcomes,
            prompt_tokens=int(self.totals["prompt_tokens"]),
            completion_tokens=int(self.totals["completion_tokens"]),
            completion_tokens_per_s=in_window / RATE_WINDOW_S,
            num_lost=num_lost,
            cached_tokens_device=int(self.totals["cached_tokens_device"]),
            cached_tokens_host=int(self.totals["cached_tokens_host"]),
        )

    def _add_to_second(self, second: int, count: float) -> None:
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + count)
        else:
            self._seconds.append((second, count))
        while self._seconds[0][0] <= second - RATE_WINDOW_S:
            self._seconds.popleft()
