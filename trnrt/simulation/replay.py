"""A production log as a trace: what came when, how long prompts and answers were, and what prompts had in common.

A log has counts and no text, so what two prompts share is reconstructed from how many tokens each call found cached. A
call that found some begins with as many tokens of an earlier one, its donor, whose prompt (and answer, where that many
reach into it) was there by then; the rest of its prompt is its own. Of several possible donors it is the first of

1. one whose end lies at most TURN_END tokens behind them: its conversation's last turn, which goes on only once;
2. the newest that found as many itself: both begin with the same system text;
3. the shortest that is long enough;
4. one that was still computing its prompt, of those the first that is long enough: a burst with a common beginning.

So under the settings of the log the cache finds about what it found then. Less memory, another eviction policy or no
cache show as they would; more can not: what was shared but had left the cache by then is unknown, and so is all that
was shared with calls before the log. Hits in the replay are then at most those of the log.

Calls come when they came to the queue, whatever happens to others: a client that would have waited for an answer does
not. n choices are n calls at one instant. Calls that got no token are left out: what they would have cost is unknown.
"""

import heapq
from bisect import bisect_left, insort
from pathlib import Path

import numpy as np
from attrs import define, evolve, field

from stages.errors import ConfigError
from stages.stats.prodlog.lines import Line, RequestLine
from stages.stats.prodlog.reader import FileRead, read_log
from trnrt.simulation.jsonl import MAX_TOKENS
from trnrt.simulation.run import answer_token
from trnrt.simulation.traces import FIRST_TOKEN, USER, VOCAB_SIZE, Conversation, Trace, Turn

# How far a resumed state may lie before the end of its turn: the last sampled token and an open group of four.
TURN_END = 8
# Prompts of a trace are held all at once: 8 bytes a token.
MAX_TRACE_TOKENS = 100_000_000

# One object for each id, however often it comes.
_IDS = list(range(VOCAB_SIZE))


def read_production_log(path: Path, limit: int | None = None) -> Trace:
    """Return the trace of the first `limit` calls that can be replayed; raises ConfigError naming the folder."""
    calls: list[RequestLine] = []

    def take(line: Line, file: FileRead) -> None:
        if isinstance(line, RequestLine):
            calls.append(line)

    try:
        read_log(path, take)
    except ConfigError as error:
        raise ConfigError(f"--trace: {error}") from None
    # Of those that came together the one that found nothing computed what the others found.
    calls.sort(key=lambda call: (_queued_at_s(call), _cached(call) > 0))
    known = [call for call in calls if _can_be_replayed(call)]
    chosen = known[:limit]
    if not chosen:
        raise ConfigError(f"--trace: {path} has no calls that can be replayed")
    if sum(call.prompt_tokens for call in chosen) > MAX_TRACE_TOKENS:
        raise ConfigError(f"--trace: {path}: more than {MAX_TRACE_TOKENS:,} prompt tokens; give --num-requests")
    replay = _Replay()
    prompts = [replay.prompt(index, call) for index, call in enumerate(chosen)]
    begin_s = _queued_at_s(chosen[0])
    conversations = tuple(
        conversation
        for index, (call, prompt) in enumerate(zip(chosen, prompts, strict=True))
        for conversation in _conversations(index, call, prompt, _queued_at_s(call) - begin_s)
    )
    return Trace(f"{path.name} ({replay.told(len(calls) - len(known))})", conversations)


def _can_be_replayed(call: RequestLine) -> bool:
    lengths = (call.prompt_tokens, call.completion_tokens)
    return call.submitted_s is not None and call.num_choices > 0 and all(0 < one <= MAX_TOKENS for one in lengths)


def _cached(call: RequestLine) -> int:
    return call.cached_device_tokens + call.cached_host_tokens


def _queued_at_s(call: RequestLine) -> float:
    return call.at_s + (call.submitted_s or 0.0)


