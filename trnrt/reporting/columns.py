"""The lines of a log as columns of numbers: a million calls in a hundred megabytes. Core."""

import heapq
import math
from array import array
from itertools import count

import numpy as np
import numpy.typing as npt
from attrs import define, field

from stages.stats.prodlog.lines import GaugesLine, Header, Line, LostLine, RequestLine
from stages.stats.prodlog.reader import FileRead

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ABSENT = -1


@define(eq=False)
class Names:
    """Words that come again and again, as numbers from 0."""

    words: list[str] = field(factory=list)
    _numbers: dict[str, int] = field(factory=dict)

    def number(self, word: str) -> int:
        """Return the number of a word, a new one for a new word."""
        number = self._numbers.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(word)
        return number


def _floats() -> "array[float]":
    return array("d")


def _ints() -> "array[int]":
    return array("q")


@define(eq=False)
class Columns:
    """One entry a call in every array; NaN is an instant that never came, ABSENT a word or status that is not there."""

    num_slowest: int
    at_s: "array[float]" = field(factory=_floats)
    ended_s: "array[float]" = field(factory=_floats)
    prompt_ready_s: "array[float]" = field(factory=_floats)
    queue_s: "array[float]" = field(factory=_floats)
    ttft_s: "array[float]" = field(factory=_floats)
    # Seconds from token to token, the mean of each call.
    token_s: "array[float]" = field(factory=_floats)
    prompt_tokens: "array[int]" = field(factory=_ints)
    cached_device_tokens: "array[int]" = field(factory=_ints)
    cached_host_tokens: "array[int]" = field(factory=_ints)
    completion_tokens: "array[int]" = field(factory=_ints)
    reasoning_tokens: "array[int]" = field(factory=_ints)
    retractions: "array[int]" = field(factory=_ints)
    num_choices: "array[int]" = field(factory=_ints)
    is_streamed: "array[int]" = field(factory=_ints)
    is_constrained: "array[int]" = field(factory=_ints)
    status: "array[int]" = field(factory=_ints)
    outcome: "array[int]" = field(factory=_ints)
    cause: "array[int]" = field(factory=_ints)
    route: "array[int]" = field(factory=_ints)
    outcomes: Names = field(factory=Names)
    causes: Names = field(factory=Names)
    routes: Names = field(factory=Names)
    # Run and gauges, in the order of the files.
    gauges: list[tuple[str, GaugesLine]] = field(factory=list)
    lost: dict[str, int] = field(factory=dict)
    roles: dict[str, str] = field(factory=dict)
    models: set[str] = field(factory=set)
    _slowest: list[tuple[float, int, RequestLine]] = field(factory=list)
    _order: "count[int]" = field(factory=count)

    def take(self, line: Line, file: FileRead) -> None:
        """Add one line."""
        match line:
            case RequestLine():
                self._call(line)
            case GaugesLine():
                self.gauges.append((file.run, line))
            case LostLine():
                self.lost[line.reason] = self.lost.get(line.reason, 0) + line.count
            case Header():
                self.roles[file.run] = line.role
                if line.model is not None:
                    self.models.add(line.model)
            case _:
                pass  # ends and what is unknown are the file's

    @property
    def slowest(self) -> list[RequestLine]:
        """Return the calls that took longest, the longest first."""
        return [line for _, _, line in sorted(self._slowest, key=lambda entry: (-entry[0], -entry[1]))]

    def floats(self, name: str) -> Floats:
        """Return a column of instants."""
        return np.frombuffer(getattr(self, name), np.float64) if self.at_s else np.empty(0)

    def ints(self, name: str) -> Ints:
        """Return a column of counts."""
        return np.frombuffer(getattr(self, name), np.int64) if self.at_s else np.empty(0, np.int64)

    def _call(self, line: RequestLine) -> None:
        self.at_s.append(line.at_s)
        self.ended_s.append(line.ended_s)
        self.prompt_ready_s.append(_or_nan(line.prompt_ready_s))
        self.queue_s.append(_or_nan(line.admitted_s) - _or_nan(line.submitted_s))
        self.ttft_s.append(_or_nan(line.first_token_s))
        self.token_s.append(_token_s(line))
        for name in _COUNTS:
            getattr(self, name).append(int(getattr(line, name)))
        self.status.append(ABSENT if line.status is None else line.status)
        self.outcome.append(self.outcomes.number(line.outcome))
        self.cause.append(ABSENT if line.cause is None else self.causes.number(line.cause))
        self.route.append(self.routes.number(line.route))
        if self.num_slowest:
            entry = (line.ended_s, -next(self._order), line)
            if len(self._slowest) < self.num_slowest:
                heapq.heappush(self._slowest, entry)
            else:
                heapq.heappushpop(self._slowest, entry)


_COUNTS = (
    "prompt_tokens",
    "cached_device_tokens",
    "cached_host_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "retractions",
    "num_choices",
    "is_streamed",
    "is_constrained",
)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _token_s(line: RequestLine) -> float:
    """Return the mean time between a call's tokens; of several choices, side by side, as if all were alike."""
    if line.first_token_s is None or line.last_token_s is None:
        return math.nan
    num_gaps = line.completion_tokens / max(1, line.num_choices) - 1
    return (line.last_token_s - line.first_token_s) / num_gaps if num_gaps > 0 else math.nan
