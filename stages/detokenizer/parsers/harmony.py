"""The channels of harmony, gpt-oss's form of an answer, taken as messages. Core.

    <|start|> role  <|channel|> channel [to=functions.name] [<|constrain|>json]  <|message|> text  <|end|>

The end is `<|call|>` behind a tool call and `<|return|>` behind an answer; role and recipient may stand in front of the
channel.
"""

import re

from attrs import frozen

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)

RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


@frozen
class Header:
    """What stands between a message's beginning and its text."""

    channel: str
    tool: str | None


def header_of(text: str) -> Header:
    """Return what a header says; text may hold its markers."""
    _, marker, rest = text.rpartition(CHANNEL)
    words = (rest if marker else "").split()
    channel = words[0] if words and not words[0].startswith("to=") else "final"
    recipient = RECIPIENT.search(text.replace(CONSTRAIN, " "))
    return Header(channel, recipient[1] if recipient is not None else None)
