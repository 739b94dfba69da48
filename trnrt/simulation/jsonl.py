"""Reads the public JSONL form of request traces: {"timestamp": ms, "input_length", "output_length", "hash_ids"}.

A "priority" may stand beside them, for priority scheduling.

A hash id stands for a block of BLOCK_TOKENS prompt tokens, the same id for the same block; the last may be part of one.
Tokens of a prompt beyond its ids are its own. The ids of answers are unknown, so that what a later prompt has of an
earlier answer is known from its hash ids only: never from the simulated answer.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import orjson
from attrs import evolve

from stages.errors import ConfigError
from trnrt.simulation.traces import FIRST_TOKEN, VOCAB_SIZE, Conversation, Trace, Turn

BLOCK_TOKENS = 512
# Of one prompt or answer: far beyond any context, and little enough to hold.
MAX_TOKENS = 2**24
# Streams of random numbers: blocks by hash id, tails by line.
_BLOCK, _TAIL = 0, 1


def read_jsonl(path: str, limit: int | None = None) -> Trace:
    """Return the trace in the file, its first `limit` lines; raises ConfigError naming the file and the line."""
    conversations: list[Conversation] = []
    try:
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if len(conversations) == limit:
                    break
                if line.strip():
                    conversations.append(_request(line, number, f"{path}:{number}"))
    except OSError as error:
        raise ConfigError(f"--trace: cannot read {path}: {error.strerror}") from None
    if not conversations:
        raise ConfigError(f"--trace: {path} has no requests")
    begin_s = min(one.start_s for one in conversations)
    shifted = [evolve(one, start_s=round(one.start_s - begin_s, 6)) for one in conversations]
    return Trace(Path(path).name, tuple(sorted(shifted, key=lambda one: one.start_s)))


def _request(line: bytes, number: int, where: str) -> Conversation:
    try:
        row = orjson.loads(line)
    except ValueError as error:
        raise ConfigError(f"--trace: {where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"--trace: {where}: expected an object")
    timestamp: Any = row.get("timestamp")
    if not _is_number(timestamp) or timestamp < 0:
        raise ConfigError(f"--trace: {where}: timestamp: expected milliseconds, got {timestamp!r}")
    input_tokens = _count(row, "input_length", 1, where)
    output_tokens = _count(row, "output_length", 0, where)
    hash_ids = row.get("hash_ids", [])
    if not isinstance(hash_ids, list) or not all(_is_whole(one) and one >= 0 for one in hash_ids):
        raise ConfigError(f"--trace: {where}: hash_ids: expected a list of whole numbers of at least 0")
    most = math.ceil(input_tokens / BLOCK_TOKENS)
    if len(hash_ids) > most:
        raise ConfigError(f"--trace: {where}: hash_ids: {len(hash_ids)} blocks for {input_tokens} tokens, not {most}")
    prompt = [token_id for hash_id in hash_ids for token_id in _block(hash_id)][:input_tokens]
    prompt += _tokens((_TAIL, number), input_tokens - len(prompt))
    priority = row.get("priority")
    if priority is not None and not _is_whole(priority):
        raise ConfigError(f"--trace: {where}: priority: expected a whole number, got {priority!r}")
    return Conversation(f"line-{number}", timestamp / 1000, (Turn(tuple(prompt), output_tokens),), priority)


def _count(row: dict[str, Any], key: str, low: int, where: str) -> int:
    value: Any = row.get(key)
    if not _is_whole(value) or not low <= value <= MAX_TOKENS:
        raise ConfigError(f"--trace: {where}: {key}: expected a whole number from {low} to {MAX_TOKENS}, got {value!r}")
    return value


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@lru_cache(maxsize=65_536)
def _block(hash_id: int) -> tuple[int, ...]:
    return tuple(_tokens((_BLOCK, hash_id), BLOCK_TOKENS))


def _tokens(stream: tuple[int, int], length: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(stream).integers(FIRST_TOKEN, VOCAB_SIZE, length).tolist()
    return tokens
