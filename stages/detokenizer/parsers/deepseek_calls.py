"""DeepSeek's calls up to V3.1: JSON arguments in tags around each call and around all. Core.

begin  function separator name "```json" {...} "```"  end      V3
begin  name separator {...}  end                               V3.1
"""

from stages.detokenizer.parsers.calls import Calls, Format
from stages.detokenizer.parsers.json_calls import compact, members
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import checked_name

OPEN, CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKERS = (OPEN, CLOSE, BEGIN, SEPARATOR, END)
FENCE = "```"

_AFTER_HEAD, _BEFORE_JSON = markers(SEPARATOR, END), markers("{", END)


def deepseek_calls() -> Format:
    """Return the format of both versions."""
    return wrapped(Wrapper((OPEN,), (CLOSE,), (BEGIN,), (END,)), _body)


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    head, mark = yield from reader.until(_AFTER_HEAD)
    lead = ""
    if mark == SEPARATOR:
        lead, mark = yield from reader.until(_BEFORE_JSON)
    reader.unread(mark)
    if mark == END:
        raise Malformed
    name = checked_name(lead.split(FENCE)[0].strip() or head)
    arguments = yield from reader.json_text()
    members(arguments)
    calls.call(name, compact(arguments))
    yield from reader.next_is(FENCE)
    yield from reader.close(markers(END))
