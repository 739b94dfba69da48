"""Frames of `/generate` that a client brings, to rows of tokens as an engine's own would be; and back to one frame.

# Invariant: rows made again of one frame are the rows that it was made of.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from attrs import define, field

from stages.engine.frames import FrameReader
from stages.errors import InvalidRequest, RemoteFailure
from stages.messages import Submit, TokensRow

Json = dict[str, Any]


@define(eq=False)
class BroughtFrames:
    """The frames of one choice: those told earlier as one, then new ones, up to max_tokens."""

    submit: Submit
    vocab_size: int
    max_tokens: int
    _reader: FrameReader = field(init=False)
    _rows: list[TokensRow] = field(factory=list)
    # The end as it was told: what a frame may leave out of its ids depends on it.
    _finish: Any = None

    def __attrs_post_init__(self) -> None:
        self._reader = FrameReader(self.submit)

    @property
    def has_any(self) -> bool:
        """Whether any frame came."""
        return bool(self._rows)

    @property
    def has_ended(self) -> bool:
        """Whether a frame told the end."""
        return self._reader.has_ended

    def take(self, frame: Mapping[str, Any], where: str) -> TokensRow:
        """Return the row of a frame; raises InvalidRequest saying where a bad one stands, or the engine's failure."""
        if self.has_ended:
            raise _bad(where, "its choice has ended before")
        try:
            row = self._reader.read(orjson.dumps(self._whole(frame)))
        except RemoteFailure as failure:
            if failure.message.startswith("invalid engine frame: "):
                raise _bad(where, failure.message.removeprefix("invalid engine frame: ")) from None
            raise
        except TypeError as error:
            raise _bad(where, str(error)) from None
        if any(token_id >= self.vocab_size for token_id in row.token_ids):
            raise _bad(where, f"a token id is beyond {self.vocab_size - 1}")
        self._rows.append(row)
        if row.finish is not None:
            self._finish = frame["meta_info"]["finish_reason"]
        if sum(len(one.token_ids) for one in self._rows) > self.max_tokens:
            raise _bad(where, f"the answer has more than {self.max_tokens} tokens")
        return row

    def again(self, told: Mapping[str, Any], where: str) -> list[TokensRow]:
        """Return the rows that as_one() made one frame of; raises InvalidRequest saying where it is not whole."""
        meta, ids, sizes = told.get("meta_info"), told.get("output_ids"), told.get("sizes")
        if not isinstance(meta, dict) or not isinstance(ids, list) or not isinstance(sizes, list):
            raise _bad(where, "it is not as it was given")
        if any(type(size) is not int or size < 0 for size in sizes) or sum(sizes) != len(ids) or not sizes:
            raise _bad(where, "its sizes are not as they were given")
        rows, start = [], 0
        for number, size in enumerate(sizes, 1):
            part = {name: _part(value, start, size) for name, value in meta.items()}
            if number < len(sizes):
                part |= {"completion_tokens": start + size, "finish_reason": None}
            rows.append(self.take({"output_ids": ids[start : start + size], "meta_info": part}, where))
            start += size
        return rows

    def as_one(self) -> Json:
        """Return all frames so far as one, cumulative, with the sizes of each: what was held back depends on them."""
        ids = [token_id for row in self._rows for token_id in row.token_ids]
        usage = self._reader.usage
        meta: Json = {"completion_tokens": usage.completion_tokens, "finish_reason": self._finish}
        if usage.cached_tokens:
            meta["cached_tokens"] = usage.cached_tokens
        if self.submit.logprobs:
            values = [value for row in self._rows for value in row.logprobs]
            tops = [top for row in self._rows for top in row.top]
            meta["output_token_logprobs"] = [_entry(value, one) for value, one in zip(values, ids, strict=True)]
            meta["output_top_logprobs"] = [[_entry(value, one) for one, value in top] for top in tops]
        return {"output_ids": ids, "meta_info": meta, "sizes": [len(row.token_ids) for row in self._rows]}

    def _whole(self, frame: Mapping[str, Any]) -> Json:
        """Return a frame with its count of tokens, which one of new ids alone may leave out."""
        meta, ids = frame.get("meta_info") or {}, frame.get("output_ids") or ()
        if not isinstance(meta, Mapping) or not isinstance(ids, Sequence) or "completion_tokens" in meta:
            return dict(frame)
        total = self._reader.usage.completion_tokens + len(ids)
        return {**frame, "meta_info": {**meta, "completion_tokens": total}}


def _entry(logprob: float, token_id: int) -> list[Any]:
    return [None if math.isnan(logprob) else logprob, token_id, None]


def _part(value: Any, start: int, size: int) -> Any:
    """Return the part of a list that belongs to some of the tokens; anything else whole."""
    return value[start : start + size] if isinstance(value, list) else value


def _bad(where: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {reason}.", where, "invalid_value")
