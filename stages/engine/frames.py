"""Frames of a `/generate` stream, cumulative or incremental, to rows of tokens. Core.

Every frame tells how many tokens there are by now, which is what its ids are measured by: as many as there are in all
is a cumulative frame, as many as are new an incremental one, and every frame is looked at anew. A stop token that the
engine left out of the ids is counted all the same.

# Invariant: a row holds each token once; with logprobs, one of each for every id.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from stages.errors import RemoteFailure
from stages.messages import Finish, FinishKind, PromptScores, Submit, TokensRow, Usage

_KINDS: Mapping[str, FinishKind] = {"stop": "stop", "length": "length", "content_filter": "content_filter"}
_MAX_REASON_CHARACTERS = 2000
# Of no vocabulary, and as much as tokenizers take.
MAX_ID = 2**31 - 1


class FrameReader:
    """What one choice's frames have told so far."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._num_told = 0
        self._may_score_prompt = submit.prompt_logprobs_from is not None
        self.usage = Usage(len(submit.prompt_ids), 0)
        self.has_ended = False

    def read(self, data: bytes) -> TokensRow:
        """Return the row of one frame; raises RemoteFailure for a failure it tells of, and for one it is itself."""
        try:
            frame = orjson.loads(data)
        except orjson.JSONDecodeError:
            try:
                frame = orjson.loads(data.decode("utf-8", "replace"))
            except orjson.JSONDecodeError as error:
                raise _bad(str(error)) from None
        if not isinstance(frame, dict):
            raise _bad("it is no object")
        if "error" in frame or frame.get("object") == "error":
            raise failure_of(frame, 500)
        try:
            return self._row(frame)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise _bad(f"{type(error).__name__}: {error}") from None

    def _row(self, frame: Mapping[str, Any]) -> TokensRow:
        meta = frame.get("meta_info") or {}
        finish, num_trimmed = _finish(meta.get("finish_reason"))
        ids: Sequence[int] = frame.get("output_ids") or ()
        total = meta.get("completion_tokens", 0)
        if type(total) is not int or total < 0:
            raise ValueError("completion_tokens is no count")
        told = self._num_told
        if total < told:
            raise RemoteFailure(f"invalid engine frame: completion_tokens decreased from {told} to {total}")
        # What waits for a slow reader is sized by what was asked for; an engine asked for nothing may make one.
        most = max(self._submit.max_new_tokens, 1)
        if total > most:
            raise RemoteFailure(f"invalid engine frame: {total} tokens exist where at most {most} were asked for")
        start = _start(len(ids), total, told, num_trimmed)
        new_ids = tuple(ids[start:])
        for token_id in new_ids:
            _token_id(token_id)
        self._num_told = total
        self.has_ended = finish is not None
        self.usage = Usage(
            int(meta.get("prompt_tokens", self.usage.prompt_tokens)),
            total,
            int(meta.get("cached_tokens") or self.usage.cached_tokens),
        )
        if not self._submit.logprobs:
            return TokensRow(self._submit, new_ids, finish=finish, usage=self.usage)
        return self._scored(meta, new_ids, start, finish)

    def _scored(
        self, meta: Mapping[str, Any], new_ids: tuple[int, ...], start: int, finish: Finish | None
    ) -> TokensRow:
        count = len(new_ids)
        entries = _column(meta, "output_token_logprobs", start, count)
        tops = _column(meta, "output_top_logprobs", start, count) if self._submit.num_top_logprobs else None
        wanted = _column(meta, "output_token_ids_logprobs", start, count) if self._submit.logprob_token_ids else None
        if entries is None and count:
            raise RemoteFailure("invalid engine frame: it has no output_token_logprobs")
        return TokensRow(
            self._submit,
            new_ids,
            logprobs=tuple(_value(entry[0]) for entry in entries or ()),
            top=() if tops is None else tuple(_pairs(top) for top in tops),
            finish=finish,
            usage=self.usage,
            wanted=() if wanted is None else tuple(_values(row) for row in wanted),
            prompt=self._prompt_scores(meta),
        )

    def _prompt_scores(self, meta: Mapping[str, Any]) -> PromptScores | None:
        """Return the prompt's scores once, from the first frame that has them."""
        entries = meta.get("input_token_logprobs")
        if not self._may_score_prompt or not entries:
            return None
        self._may_score_prompt = False
        submit = self._submit
        count = len(submit.prompt_ids) - (submit.prompt_logprobs_from or 0)
        if len(entries) != count:
            text = f"invalid engine frame: {len(entries)} input_token_logprobs of {count} tokens"
            raise RemoteFailure(text)
        tops = _column(meta, "input_top_logprobs", 0, count)
        wanted = _column(meta, "input_token_ids_logprobs", 0, count) if submit.logprob_token_ids else None
        # The first token has nothing before it.
        pairs = [_pairs(top) for top in (tops or [None] * count)[1:]]
        width = max(map(len, pairs), default=0)
        if any(len(one) != width for one in pairs):
            raise RemoteFailure("invalid engine frame: input_top_logprobs of different lengths")
        shape = (count - 1, width)
        return PromptScores(
            np.array([_value(entry[0]) for entry in entries[1:]], dtype=np.float32),
            np.array([[token_id for token_id, _ in one] for one in pairs], dtype=np.int32).reshape(shape),
            np.array([[value for _, value in one] for one in pairs], dtype=np.float32).reshape(shape),
            None if wanted is None else np.array([_values(row) for row in wanted[1:]], dtype=np.float32),
        )


