"""Answers of the chat completions API: events to chunks, or to one chat completion.

A stream is, for each choice: the role chunk, reasoning, content, tool calls (name once, then argument pieces), the
finish chunk; at the end the usage chunk if asked for, and [DONE]. Joined, it equals the whole answer field by field;
logprob entries and token ids whose text shows in no chunk ride on the next one.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from attrs import define, field

from stages.ingress.dialect import Collected
from stages.ingress.dialects.choices import Calls, Choice, Tally, fold, tally, token_json
from stages.ingress.dialects.common import MARK, WEIGHT_VERSION, Plain, frame
from stages.ingress.dialects.openai_common import (
    Head,
    StreamOptions,
    call_id,
    error_frames,
    last_frames,
    raise_refusal,
    sglext_json,
    stop_reason,
    usage_json,
)
from stages.ingress.dialects.prompt_logprobs import prompt_logprobs_json, scores_in, with_wanted
from stages.messages import Ask, Delta, Ended, Event, Finish, Prompt, TokenLogprob, ToolCallDelta
from stages.settings import ModelSettings

CHUNK = "chat.completion.chunk"


@define
class _Streamed:
    """What a stream remembers of one choice: its calls, and what waits for the next chunk."""

    calls: Calls = field(factory=Calls)
    logprobs: list[TokenLogprob] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    token_ids: list[int] = field(factory=list)


@define(eq=False)
class ChatEncoder:
    """Events to chat completion chunks, or to one chat completion.

    max_calls 1 is parallel_tool_calls false: later calls are generated and left out. The nonce keeps the ids of calls
    apart when a client uses one rid for every turn of a conversation.
    """

    top: Head
    ask: Ask
    model: ModelSettings
    options: StreamOptions
    show_reasoning: bool
    max_calls: int | None
    nonce: str
    with_cache_details: bool = False
    with_ids: bool = False
    # Alternatives beside each logprob, and beside each of the prompt's; None for none of the prompt's.
    num_top: int = 0
    num_prompt_top: int | None = None
    # The request named the tool to call.
    is_named: bool = False
    counts: Tally = field(factory=Tally)
    # Around the text, or the reasoning, of a choice's plain chunks.
    plain: dict[tuple[int, str], Plain] = field(factory=dict)
    # The prompt's ids, until the first chunk after they are known has taken them.
    prompt_ids: tuple[int, ...] | None = None
    streamed: list[_Streamed] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.streamed = [_Streamed() for _ in range(self.ask.num_choices)]

    def start(self) -> list[bytes]:
        """Return the role chunk of every choice in rising order."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk(choice, delta) for choice in range(self.ask.num_choices)]

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the chunks of one event."""
        if self.with_ids and not self.counts.latest:
            self.prompt_ids = prompt.token_ids
        self.counts.add(ask_index, len(prompt.token_ids), event)
        if isinstance(event, Ended):
            return self._ended(event)
        if (chunk := self._plain(event)) is not None:
            return [chunk]
        choice = self.streamed[event.choice]
        choice.logprobs.extend(event.logprobs)
        if self.with_ids:
            choice.token_ids.extend(event.token_ids)
        return [self._chunk(event.choice, delta, self._logprobs(choice)) for delta in self._deltas(choice, event)]

    def finish(self) -> list[bytes]:
        """Return the chunks of cache details and of usage if asked for, and [DONE]."""
        return last_frames(self.top, CHUNK, self.counts.total(), self.options, with_details=self.with_cache_details)

    def failed(self, error: Exception) -> list[bytes]:
        """Return the error frame and [DONE]."""
        return error_frames(error, "messages")

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return the whole answer."""
        choices = fold(collected[0], self.ask.num_choices)
        for choice in choices:
            raise_refusal(_finish(choice.finish))
        answer = self.top.chunk("chat.completion", [self._choice(i, choice) for i, choice in enumerate(choices)])
        if self.with_ids:
            answer["prompt_token_ids"] = collected[0].prompt.token_ids
        if self.num_prompt_top is not None:
            answer["prompt_logprobs"] = prompt_logprobs_json(scores_in(collected[0].events), self.num_prompt_top)
        usage = tally(collected)
        answer["usage"] = usage_json(usage)
        answer["system_fingerprint"] = None
        answer["metadata"] = {"weight_version": WEIGHT_VERSION}
        return HTTPStatus.OK, {**answer, **sglext_json(usage)} if self.with_cache_details else answer

    # -- a stream -----------------------------------------------------------------------------------------------------

    def _plain(self, event: Delta) -> bytes | None:
        """Return the chunk of a delta of nothing but text or nothing but reasoning; None for any other."""
        kind = "reasoning" if event.reasoning else "content"
        text = event.reasoning or event.text
        if not text or (event.reasoning and event.text) or event.tool_calls or event.logprobs or self.with_ids:
            return None
        choice = self.streamed[event.choice]
        if choice.logprobs or choice.reasoning or self.options.continuous_usage_stats:
            return None
        if event.reasoning and not (self.show_reasoning and self.ask.form.stream_reasoning):
            return None
        plain = self.plain.get((event.choice, kind))
        if plain is None:
            delta = {"content": MARK} if kind == "content" else {"reasoning_content": MARK, "reasoning": MARK}
            plain = self.plain[event.choice, kind] = Plain.around(self._chunk(event.choice, delta), len(delta))
        return plain.of(text)

    def _deltas(self, choice: _Streamed, event: Delta) -> list[dict[str, object]]:
        if event.reasoning and self.show_reasoning:
            choice.reasoning.append(event.reasoning)
        pieces = [piece for piece in event.tool_calls if self._is_kept(piece)]
        deltas: list[dict[str, object]] = []
        if choice.reasoning and (self.ask.form.stream_reasoning or event.text or pieces):
            deltas.append(_reasoning_delta(choice))
        if event.text:
            deltas.append({"content": event.text})
        for piece in pieces:
            choice.calls.add(piece)
            deltas.extend(self._call_deltas(event.choice, piece))
        return deltas

    def _call_deltas(self, choice: int, piece: ToolCallDelta) -> list[dict[str, object]]:
        deltas: list[dict[str, object]] = []
        if piece.name is not None:
            first = {
                "index": piece.index,
                "id": piece.call_id or call_id(self.nonce, choice, piece.index),
                "type": "function",
                "function": {"name": piece.name, "arguments": ""},
            }
            deltas.append({"tool_calls": [first]})
        if piece.arguments:
            deltas.append({"tool_calls": [{"index": piece.index, "function": {"arguments": piece.arguments}}]})
        return deltas

    def _ended(self, event: Ended) -> list[bytes]:
        raise_refusal(event.finish)
        choice = self.streamed[event.choice]
        frames = []
        if choice.reasoning:
            frames.append(self._chunk(event.choice, _reasoning_delta(choice), self._logprobs(choice)))
        reason = finish_reason(event.finish, choice.calls, is_named=self.is_named)
        frames.append(self._chunk(event.choice, {}, self._logprobs(choice), self._end(event.finish, reason)))
        return frames

    def _logprobs(self, choice: _Streamed) -> dict[str, object] | None:
        """Return the entries that wait, once: the first chunk of several takes them."""
        if not choice.logprobs:
            return None
        entries, choice.logprobs = choice.logprobs, []
        return self._logprobs_json(entries)

    def _chunk(
        self,
        choice: int,
        delta: Mapping[str, object],
        logprobs: Mapping[str, object] | None = None,
        end: Mapping[str, object] | None = None,
    ) -> bytes:
        ending = end or {"finish_reason": None, "matched_stop": None}
        entry = {"index": choice, "delta": {"reasoning_content": None, **delta}, "logprobs": logprobs, **ending}
        chunk = self.top.chunk(CHUNK, [entry])
        if self.with_ids:
            self._add_ids(chunk, entry, self.streamed[choice])
        if self.options.continuous_usage_stats and self.counts.latest:
            chunk["usage"] = usage_json(self.counts.of(0, choice))
        elif self.options.include_usage:
            chunk["usage"] = None
        return frame(chunk)

    def _add_ids(self, chunk: dict[str, object], entry: dict[str, object], choice: _Streamed) -> None:
        """Add the ids since the choice's last chunk, and the prompt's once, in vLLM's form: SGLang streams none."""
        entry["token_ids"], choice.token_ids = choice.token_ids, []
        if self.prompt_ids is not None:
            chunk["prompt_token_ids"], self.prompt_ids = self.prompt_ids, None

    # -- a whole answer -----------------------------------------------------------------------------------------------

    def _choice(self, index: int, choice: Choice) -> dict[str, object]:
        calls = Calls({n: call for n, call in choice.calls.by_index.items() if n < (self.max_calls or n + 1)})
        reasoning = "".join(choice.reasoning) if choice.reasoning and self.show_reasoning else None
        message: dict[str, object] = {
            "role": "assistant",
            "content": "".join(choice.text),
            "refusal": None,
            "reasoning_content": reasoning,
            "reasoning": reasoning,
        }
        if calls.by_index:
            message["tool_calls"] = [
                {
                    "id": call.call_id or call_id(self.nonce, index, n),
                    "index": n,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for n, call in sorted(calls.by_index.items())
            ]
        finish = _finish(choice.finish)
        # By vLLM's name and by SGLang's.
        ids = {"token_ids": choice.token_ids, "response_token_ids": choice.token_ids} if self.with_ids else {}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs_json(choice.logprobs) if self.ask.logprobs else None,
            **self._end(finish, finish_reason(finish, calls, is_named=self.is_named)),
            **ids,
        }

    # -- both ---------------------------------------------------------------------------------------------------------

    def _is_kept(self, piece: ToolCallDelta) -> bool:
        return self.max_calls is None or piece.index < self.max_calls

    def _end(self, finish: Finish, reason: str) -> dict[str, object]:
        return {
            "finish_reason": reason,
            "matched_stop": None if reason == "tool_calls" else finish.matched,
            "stop_reason": stop_reason(finish, self.model),
        }

    def _logprobs_json(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        content = [
            {
                **token_json(entry.token_bytes, entry.logprob),
                "top_logprobs": [token_json(other, logprob) for _, logprob, other in with_wanted(entry, self.num_top)],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}


def finish_reason(finish: Finish, calls: Calls, *, is_named: bool = False) -> str:
    """Return OpenAI's finish reason: tool_calls only after a natural stop with no call left incomplete.

    A call of the one tool that the request named ends with stop: the model chose nothing.
    """
    return "tool_calls" if finish.kind == "stop" and calls.are_complete() and not is_named else finish.kind


def _finish(finish: Finish | None) -> Finish:
    # Invariant: a choice is encoded only after its Ended, which is always its last event.
    assert finish is not None
    return finish


def _reasoning_delta(choice: _Streamed) -> dict[str, object]:
    text = "".join(choice.reasoning)
    choice.reasoning = []
    return {"reasoning_content": text, "reasoning": text}
