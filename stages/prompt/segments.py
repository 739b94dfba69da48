"""What a template renders: control tokens by name, and text that never becomes one. Core.

Whoever writes a message may write `<|user|>` in it. Joined to one string that would open a new turn, so a template
keeps its own control tokens apart from everybody's text until both are ids.
"""

from collections.abc import Callable, Iterable

from attrs import frozen

from stages.messages import Chat


@frozen
class Control:
    """A control token by its text, one id of the vocabulary."""

    text: str


@frozen
class Marked:
    """A whole prompt of a text template, whose added tokens are control tokens except where `mark` breaks them.

    in_reasoning is whether generation begins inside the thinking block, None where the template does not say.
    """

    text: str
    mark: str | None = None
    in_reasoning: bool | None = None


Segment = Control | str
Template = Callable[[Chat], tuple[Segment, ...]]


def joined(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the segments with neighbouring texts joined and empty ones left out: what is encoded as one piece."""
    result: list[Segment] = []
    pieces: list[str] = []
    for segment in segments:
        if isinstance(segment, str):
            pieces.append(segment)
            continue
        _end_text(pieces, result)
        result.append(segment)
    _end_text(pieces, result)
    return tuple(result)


def _end_text(pieces: list[str], result: list[Segment]) -> None:
    text = "".join(pieces)
    if text:
        result.append(text)
    pieces.clear()


def as_text(segments: Iterable[Segment]) -> str:
    """Return the segments as the one string a text template would give."""
    return "".join(segment.text if isinstance(segment, Control) else segment for segment in segments)
