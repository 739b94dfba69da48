"""Everything that was counted, from the items that came; what stands where it stands is asked for by report.py. Core.

# Invariant: its size is bounded, however long the server runs and whatever comes.
"""

from collections import Counter, deque

from attrs import define, field

from stages.messages import Load, Record, RequestRecord, TokenGaps
from stages.stats.counters import RATE_WINDOW_S, Counters
from stages.stats.histograms import Histograms
from stages.stats.spans import Spans, is_unavailable
from stages.stats.statistics import Failure

MAX_SERVER_FAILURES = 50
MAX_CLIENT_FAILURES = 20
_SERVER_ERROR, _CLIENT_ERROR = 500, 400


@define(eq=False)
class Book:
    """Counts since started_s on trio's clock, which was Unix time started_unix_s."""

    started_s: float = 0.0
    started_unix_s: float = 0.0
    counters: Counters = field(factory=Counters)
    histograms: Histograms = field(factory=Histograms)
    # Of calls, since the start: by name, and whether they were streamed.
    calls: Counter[tuple[str, bool]] = field(factory=Counter)
    outcomes: Counter[str] = field(factory=Counter)
    unavailable: Counter[str] = field(factory=Counter)
    completion_tokens: int = 0
    spans: Spans = field(init=False)
    _server_failures: deque[Failure] = field(factory=lambda: deque(maxlen=MAX_SERVER_FAILURES))
    _client_failures: deque[Failure] = field(factory=lambda: deque(maxlen=MAX_CLIENT_FAILURES))
    _rates: dict[str, "Recent"] = field(factory=dict)
    # By stage: how long it has waited, as was told.
    _waits: dict[str, float] = field(factory=dict)
    # By stage: looks at how long it has worked, over the last seconds.
    _works: dict[str, deque[tuple[float, float]]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.spans = Spans(self.started_unix_s)

    def unix_s(self, now_s: float) -> float:
        """Return the Unix time of an instant on trio's clock, as it was counted from the start."""
        return self.started_unix_s + (now_s - self.started_s)

    def record(self, record: Record, now_s: float) -> None:
        """Add a count."""
        self.counters.record(record, now_s)
        if record.name == "prompt_tokens":
            self._recent("prompt_tokens").add(record.value, now_s)

    def load(self, load: Load) -> None:
        """Keep the newest load."""
        self.counters.load(load)

    def ended(self, record: RequestRecord, now_s: float) -> None:
        """Add a call that has ended."""
        self.spans.tally(self.unix_s(now_s)).ended(record)
        if record.outcome != "refused":
            self._recent("ended_prompt_tokens").add(record.prompt_tokens, now_s)
        self.histograms.ended(record)
        self._add_up(record)
        self._note_failure(record, now_s)

    def delivered(self, gaps: TokenGaps, now_s: float) -> None:
        """Add the tokens of a step."""
        self.spans.tally(self.unix_s(now_s)).delivered(gaps)
        self._recent("completion_tokens").add(gaps.num_tokens, now_s)
        self.histograms.delivered(gaps)
        self.completion_tokens += gaps.num_tokens

    def rate(self, name: str, now_s: float) -> float:
        """Return how much of something there was a second, in the last RATE_WINDOW_S."""
        return self._recent(name).per_s(now_s)

    def busy(self, stage: str, working_s: float, now_s: float) -> float | None:
        """Return the share of the time since the looks of RATE_WINDOW_S ago that a stage has worked; notes this look.

        None at the first look.
        """
        looks = self._works.setdefault(stage, deque())
        while len(looks) > 1 and looks[1][0] <= now_s - RATE_WINDOW_S:
            looks.popleft()
        first_s, first_working_s = looks[0] if looks else (now_s, working_s)
        if not looks or now_s - looks[-1][0] >= 1.0:
            looks.append((now_s, working_s))
        return min(max((working_s - first_working_s) / (now_s - first_s), 0.0), 1.0) if now_s > first_s else None

    def waited(self, stage: str, waiting_s: float) -> float:
        """Return how long a stage has waited, no less than was told before: a step's time is known only at its end."""
        self._waits[stage] = most_s = max(waiting_s, self._waits.get(stage, 0.0))
        return most_s

    def failures(self) -> tuple[Failure, ...]:
        """Return the newest failures, the newest first."""
        both = [*self._server_failures, *self._client_failures]
        return tuple(sorted(both, key=lambda failure: -failure.unix_s))

    def _add_up(self, record: RequestRecord) -> None:
        self.outcomes[record.outcome] += 1
        if is_unavailable(record):
            self.unavailable[record.cause or "unavailable"] += 1
        if record.outcome == "refused":
            return
        calls, is_streamed = self.calls, record.is_streamed
        calls["calls", is_streamed] += 1
        calls["constrained", is_streamed] += record.is_constrained
        calls["aborted", is_streamed] += record.outcome in ("abort", "disconnected")
        calls["prompt_tokens", is_streamed] += record.prompt_tokens
        calls["completion_tokens", is_streamed] += record.completion_tokens

    def _note_failure(self, record: RequestRecord, now_s: float) -> None:
        status = record.status or 0
        is_server = status >= _SERVER_ERROR or record.outcome == "error"
        if not is_server and status < _CLIENT_ERROR and record.outcome != "refused":
            return
        failures = self._server_failures if is_server else self._client_failures
        failures.append(
            Failure(self.unix_s(now_s), record.request_id, record.route, record.status, record.outcome, record.cause)
        )

    def _recent(self, name: str) -> "Recent":
        if name not in self._rates:
            self._rates[name] = Recent()
        return self._rates[name]


@define(eq=False)
class Recent:
    """How much there was in each of the last RATE_WINDOW_S seconds."""

    _seconds: deque[tuple[int, float]] = field(factory=deque)

    def add(self, count: float, now_s: float) -> None:
        """Add to the second that now_s is in."""
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + count)
        else:
            self._seconds.append((second, count))
        while self._seconds[0][0] <= second - RATE_WINDOW_S:
            self._seconds.popleft()

    def per_s(self, now_s: float) -> float:
        """Return the average over the last RATE_WINDOW_S seconds."""
        first = int(now_s) - RATE_WINDOW_S
        return sum(count for second, count in self._seconds if second > first) / RATE_WINDOW_S
