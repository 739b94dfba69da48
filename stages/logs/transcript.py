"""What a call asked and was answered, for its log line; kept only where the level asks for it.

At level 2 of every text its beginning and its end are kept, so that a long answer costs no more than a short one.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import asdict, define, field, frozen

from stages.ingress.dialect import Collected, Encoder, Parsed
from stages.logs.lines import Deferred
from stages.logs.switches import WITH_SAMPLING, WITH_TEXTS, LogSwitches
from stages.messages import Ask, Chat, Delta, Event, Prompt

# Characters of a text at level 2, half of its beginning and half of its end, as SGLang cuts.
CUT_CHARACTERS = 2048
ELLIPSIS = " ... "


@define(eq=False)
class Text:
    """A text that comes in pieces: all of it, or its beginning and its end up to max_characters."""

    max_characters: int | None
    _head: list[str] = field(factory=list)
    _tail: str = ""
    _num_head: int = 0
    _is_cut: bool = False

    def add(self, piece: str) -> None:
        """Add what came; of a long piece only what is kept is copied."""
        if self.max_characters is None:
            self._head.append(piece)
            self._num_head += len(piece)
            return
        half = self.max_characters // 2
        num_taken = min(len(piece), half - self._num_head)
        if num_taken:
            self._head.append(piece[:num_taken])
            self._num_head += num_taken
        rest = self._tail + piece[max(num_taken, len(piece) - half - 1) :]
        self._is_cut = self._is_cut or len(rest) > half
        self._tail = rest[-half:]

    @property
    def num_characters(self) -> int:
        """Return how much is kept."""
        return self._num_head + len(self._tail)

    def __str__(self) -> str:
        """Return the text."""
        return "".join(self._head) + (ELLIPSIS if self._is_cut else "") + self._tail


@define(eq=False)
class Said:
    """What one choice has said so far."""

    max_characters: int | None
    reasoning: Text = field(init=False)
    text: Text = field(init=False)
    tool_calls: Text = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reasoning, self.text, self.tool_calls = (Text(self.max_characters) for _ in range(3))

    @property
    def num_characters(self) -> int:
        """Return how much is kept."""
        return self.reasoning.num_characters + self.text.num_characters + self.tool_calls.num_characters

    def told(self) -> dict[str, str]:
        """Return what there is of it."""
        texts = {"reasoning": str(self.reasoning), "text": str(self.text), "tool_calls": str(self.tool_calls)}
        return {name: text for name, text in texts.items() if text}


@define(eq=False)
class Transcript:
    """One call's asks and what each choice of each has answered."""

    asks: Sequence[Ask]
    level: int
    said: dict[tuple[int, int], Said] = field(factory=dict)

    @property
    def has_texts(self) -> bool:
        """Return whether prompts and answers are part of it."""
        return self.level >= WITH_TEXTS

    @property
    def max_characters(self) -> int | None:
        """Return how much of a text is kept; None keeps all."""
        return CUT_CHARACTERS if self.level == WITH_TEXTS else None

    def heard(self, ask_index: int, event: Event) -> None:
        """Take one event of the call's."""
        if not isinstance(event, Delta):
            return
        said = self.said.setdefault((ask_index, event.choice), Said(self.max_characters))
        said.reasoning.add(event.reasoning)
        said.text.add(event.text)
        for call in event.tool_calls:
            said.tool_calls.add(call.arguments if call.name is None else f"{call.name}: {call.arguments}")

    def fields(self) -> dict[str, Any]:
        """Return what the line shows of it; long texts are put together where the line is made."""
        fields: dict[str, Any] = {"sampling": _sampling_of(self.asks[0])}
        if self.has_texts:
            num_characters = sum(map(_size_of, self.asks))
            fields["prompts"] = Deferred(num_characters, self._prompts)
            fields["answers"] = Deferred(sum(said.num_characters for said in self.said.values()), self._answers)
        return fields

    def _prompts(self) -> list[str]:
        return [_written(ask.prompt, self.max_characters) for ask in self.asks]

    def _answers(self) -> list[dict[str, str]]:
        return [said.told() for _, said in sorted(self.said.items())]


@frozen(eq=False)
class OverheardEncoder:
    """An encoder whose events a transcript hears too."""

    encoder: Encoder
    transcript: Transcript

    def start(self) -> list[bytes]:
        """Return what the encoder does."""
        return self.encoder.start()

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return what the encoder does."""
        self.transcript.heard(ask_index, event)
        return self.encoder.event(ask_index, prompt, event)

    def finish(self) -> list[bytes]:
        """Return what the encoder does."""
        return self.encoder.finish()

    def failed(self, error: Exception) -> list[bytes]:
        """Return what the encoder does."""
        return self.encoder.failed(error)

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return what the encoder does."""
        for index, one in enumerate(collected):
            for event in one.events:
                self.transcript.heard(index, event)
        return self.encoder.body(collected)


def transcript_of(parsed: Parsed, switches: LogSwitches) -> Transcript | None:
    """Return the transcript of a call that begins, None where its line shows none."""
    if not switches.requests or switches.requests_level < WITH_SAMPLING:
        return None
    return Transcript(parsed.asks, switches.requests_level)


def _sampling_of(ask: Ask) -> dict[str, Any]:
    limits = asdict(ask.limits)
    limits = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in limits.items()}
    penalties = {f"{name}_penalty": value for name, value in asdict(ask.penalties).items()}
    return {**asdict(ask.sampling), **limits, **penalties, "n": ask.num_choices}


def _size_of(ask: Ask) -> int:
    prompt = ask.prompt
    if isinstance(prompt, Chat):
        return sum(len(str(message.get("content") or "")) for message in prompt.messages)
    return len(prompt)


def _written(prompt: Chat | str | tuple[int, ...], max_characters: int | None) -> str:
    text = Text(max_characters)
    for part in _parts(prompt, max_characters):
        text.add(part)
    return str(text)


def _parts(prompt: Chat | str | tuple[int, ...], max_characters: int | None) -> Iterator[str]:
    """Give a prompt in pieces, of many ids only those that are kept."""
    if isinstance(prompt, Chat):
        for message in prompt.messages:
            yield f"{message.get('role')}: "
            yield str(message.get("reasoning_content") or "")
            yield str(message.get("content") or "")
            if calls := message.get("tool_calls"):
                yield f" {json.dumps(calls, ensure_ascii=False, default=str)}"
            yield "\n"
    elif isinstance(prompt, str):
        yield prompt
    else:
        ids = prompt
        if max_characters is not None and len(ids) > 2 * max_characters:  # each takes two at least
            ids = (*ids[:max_characters], *ids[-max_characters:])
        for token_id in ids:
            yield f"{token_id} "
