"""One choice's way from token ids to text, reasoning and tool calls. Core.

Theory of operation. Ids are taken one by one, each to one place: the reasoning block, a tool call, or the visible
answer. Every place keeps its own unfinished character, so text never leaks from one to another, and the visible answer
alone is searched for stop strings and patterns; with parsers off everything is visible. Parsers of text take the ids'
text in the place of the ids.

# Invariant: the joined pieces of all Deltas depend on the ids alone, not on how they were grouped into steps; nor does
# the order of reasoning, text and calls, so a step that would upset a Delta's own order makes several.
# Invariant: no stop ends the answer before stops_after_tokens ids; one that ends later counts wherever it began.
# Invariant: ids, logprobs and usage end with the token that completed a stop string, though its text does not.
"""

import math
from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from stages.detokenizer.parsers.answer import Part, Thought
from stages.detokenizer.parsers.port import Reasoning, ReasoningParser, TagIds, ToolCalls, ToolParser
from stages.detokenizer.stops import stop_finder
from stages.detokenizer.text_parts import TextParsers
from stages.detokenizer.utf8 import Utf8
from stages.detokenizer.visible import Blanks, Visible
from stages.detokenizer.vocabulary import Vocabulary
from stages.messages import (
    Delta,
    Ended,
    Event,
    Finish,
    PromptScores,
    Submit,
    TokenLogprob,
    TokensRow,
    ToolCallDelta,
    Usage,
)


@frozen
class _Said:
    """What some of a row's ids came to, how many there were by then, and how many of reasoning."""

    text: str
    reasoning: str
    calls: tuple[ToolCallDelta, ...]
    num_taken: int
    reasoning_tokens: int


@frozen(eq=False)
class Decoding:
    """What all choices share: the vocabulary, and the parsers, None where off.

    They are parsers of ids, with the ids of their tags, or parsers of text, both of them.
    """

    vocabulary: Vocabulary
    reasoning: tuple[ReasoningParser, TagIds] | None = None
    tools: tuple[ToolParser, TagIds] | None = None
    text: TextParsers | None = None

    def reasoning_of(self, submit: Submit) -> Reasoning | None:
        """Return a fresh reasoning automaton; it runs, and counts, whether or not its text is told apart."""
        if self.reasoning is None:
            return None
        parser, tags = self.reasoning
        return parser.make(tags, bool(submit.in_reasoning))

    def tools_of(self, submit: Submit) -> ToolCalls | None:
        """Return a fresh tool-call automaton when the choice wants its calls parsed."""
        if self.tools is None or not submit.form.parse_tools:
            return None
        parser, tags = self.tools
        return parser.make(tags, submit.form.tools)


