"""Makes traces from a seed: chat, agent, burst and document.

Lengths are log-normal around a median (most are short, some are long), cut off at eight times the median; arrivals are
a Poisson process. Every conversation draws from a stream of its own, so that more requests leave the first ones as
they were.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from attrs import frozen

from trnrt.simulation.traces import ASSISTANT, FIRST_TOKEN, USER, VOCAB_SIZE, Conversation, Trace, Turn

SPREAD = 0.6
LONGEST_MEDIANS = 8
# Streams of random numbers under one seed; conversations take those from _CONVERSATION on.
_ARRIVALS, _PREFIX, _CONVERSATION = 0, 1, 1_000_000


@frozen
class Shape:
    """The kind of traffic: medians in tokens, means in seconds, and who shares what.

    Conversations take one of num_prefixes system prompts in turn, of prefix_tokens each, 0 is none. They start
    per_s a second, or group_size together every group_s.
    """

    text: str
    num_prefixes: int
    prefix_tokens: int
    first_tokens: int
    later_tokens: int
    output_tokens: int
    reasoning_share: float
    mean_turns: float
    pause_s: float
    per_s: float = 0.0
    group_size: int = 0
    group_s: float = 0.0


SHAPES: Mapping[str, Shape] = {
    "chat": Shape("turns of people, a short system prompt", 4, 400, 80, 80, 250, 0.4, 6, 20.0, per_s=1.0),
    "agent": Shape(
        "many short turns with tool results under a long system prompt", 4, 6000, 600, 500, 120, 0.3, 20, 2.0, per_s=0.4
    ),
    "burst": Shape("many at once with one prefix", 1, 4000, 100, 0, 150, 0.3, 1, 0.0, group_size=64, group_s=30.0),
    "document": Shape("long prompts and questions to them", 0, 0, 24_000, 60, 300, 0.4, 4, 15.0, per_s=0.2),
}


def generate(kind: str, num_requests: int, seed: int) -> Trace:
    """Return a trace of `kind` with num_requests turns in all; raises KeyError for an unknown kind."""
    shape = SHAPES[kind]
    prefixes = [_text(_stream(seed, _PREFIX + index), shape.prefix_tokens) for index in range(shape.num_prefixes)]
    starts = _starts(shape, _stream(seed, _ARRIVALS))
    conversations: list[Conversation] = []
    num_left = num_requests
    while num_left:
        index = len(conversations)
        prefix = prefixes[index % len(prefixes)] if prefixes else ()
        turns = _turns(shape, prefix, num_left, _stream(seed, _CONVERSATION + index))
        conversations.append(Conversation(f"{kind}-{index}", next(starts), turns))
        num_left -= len(turns)
    return Trace(kind, tuple(conversations))


def _turns(shape: Shape, prefix: tuple[int, ...], limit: int, random: np.random.Generator) -> tuple[Turn, ...]:
    num_turns = min(limit, int(random.geometric(1 / shape.mean_turns)))
    return tuple(_turn(shape, prefix if index == 0 else (), index, random) for index in range(num_turns))


def _turn(shape: Shape, prefix: tuple[int, ...], index: int, random: np.random.Generator) -> Turn:
    length = _length(random, shape.later_tokens if index else shape.first_tokens)
    output_tokens = _length(random, shape.output_tokens)
    pause_s = round(float(random.exponential(shape.pause_s)), 6) if index else 0.0
    return Turn(
        fresh=(*prefix, USER, *_text(random, length), ASSISTANT),
        output_tokens=output_tokens,
        reasoning_tokens=int(output_tokens * shape.reasoning_share),
        pause_s=pause_s,
    )


def _starts(shape: Shape, random: np.random.Generator) -> Iterator[float]:
    at_s, index = 0.0, 0
    while True:
        yield round(at_s, 6)
        index += 1
        if shape.group_size:
            at_s = index // shape.group_size * shape.group_s
        else:
            at_s += float(random.exponential(1 / shape.per_s))


def _length(random: np.random.Generator, median: int) -> int:
    length = round(median * math.exp(SPREAD * float(random.standard_normal())))
    return max(1, min(length, LONGEST_MEDIANS * median))


def _text(random: np.random.Generator, length: int) -> tuple[int, ...]:
    return tuple(random.integers(FIRST_TOKEN, VOCAB_SIZE, length).tolist())


def _stream(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng((seed, number))
