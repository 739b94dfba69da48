"""Makes a tool parser of a format. Core."""

from functools import partial

from stages.detokenizer.parsers.calls import Format, run_format
from stages.detokenizer.parsers.port import TextToolParser


def text_tool_parser(name: str, markers: tuple[str, ...], read: Format) -> TextToolParser:
    """Return the parser of that name, the markers all that the format can meet."""
    return TextToolParser(name, markers, partial(run_format, read))