class Choice:
    """The state of one choice between steps."""

    def __init__(self, submit: Submit, decoding: Decoding) -> None:
        form = submit.form
        self.key = submit.key
        self.mailbox = submit.mailbox
        self.trail = submit.trail
        # When its newest token was delivered; its first has none before it.
        self.last_token_s: float | None = None
        self.ended = False
        # Ended here by a stop string, while the scheduler still runs it.
        self.stopped = False
        self.num_kept = 0
        self._vocabulary = decoding.vocabulary
        speller = decoding.vocabulary.spell_after(submit.prompt_ids)
        self._spell, self._spell_rest = speller.take, speller.rest
        self._parts = decoding.text.make(submit) if decoding.text is not None else None
        self._hidden = decoding.vocabulary.special if form.skip_special_tokens else frozenset()
        if self._parts is not None:
            self._hidden -= self._parts.tags
        self._keep_stop = form.keep_stop
        self._logprobs = submit.logprobs
        self._num_top = submit.num_top_logprobs
        self._reasoning = decoding.reasoning_of(submit)
        self._parse_reasoning = form.parse_reasoning and self._reasoning is not None
        self._hold_reasoning = not form.stream_reasoning
        self._tools = decoding.tools_of(submit)
        # A special token is no text, but a client may well name one as a stop string.
        self._stop_tokens = {
            decoding.vocabulary.added[stop]: stop
            for stop in submit.stop
            if decoding.vocabulary.added.get(stop) in self._hidden
        }
        self._visible = Visible(
            stop_finder(submit.stop, form.keep_stop, submit.stop_regex) if submit.has_text_stops else None,
            Blanks() if self._tools is not None else None,
        )
        # Tokens during which stops end nothing.
        self._num_unheeded = form.stops_after_tokens if submit.has_text_stops else 0
        self._visible.heed_stops(not self._num_unheeded)
        self._matched: str | None = None
        self._utf8 = Utf8()
        self._reasoning_held: list[str] = []
        self._num_taken = 0
        # Of a row whose logprobs are wanted: whether each of its ids went to the visible answer.
        self._are_visible: list[bool] = []
        self._said: list[_Said] = []
        self._clear()

    def take(self, row: TokensRow) -> tuple[Event, ...]:
        """Return the events of one row: mostly one Delta, and an Ended when the choice ends by it."""
        if self.ended:
            return ()
        if not row.token_ids and row.finish is None:
            return (Delta(self.key.choice, (), usage=row.usage),)
        used = self._num_taken = self._take_ids(row)
        finish = row.finish
        if finish is not None or self._matched is not None:
            self._flush()
        if self._matched is not None:
            finish = Finish("stop", matched=self._matched)
        events = self._deltas(row)
        if row.prompt is not None:
            events = self._with_prompt(events, row, row.prompt)
        if finish is None:
            return events
        self.ended = True
        usage = self._usage(row, used, self._reasoning_tokens())
        self.stopped = self._matched is not None and row.finish is None
        # What completed the stop string is no part of the answer, unless it was to be kept.
        self.num_kept = usage.completion_tokens - (0 if self._keep_stop else 1)
        return (*events, Ended(self.key.choice, finish, usage))

    def _take_ids(self, row: TokensRow) -> int:
        """Take a row's ids up to the one that completes a stop string, giving how many were taken."""
        last = len(row.token_ids)
        stop_id = row.finish.matched if row.finish is not None and not self._keep_stop else None
        self._are_visible.clear()
        for number, token_id in enumerate(row.token_ids, start=1):
            self._num_taken = number - 1
            hidden = number == last and token_id == stop_id
            piece = b"" if hidden or token_id in self._hidden else self._spell(token_id)
            is_visible = self._take_id(token_id, piece)
            if self._logprobs:
                self._are_visible.append(is_visible)
            if self._num_unheeded:
                self._num_unheeded -= 1
                self._visible.heed_stops(not self._num_unheeded)
            if self._matched is not None:
                return number
        return last

    def _take_id(self, token_id: int, piece: bytes) -> bool:
        """Take one id to its place, and say whether that is the visible answer."""
        if self._parts is not None:
            parts = self._parts.take(piece, self._vocabulary.piece(token_id))
            self._say(parts)
            self._match_stop_token(token_id)
            # What a parser of text still holds back may become text, and mostly does.
            return bool(piece) and all(isinstance(part, str) for part in parts)
        if self._tools is not None and self._tools.active:
            self._calls.extend(self._tools.take(token_id, piece) or ())
            return False
        if self._reasoning is not None and self._took_reasoning(self._reasoning, token_id, piece):
            return False
        if self._tools is not None:
            sent = self._tools.take(token_id, piece)
            if sent is not None:
                self._show(self._visible.begin_call())
                self._calls.extend(sent)
                return False
        self._show(self._visible.push(piece))
        self._match_stop_token(token_id)
        return bool(piece)

    def _match_stop_token(self, token_id: int) -> None:
        if self._matched is None and token_id in self._stop_tokens and not self._num_unheeded:
            self._matched = self._stop_tokens[token_id]

    def _say(self, parts: Iterable[Part]) -> None:
        """Take what parsers of text told apart, up to a stop."""
        for part in parts:
            if self._visible.matched is not None:
                return
            if isinstance(part, Thought):
                self._reason(part.text)
                continue
            if self._reasoning_held:
                self._end_reasoning()
            if isinstance(part, str):
                self._show(self._visible.push_text(part))
            else:
                self._show(self._visible.begin_call())
                self._calls.append(part)

    def _took_reasoning(self, reasoning: Reasoning, token_id: int, piece: bytes) -> bool:
        was_active = reasoning.active
        is_tag = reasoning.take(token_id)
        if not self._parse_reasoning:
            return False
        if was_active and not reasoning.active:
            self._end_reasoning()
        elif reasoning.active and not is_tag:
            self._reason(self._utf8.push(piece))
            return True
        return is_tag

    def _show(self, text: str) -> None:
        if text and self._calls:
            self._cut()
        self._text += text
        self._matched = self._matched or self._visible.matched

    def _reason(self, text: str) -> None:
        if self._hold_reasoning:
            self._reasoning_held.append(text)
        else:
            self._say_reasoning(text)

    def _end_reasoning(self) -> None:
        self._say_reasoning("".join(self._reasoning_held) + self._utf8.flush())
        self._reasoning_held.clear()

    def _say_reasoning(self, text: str) -> None:
        if text and (self._text or self._calls):
            self._cut()
        self._reasoned += text

    def _flush(self) -> None:
        rest = self._spell_rest()
        if self._parts is not None:
            self._say(self._parts.flush(rest))
        elif rest:
            self._take_rest(rest)
        self._end_reasoning()
        self._show(self._visible.flush())

    def _take_rest(self, piece: bytes) -> None:
        """Take what no id is left for to where the last one went."""
        if self._tools is not None and self._tools.active:
            return
        if self._parse_reasoning and self._reasoning is not None and self._reasoning.active:
            self._reason(self._utf8.push(piece))
        else:
            self._show(self._visible.push(piece))

    def _cut(self) -> None:
        """Put by what there is as a Delta of its own: what comes next would else stand in front of it."""
        calls = self._take_calls()
        self._said.append(_Said(self._text, self._reasoned, calls, self._num_taken, self._reasoning_tokens()))
        self._clear()

    def _take_calls(self) -> tuple[ToolCallDelta, ...]:
        if self._calls and self.trail is not None:
            self.trail.has_called = True
        return _merged(self._calls)

    def _clear(self) -> None:
        self._text = ""
        self._reasoned = ""
        self._calls: list[ToolCallDelta] = []

    def _deltas(self, row: TokensRow) -> tuple[Event, ...]:
        """Return what was said since the last row, and forget it."""
        if self._said:
            self._cut()
            starts = (0, *(said.num_taken for said in self._said))
            pairs = zip(starts, self._said, strict=False)
            deltas = tuple(self._delta(row, start, said) for start, said in pairs if _is_something(start, said))
            self._said.clear()
            return deltas
        taken = self._num_taken
        if not (taken or self._text or self._reasoned or self._calls):
            return ()
        delta = Delta(
            choice=self.key.choice,
            token_ids=row.token_ids[:taken],
            text=self._text,
            reasoning=self._reasoned,
            tool_calls=self._take_calls() if self._calls else (),
            logprobs=self._entries(row, 0, taken) if self._logprobs else (),
            usage=self._usage(row, taken, self._reasoning_tokens()),
        )
        self._clear()
        return (delta,)

    def _delta(self, row: TokensRow, start: int, said: _Said) -> Delta:
        end = said.num_taken
        return Delta(
            choice=self.key.choice,
            token_ids=row.token_ids[start:end],
            text=said.text,
            reasoning=said.reasoning,
            tool_calls=said.calls,
            logprobs=self._entries(row, start, end) if self._logprobs else (),
            usage=self._usage(row, end, said.reasoning_tokens),
        )

    def _reasoning_tokens(self) -> int:
        if self._parts is not None:
            return self._parts.num_reasoning
        return self._reasoning.num_tokens if self._reasoning is not None else 0

    def _usage(self, row: TokensRow, used: int, reasoning_tokens: int) -> Usage:
        unused = len(row.token_ids) - used
        if not unused and not reasoning_tokens:
            return row.usage
        return evolve(
            row.usage,
            completion_tokens=row.usage.completion_tokens - unused,
            reasoning_tokens=reasoning_tokens,
        )

    def _with_prompt(self, events: tuple[Event, ...], row: TokensRow, scores: PromptScores) -> tuple[Event, ...]:
        """Return the events with the prompt's logprobs in the first Delta, which is one of its own if there is none."""
        first, *others = events or (Delta(self.key.choice, (), usage=row.usage),)
        assert isinstance(first, Delta), "an end comes behind the Deltas"
        return (evolve(first, prompt_logprobs=self._prompt_entries(row.submit, scores)), *others)

    def _prompt_entries(self, submit: Submit, scores: PromptScores) -> tuple[TokenLogprob, ...]:
        token_ids, piece = submit.prompt_ids[submit.prompt_logprobs_from :], self._vocabulary.piece
        wanted = (
            [self._named(values, submit) for values in scores.wanted.tolist()]
            if scores.wanted is not None
            else [()] * len(scores.logprobs)
        )
        columns = (token_ids[1:], scores.logprobs.tolist(), scores.top_ids.tolist(), scores.top_logprobs.tolist())
        # Nothing is known of the first one.
        return tuple(TokenLogprob(token_id, math.nan, piece(token_id)) for token_id in token_ids[:1]) + tuple(
            TokenLogprob(
                token_id,
                logprob,
                piece(token_id),
                tuple((other, value, piece(other)) for other, value in zip(ids, values, strict=True)),
                named,
            )
            for token_id, logprob, ids, values, named in zip(*columns, wanted, strict=True)
        )

    def _named(self, values: Sequence[float], submit: Submit) -> tuple[tuple[int, float, bytes], ...]:
        """Return the logprobs of the ids that the choice names, with the ids."""
        piece = self._vocabulary.piece
        ids = submit.logprob_token_ids
        return tuple((token_id, value, piece(token_id)) for token_id, value in zip(ids, values, strict=True))

    def _entries(self, row: TokensRow, start: int, end: int) -> tuple[TokenLogprob, ...]:
        piece = self._vocabulary.piece
        tops = row.top or ((),) * len(row.token_ids)
        wanted = [self._named(values, row.submit) for values in row.wanted] or [()] * len(row.token_ids)
        return tuple(
            TokenLogprob(
                token_id,
                logprob,
                piece(token_id),
                tuple((other, value, piece(other)) for other, value in top[: self._num_top]),
                named,
                is_visible,
            )
            for token_id, logprob, top, named, is_visible in zip(
                row.token_ids[start:end],
                row.logprobs[start:],
                tops[start:],
                wanted[start:],
                self._are_visible[start:],
                strict=False,
            )
        )


def _is_something(start: int, said: _Said) -> bool:
    return bool(said.num_taken > start or said.text or said.reasoning or said.calls)


def _merged(calls: Iterable[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Return the pieces with neighbouring arguments of one call joined."""
    merged: list[ToolCallDelta] = []
    for call in calls:
        if merged and call.name is None and merged[-1].name is None and merged[-1].index == call.index:
            merged[-1] = ToolCallDelta(call.index, arguments=merged[-1].arguments + call.arguments)
        else:
            merged.append(call)
    return tuple(merged)