def failure_of(told: Mapping[str, Any], status: int, retry_after_s: int | None = None) -> RemoteFailure:
    """Return the failure that an error's JSON tells of, nested or flat; its code is a status, or `status` is."""
    inner = told.get("error", told)
    if not isinstance(inner, Mapping):
        inner = {"message": inner}
    message = inner.get("message") or told.get("message") or "the engine failed without a reason"
    code = inner.get("code")
    is_status = type(code) is int and 400 <= code < 600
    text = message if isinstance(message, str) else orjson.dumps(message).decode()
    return RemoteFailure(text[:_MAX_REASON_CHARACTERS], code if is_status else status, retry_after_s)


def _start(num_ids: int, total: int, told: int, num_trimmed: int) -> int:
    """Return which of a frame's ids is the first new one."""
    if num_ids == total or num_ids + num_trimmed == total:
        return min(told, num_ids)
    if num_ids == total - told or num_ids + num_trimmed == total - told:
        return 0
    text = f"invalid engine frame: {num_ids} output_ids where {total} tokens exist and {told} were told"
    raise RemoteFailure(text)


def _finish(reason: Any) -> tuple[Finish | None, int]:
    """Return why the choice ended, None while it runs, and how many tokens of a stop the engine may have left out."""
    if reason is None:
        return None, 0
    if isinstance(reason, str):
        reason = {"type": reason}
    kind = reason["type"]
    if kind == "abort":
        message = reason.get("message")
        if (status := reason.get("status_code")) is not None:
            raise RemoteFailure(str(message or "request aborted")[:_MAX_REASON_CHARACTERS], int(status))
        return Finish("abort", message=message), 0
    matched = reason.get("matched")
    if kind != "stop" or matched is None or isinstance(matched, str):
        return Finish(_KINDS.get(kind, "stop"), matched=matched if kind == "stop" else None), 0
    if isinstance(matched, list):
        # A stop of several ids is told by the one that completed it.
        return Finish("stop", matched=_token_id(matched[-1]) if matched else None), len(matched)
    return Finish("stop", matched=_token_id(matched)), 1


def _column(meta: Mapping[str, Any], name: str, start: int, count: int) -> list[Any] | None:
    """Return the entries of a frame's new ids, None for none at all; raises RemoteFailure for too few.

    A token that was left out of the ids may have one.
    """
    entries = meta.get(name)
    if not entries or all(entry is None for entry in entries):
        return None
    chosen: list[Any] = entries[start : start + count]
    if len(chosen) != count:
        raise RemoteFailure(f"invalid engine frame: {len(entries)} {name} where {start + count} tokens are told")
    return chosen


def _token_id(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise ValueError(f"{value!r:.80} is no token id")
    return value


def _value(logprob: Any) -> float:
    return math.nan if logprob is None else float(logprob)


def _pairs(top: Any) -> tuple[tuple[int, float], ...]:
    return tuple((_token_id(entry[1]), _value(entry[0])) for entry in top or ())


def _values(row: Any) -> tuple[float, ...]:
    return tuple(_value(entry[0]) for entry in row or ())


def _bad(reason: str) -> RemoteFailure:
    return RemoteFailure(f"invalid engine frame: {reason}"[:_MAX_REASON_CHARACTERS])
