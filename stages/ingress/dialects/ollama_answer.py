"""Answers of Ollama's routes: events to lines of JSON, or to one object.

A line tells what is new since the last one; the last has done true, the reason, counts, and durations in nanoseconds
that add up to the total. A tool call is sent whole, once it is known to be: its arguments are an object here, not text.
One that was cut off cannot be told, and is left out.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Literal

import orjson
from attrs import define, field

from stages.ingress.dialect import Call, Collected
from stages.ingress.dialects.choices import Calls, finite, fold, token_text
from stages.ingress.dialects.openai_common import call_id, raise_refusal
from stages.ingress.error_bodies import ollama_error
from stages.ingress.instants import rfc3339
from stages.messages import Ask, Ended, Event, Finish, Prompt, TokenLogprob, Usage

NS_PER_S = 1_000_000_000


@define(eq=False)
class OllamaEncoder:
    """Events to Ollama's lines, or to one object: a message for chat, a response for generate."""

    call: Call
    ask: Ask
    model_name: str
    form: Literal["message", "response"]
    calls: Calls = field(factory=Calls)
    num_calls_sent: int = 0
    logprobs: list[TokenLogprob] = field(factory=list)
    prompt_s: float | None = None

    def start(self) -> list[bytes]:
        """Return nothing: the first line comes with the first token."""
        return []

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the lines of one event."""
        if self.prompt_s is None:
            self.prompt_s = self._elapsed_s()
        if isinstance(event, Ended):
            return self._ended(event, prompt)
        self.logprobs.extend(event.logprobs)
        for piece in event.tool_calls:
            self.calls.add(piece)
        lines = []
        if event.text or event.reasoning:
            lines.append(self._line(event.text, event.reasoning))
        if calls := self._calls_known(is_over=False):
            lines.append(self._line("", "", calls))
        return lines

    def finish(self) -> list[bytes]:
        """Return nothing: the last line came with the end."""
        return []

    def failed(self, error: Exception) -> list[bytes]:
        """Return the line that tells of the failure, which ends the stream."""
        return [_line(ollama_error(error, 0, ""))]

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return the whole answer."""
        (one,) = collected
        (choice,) = fold(one, 1)
        # Invariant: a choice is encoded only after its Ended, which is always its last event.
        assert choice.finish is not None
        raise_refusal(choice.finish)
        self.calls = choice.calls
        said = self._said("".join(choice.text), "".join(choice.reasoning), self._calls_known(is_over=True))
        total_s = self._elapsed_s()
        ending = self._ending(choice.finish, one.prompt, choice.usage, total_s - one.decode_s, total_s)
        return HTTPStatus.OK, {**self._head(), **said, **ending, **self._logprobs(choice.logprobs)}

    # -- a stream -----------------------------------------------------------------------------------------------------

    def _ended(self, event: Ended, prompt: Prompt) -> list[bytes]:
        raise_refusal(event.finish)
        calls = self._calls_known(is_over=True)
        lines = [self._line("", "", calls)] if calls else []
        ending = self._ending(event.finish, prompt, event.usage, self.prompt_s or 0.0, self._elapsed_s())
        last = {**self._head(), **self._said("", "", []), **ending, **self._taken_logprobs()}
        return [*lines, _line(last)]

    def _line(self, text: str, thinking: str, calls: Sequence[object] = ()) -> bytes:
        said = self._said(text, thinking, calls)
        return _line({**self._head(), **said, "done": False, **self._taken_logprobs()})

    def _taken_logprobs(self) -> dict[str, object]:
        """Return the entries that wait, once: those whose text shows in no line ride on the next."""
        entries, self.logprobs = self.logprobs, []
        return self._logprobs(entries)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _head(self) -> dict[str, object]:
        return {"model": self.model_name, "created_at": rfc3339(self.call.created_s + self._elapsed_s())}

    def _said(self, text: str, thinking: str, calls: Sequence[object]) -> dict[str, object]:
        more: dict[str, object] = {"thinking": thinking} if thinking else {}
        if self.form == "response":
            return {"response": text, **more}
        if calls:
            more["tool_calls"] = calls
        return {"message": {"role": "assistant", "content": text, **more}}

    def _calls_known(self, *, is_over: bool) -> list[object]:
        """Return the whole calls not returned before; the newest may still grow until all is over."""
        by_index = self.calls.by_index
        known = sorted(by_index)[self.num_calls_sent : len(by_index) if is_over else max(len(by_index) - 1, 0)]
        self.num_calls_sent += len(known)
        return [
            {
                "id": by_index[index].call_id or call_id(f"{self.call.request_id} {self.call.created_s}", 0, index),
                "function": {
                    "index": index,
                    "name": by_index[index].name,
                    # As it stands: reading and writing it again would change numbers beyond 64 bits.
                    "arguments": orjson.Fragment(by_index[index].text),
                },
            }
            for index in known
            if by_index[index].is_complete()
        ]

    def _ending(
        self, finish: Finish, prompt: Prompt, usage: Usage, prompt_s: float, total_s: float
    ) -> dict[str, object]:
        total_ns, prompt_ns = round(total_s * NS_PER_S), round(prompt_s * NS_PER_S)
        return {
            "done": True,
            "done_reason": finish.kind,
            "total_duration": total_ns,
            "load_duration": 0,  # the model is there before the server listens
            "prompt_eval_count": len(prompt.token_ids),
            "prompt_eval_duration": prompt_ns,
            "eval_count": usage.completion_tokens,
            "eval_duration": total_ns - prompt_ns,
        }

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        if not entries:
            return {}
        top = self.ask.num_top_logprobs
        return {
            "logprobs": [
                {
                    **_token_json(entry.token_bytes, entry.logprob),
                    "top_logprobs": [_token_json(other, logprob) for _, logprob, other in entry.top[:top]],
                }
                for entry in entries
            ]
        }

    def _elapsed_s(self) -> float:
        return 0.0 if self.call.elapsed_s is None else self.call.elapsed_s()


def _line(value: object) -> bytes:
    return orjson.dumps(value) + b"\n"


def _token_json(token_bytes: bytes, logprob: float) -> dict[str, object]:
    return {"token": token_text(token_bytes), "logprob": finite(logprob), "bytes": list(token_bytes)}
