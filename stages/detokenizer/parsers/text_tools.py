"""Makes a tool parser of a format. Core."""

from stages.detokenizer.parsers.calls import Calls, Format, TextToolCalls, run_format
from stages.detokenizer.parsers.json_calls import required_calls
from stages.detokenizer.parsers.port import TextToolParser
from stages.detokenizer.parsers.reader import Reader, Steps
from stages.messages import Tool


def text_tool_parser(name: str, markers: tuple[str, ...], read: Format) -> TextToolParser:
    """Return the parser of that name, the markers all that the format can meet."""

    def read_required(reader: Reader, calls: Calls) -> Steps[None]:
        yield from required_calls(reader, calls)
        yield from read(reader, calls)

    def make(tools: tuple[Tool, ...], is_required: bool) -> TextToolCalls:
        return run_format(read_required if is_required else read, tools)

    return TextToolParser(name, markers, make)
