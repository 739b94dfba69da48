"""Tool calls as a grammar of tokens. Core.

    ( <tool_call> name ( <arg_key> key </arg_key> <arg_value> value </arg_value> )* </tool_call> )+

Theory of operation. The tags are single tokens, as the parser of calls reads them, and no value can spell one: the
text of a string argument is made of ordinary tokens only. Arguments come in the order in which the schema declares
them, each at most once and the required ones always, since only an order that is known lets a grammar count them;
undeclared ones come only where a schema declares none. A value is written as the parser types it: text as it is where
only a string may come, else JSON that follows the property's schema.

A strict tool's schema is followed or the request refused. Where a tool is not strict, what cannot be followed in one
property leaves that property at its types, and what cannot be followed in the whole leaves the arguments free; a tool
that may be called but need not be follows its schema only when it is strict.
"""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from stages.detokenizer.parsers.schema import STRING, parameter_kinds
from stages.errors import InvalidRequest
from stages.grammar.forms import Alt, Form, FreeText, Json, Repeat, Seq, Text, Token
from stages.grammar.schemas import FOLLOWED, UNFOLLOWED, followed, resolved
from stages.messages import Tool, ToolGrammar

CALL, END_CALL = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"
TAGS = (CALL, END_CALL, KEY, END_KEY, VALUE, END_VALUE)

# What of a schema's keywords may stand at the root of parameters.
_ROOT = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
_RAW = frozenset({"type", "enum", "const", "minLength", "maxLength"})


def calls_form(grammar: ToolGrammar, tags: Mapping[str, int]) -> Form:
    """Return the form of an answer's calls; raises InvalidRequest naming the tool and what cannot be followed in it."""
    tools = [tool for tool in grammar.tools if tool.name in grammar.names]
    if not tools:
        raise InvalidRequest("No tool may be called.", "tool_choice")
    tag = {name: Token(token_id) for name, token_id in tags.items()}
    calls = tuple(Seq((Text(tool.name), _arguments(tool, grammar, tag), tag[END_CALL])) for tool in tools)
    call = Seq((tag[CALL], Alt(calls)))
    return Repeat(call, 1, None if grammar.is_parallel else 1)


def loosened(grammar: ToolGrammar, refusal: Callable[[ToolGrammar], str | None]) -> ToolGrammar:
    """Return a grammar whose arguments are left at their types where `refusal` gives an engine's reason.

    Raises InvalidRequest naming tool and argument where the tool is strict.
    """
    tools = (_loosened(tool, grammar, refusal) if tool.name in grammar.names else tool for tool in grammar.tools)
    return evolve(grammar, tools=tuple(tools))


def _loosened(tool: Tool, grammar: ToolGrammar, refusal: Callable[[ToolGrammar], str | None]) -> Tool:
    parameters = tool.parameters or {}
    if _root_fault(parameters) is not None:
        return tool
    properties = dict(parameters.get("properties") or {})
    for name, schema in properties.items():
        alone = evolve(tool, parameters={**parameters, "properties": {name: schema}, "required": [name]})
        reason = refusal(evolve(grammar, tools=(alone,), names=(tool.name,)))
        if reason is None:
            continue
        if tool.is_strict:
            place = f"{_param(tool, grammar)}.properties.{name}"
            raise InvalidRequest(f"Tool {tool.name}, argument {name}: {reason}", place)
        properties[name] = _typed(parameters, name)
    return evolve(tool, parameters={**parameters, "properties": properties})


def _param(tool: Tool, grammar: ToolGrammar) -> str:
    return f"tools.{grammar.tools.index(tool)}.function.parameters"


def _typed(parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a property's types alone."""
    kinds = parameter_kinds(parameters, name)
    return {"type": sorted(kinds)} if kinds is not None else {}


def _arguments(tool: Tool, grammar: ToolGrammar, tag: Mapping[str, Token]) -> Form:
    if not tool.is_strict and not grammar.is_required:
        return _free(tag)
    parameters = dict(tool.parameters or {})
    param = _param(tool, grammar)
    wrong = _root_fault(parameters)
    if wrong is not None:
        if tool.is_strict:
            raise InvalidRequest(f"Tool {tool.name}: {wrong}", param)
        return _free(tag)
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    if not properties and (tool.parameters is not None and parameters.get("additionalProperties", True) is not False):
        return _free(tag)
    required = set(parameters.get("required") or ())
    return Seq(
        tuple(
            Repeat(_argument(name, _value(tool, name, parameters, param), tag), int(name in required), 1)
            for name in properties
        )
    )


def _root_fault(parameters: Mapping[str, Any]) -> str | None:
    """Return what in the whole of parameters cannot be followed, or None."""
    if others := sorted((set(parameters) & (FOLLOWED | UNFOLLOWED)) - _ROOT):
        return f"the keyword {others[0]} is not supported at the root of parameters"
    if parameters.get("type", "object") != "object":
        return "the type of parameters must be object"
    properties = parameters.get("properties") or {}
    if not isinstance(properties, Mapping):
        return "properties must be an object"
    if not all(name and name == name.strip() for name in properties):
        return "the name of a property must not begin or end with white space"
    missing = sorted(set(parameters.get("required") or ()) - set(properties))
    return f"the required property {missing[0]} is not declared" if missing else None


def _free(tag: Mapping[str, Token]) -> Form:
    """Return any arguments, as a model that nobody holds writes them."""
    return Repeat(Seq((tag[KEY], FreeText(1), tag[END_KEY], tag[VALUE], FreeText(), tag[END_VALUE])), 0, None)


def _argument(name: str, value: Form, tag: Mapping[str, Token]) -> Form:
    return Seq((tag[KEY], Text(name), tag[END_KEY], tag[VALUE], value, tag[END_VALUE]))


def _value(tool: Tool, name: str, parameters: Mapping[str, Any], param: str) -> Form:
    schema = parameters["properties"][name]
    kinds = parameter_kinds(parameters, name)
    place = f"{param}.properties.{name}"
    if kinds == STRING:
        raw = _raw(resolved(schema, parameters))
        if raw is not None:
            return raw
        if tool.is_strict:
            raise InvalidRequest(f"Tool {tool.name}: a string argument may have {', '.join(sorted(_RAW))} only.", place)
        return FreeText()
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    try:
        schema = followed(schema, place)
        return Json({**schema, **followed(definitions, place)} if isinstance(schema, Mapping) else schema)  # type: ignore[dict-item]
    except InvalidRequest as error:
        if tool.is_strict:
            raise InvalidRequest(f"Tool {tool.name}, argument {name}: {error.message}", place) from None
        return Json(_typed(parameters, name))


def _raw(schema: Any) -> Form | None:
    """Return the form of a string argument, which is written without quotes; None where that cannot be told."""
    if not isinstance(schema, Mapping) or (set(schema) & (FOLLOWED | UNFOLLOWED)) - _RAW:
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if type(least) is not int or (most is not None and type(most) is not int):
        return None
    if values is not None:
        texts = [value for value in values if isinstance(value, str) and least <= len(value) <= (most or len(value))]
        return Alt(tuple(Text(text) for text in dict.fromkeys(texts))) if texts else None
    return FreeText(least, most)
