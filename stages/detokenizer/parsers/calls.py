"""What a text parser of tool calls says, and how one is run. Core.

# Invariant: whitespace alone between two calls, or alone behind the last one, is no text; all other text is kept.
"""

from collections.abc import Callable, Mapping

from attrs import define, field

from stages.detokenizer.parsers.markers import Markers
from stages.detokenizer.parsers.reader import Reader, Steps, Truncated
from stages.messages import Tool, ToolCallDelta

Said = str | ToolCallDelta


@define(eq=False)
class Calls:
    """The text and calls one choice has said; is_inside tells a call's markup from text."""

    tools: Mapping[str, Tool]
    is_inside: bool = False
    num_calls: int = 0
    _said: list[Said] = field(factory=list, init=False)
    _blank: str = field(default="", init=False)
    _is_after_call: bool = field(default=False, init=False)

    def say(self, text: str) -> None:
        """Add text."""
        if self._is_after_call:
            self._blank += text
            if not self._blank.strip():
                return
            text, self._blank, self._is_after_call = self._blank, "", False
        if text:
            self._said.append(text)

    def call(self, name: str, arguments: str, call_id: str | None = None) -> None:
        """Add a whole call; arguments is a JSON object's text."""
        self._blank, self._is_after_call = "", True
        self._said.append(ToolCallDelta(self.num_calls, name, arguments, call_id))
        self.num_calls += 1

    def taken(self) -> tuple[Said, ...]:
        """Return what was said since the last time."""
        said = tuple(self._said)
        self._said.clear()
        return said


# A format: reads all of an answer's text, and says what it holds.
Format = Callable[[Reader, Calls], Steps[None]]


@define(eq=False)
class TextToolCalls:
    """One choice's way through its text."""

    _reader: Reader
    _calls: Calls
    _steps: Steps[None]

    @property
    def active(self) -> bool:
        """Whether the next character belongs to a call."""
        return self._calls.is_inside

    def push(self, text: str) -> tuple[Said, ...]:
        """Move over text and return what it adds."""
        self._reader.text += text
        next(self._steps, None)
        return self._calls.taken()

    def flush(self) -> tuple[Said, ...]:
        """Return what was held back, at the end."""
        self._reader.ended = True
        next(self._steps, None)
        return self._calls.taken()


def run_format(read: Format, tools: tuple[Tool, ...]) -> TextToolCalls:
    """Return a fresh automaton of a format."""
    reader, calls = Reader(), Calls({tool.name: tool for tool in tools})
    return TextToolCalls(reader, calls, _to_the_end(read, reader, calls))


def _to_the_end(read: Format, reader: Reader, calls: Calls) -> Steps[None]:
    try:
        yield from read(reader, calls)
    except Truncated:
        # What a call had come to is dropped: half of it is none.
        calls.is_inside = False


def prose(reader: Reader, calls: Calls, stops: Markers) -> Steps[str]:
    """Say the text up to the first of the markers as it comes, and read over that one, giving which."""
    calls.is_inside = False
    while True:
        at, marker = stops.find(reader.text, reader.ended)
        calls.say(reader.take(at))
        reader.mark()
        if marker:
            reader.take(len(marker))
            calls.is_inside = True
            return marker
        yield from reader.more()
