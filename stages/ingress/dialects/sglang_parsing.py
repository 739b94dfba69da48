"""`POST /parse_function_call` and `/separate_reasoning`: SGLang's routes that take an answer's text apart.

The text is one a client kept of `/generate` or `/v1/completions`; the parsers are the ones that serve chat. A text that
closes a thinking block it never opened began inside it, as answers to a chat prompt do.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attrs import field, frozen

from stages.ingress.dialect import BodyForm, Call, Dialect, Lookup, Route
from stages.ingress.dialects.fields import shown
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.ingress.dialects.openai_tools import WireTool, read_tools
from stages.ingress.error_bodies import flat_error
from stages.messages import ParsedText, ParseText, WorkDone
from stages.settings import ModelSettings


@frozen(kw_only=True)
class ParseFunctionCallBody:
    """The body of /parse_function_call."""

    text: str
    tools: list[Any] | None = field(default=None, metadata=shown(items=WireTool))
    tool_call_parser: str | None = None


@frozen(kw_only=True)
class SeparateReasoningBody:
    """The body of /separate_reasoning."""

    text: str
    reasoning_parser: str | None = None
    return_blocks: bool = False


def parse(call: Call, model: ModelSettings) -> Lookup:
    """Return the question asked; raises InvalidRequest naming the field."""
    if call.path.rstrip("/").endswith("/parse_function_call"):
        return _calls(read_body(ParseFunctionCallBody, call.body), model)
    return _reasoning(read_body(SeparateReasoningBody, call.body), model)


def _calls(body: ParseFunctionCallBody, model: ModelSettings) -> Lookup:
    tools = read_tools(body.tools)
    parser = _parser("tool_call_parser", body.tool_call_parser, model.tool_call_parser)
    indices = {tool.name: index for index, tool in enumerate(tools)}
    work = ParseText(body.text, model.context_length_tokens, tool_parser=parser, tools=tools)
    return Lookup((work,), partial(_calls_json, indices))


def _calls_json(indices: Mapping[str, int], done: Sequence[WorkDone]) -> dict[str, object]:
    parsed = _parsed(done)
    return {
        "normal_text": "".join(block.text for block in parsed.blocks),
        "calls": [
            # The tool's place in the list that was sent; -1 for one that is not there.
            {"tool_index": indices.get(call.name or "", -1), "name": call.name, "parameters": call.arguments}
            for call in parsed.calls
        ],
    }


def _reasoning(body: SeparateReasoningBody, model: ModelSettings) -> Lookup:
    parser = _parser("reasoning_parser", body.reasoning_parser, model.reasoning_parser)
    work = ParseText(body.text, model.context_length_tokens, reasoning_parser=parser)
    return Lookup((work,), partial(_reasoning_json, body.return_blocks))


def _reasoning_json(with_blocks: bool, done: Sequence[WorkDone]) -> dict[str, object]:
    blocks = _parsed(done).blocks
    of_kind = {kind: [block.text for block in blocks if block.kind == kind] for kind in ("reasoning", "text")}
    answer: dict[str, object] = {"reasoning_text": "".join(of_kind["reasoning"]), "text": "".join(of_kind["text"])}
    if with_blocks:
        answer["reasoning_blocks"] = of_kind["reasoning"]
        answer["text_blocks"] = of_kind["text"]
        answer["blocks"] = [{"type": block.kind, "text": block.text} for block in blocks]
    return answer


def _parser(name: str, wanted: str | None, served: str | None) -> str:
    parser = served if wanted in (None, "", "auto") else wanted
    if parser is None:
        raise invalid(name, f"This server has no parser of its own; name one in {name}.")
    return parser


def _parsed(done: Sequence[WorkDone]) -> ParsedText:
    (parsed,) = done
    # Invariant: a ParseText is answered with a ParsedText.
    assert isinstance(parsed, ParsedText)
    return parsed


CALL_SAMPLES = tuple(
    {"text": text, "tools": [{"type": "function", "function": {"name": "f"}}]} for text in ("plain", "calls")
)
REASONING_SAMPLES: tuple[Mapping[str, Any], ...] = (
    {"text": "plain"},
    {"text": "reasoned"},
    {"text": "reasoned", "return_blocks": True},
)

DIALECT = Dialect(
    name="sglang_parsing",
    routes=(
        Route("/parse_function_call", form=BodyForm((ParseFunctionCallBody,)), samples=CALL_SAMPLES),
        Route("/separate_reasoning", form=BodyForm((SeparateReasoningBody,)), samples=REASONING_SAMPLES),
    ),
    parse=parse,
    error=flat_error,
    json_only=False,
    generates=False,
)