def _conversations(index: int, call: RequestLine, prompt: list[int], start_s: float) -> list[Conversation]:
    """Return a call's choices, each with its share of the answer."""
    output, rest = divmod(call.completion_tokens, call.num_choices)
    reasoning = call.reasoning_tokens // call.num_choices
    one = Conversation(f"call-{index}", round(start_s, 6), ())
    turns = [Turn(tuple(prompt), output + (choice < rest), reasoning) for choice in range(call.num_choices)]
    return [
        evolve(one, name=one.name if choice == 0 else f"{one.name}-{choice}", turns=(turn,))
        for choice, turn in enumerate(turns)
        if turn.output_tokens
    ]


@define(eq=False)
class _Known:
    """A call's tokens: its prompt, whose first num_shared are another's, and its answer, as the engine gives it."""

    prompt: list[int]
    num_shared: int
    num_tokens: int

    def beginning(self, count: int) -> list[int]:
        """Return the first `count` tokens."""
        answer = range(len(self.prompt), max(count, len(self.prompt)))
        return self.prompt[:count] + [answer_token(0, position) for position in answer]

    def part_at(self, position: int) -> None:
        """Let a turn begin at a position of its own, where the log's cache had a snapshot and so must the replay's."""
        if self.num_shared <= position < len(self.prompt):
            self.prompt[position] = USER


# Length, call, whether it is with the answer.
_Entry = tuple[int, int, bool]


@define(eq=False)
class _Replay:
    """Gives calls their prompts, in the order of their coming to the queue."""

    known: list[_Known] = field(factory=list)
    cached_tokens: int = 0
    found_tokens: int = 0
    # What will be there when, and what is there by length.
    _coming: list[tuple[float, _Entry]] = field(factory=list)
    _there: list[_Entry] = field(factory=list)
    _newest_with: dict[int, int] = field(factory=dict)

    def prompt(self, index: int, call: RequestLine) -> list[int]:
        """Return the call's prompt; a later one may still set a mark in it."""
        until_s = call.at_s + (call.admitted_s if call.admitted_s is not None else call.submitted_s or 0.0)
        while self._coming and self._coming[0][0] <= until_s:
            insort(self._there, heapq.heappop(self._coming)[1])
        count = min(_cached(call), call.prompt_tokens - 1)
        self.cached_tokens += count
        donor = self._donor(count) if count else None
        shared: list[int] = []
        if donor is not None:
            self.found_tokens += count
            shared = donor.beginning(count)
            donor.part_at(count)
        if count:
            self._newest_with[count] = index
        own = np.random.default_rng((1, index)).integers(FIRST_TOKEN, VOCAB_SIZE, call.prompt_tokens - len(shared))
        prompt = shared + [_IDS[token_id] for token_id in own.tolist()]
        one = _Known(prompt, len(shared), len(prompt) + call.completion_tokens // call.num_choices)
        self.known.append(one)
        first_s = call.ended_s if call.first_token_s is None else call.first_token_s
        heapq.heappush(self._coming, (call.at_s + first_s, (len(prompt), index, False)))
        heapq.heappush(self._coming, (call.at_s + call.ended_s, (one.num_tokens, index, True)))
        return prompt

    def told(self, num_left_out: int) -> str:
        """Return what of the log is not in the trace."""
        share = f"{self.found_tokens / self.cached_tokens * 100:.0f} %" if self.cached_tokens else "none"
        return f"{num_left_out} calls without a token left out; {share} of {self.cached_tokens:,} cached tokens placed"

    def _donor(self, count: int) -> _Known | None:
        place = bisect_left(self._there, (count, -1, False))
        fits = self._there[place] if place < len(self._there) else None
        if fits is not None and fits[2] and fits[0] - count <= TURN_END:
            del self._there[place]
            return self.known[fits[1]]
        if count in self._newest_with:
            return self.known[self._newest_with[count]]
        if fits is None:
            queued = [index for _, (length, index, with_answer) in self._coming if not with_answer and length >= count]
            return self.known[min(queued)] if queued else None
        return self.known[fits[1]]
