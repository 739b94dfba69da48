"""The many ways to say what the visible text must be, to one TextGrammar.

OpenAI's response_format, vLLM's structured_outputs and its older guided_* fields, SGLang's json_schema, regex, ebnf and
structural_tag. One at most: two that are given are an error that names both. Whether a schema, a pattern or a grammar
is one that can be enforced is the grammar stage's to say.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import orjson
from attrs import evolve, field, frozen

from stages.errors import InvalidRequest
from stages.ingress.dialects.fields import clean_json, shown
from stages.messages import TextGrammar

# A field by its path, and the grammar it asks for.
Found = tuple[str, TextGrammar]
Kind = Literal["json_schema", "json_object", "regex", "ebnf", "structural_tag", "choice"]

FORMATS = ("text", "json_object", "json_schema")
ANY_JSON = "$$ANY$$"
# What a schema holds that is no schema.
_VALUES = ("enum", "const", "default", "examples")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@frozen(kw_only=True)
class StructuredOutputs:
    """vLLM's structured_outputs: exactly one kind of grammar, and how JSON is written; disable_fallback is ignored."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


@frozen(kw_only=True, slots=False)  # of two bases of a class only one may have slots
class GrammarFields:
    """The fields; a wire class of a request's body inherits them. Empty strings of SGLang's ask for nothing."""

    structured_outputs: StructuredOutputs | None = field(default=None, metadata=shown(needs="structured_outputs"))
    guided_json: str | dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    guided_regex: str | None = field(default=None, metadata=shown(needs="structured_outputs"))
    guided_choice: list[str] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    guided_grammar: str | None = field(default=None, metadata=shown(needs="structured_outputs"))
    guided_json_object: bool | None = field(default=None, metadata=shown(needs="structured_outputs"))
    json_schema: str | dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    regex: str | None = field(default=None, metadata=shown(needs="structured_outputs"))
    ebnf: str | None = field(default=None, metadata=shown(needs="structured_outputs"))
    structural_tag: str | dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))


def read_grammar(body: GrammarFields, form: Found | None, *, after_reasoning: bool) -> Found | None:
    """Return the one grammar of a body, `form` being what its format field asks for; raises InvalidRequest for two."""
    found = [*([form] if form is not None else []), *_structured(body.structured_outputs), *_guided(body)]
    for name in ("json_schema", "regex", "ebnf", "structural_tag"):
        found += _plain(name, name, getattr(body, name))
    if not found:
        return None
    if len(found) > 1:
        (first, _), (second, _), *_ = found
        raise _wrong(second, f"{first} and {second} cannot both be given: one grammar at most.")
    ((name, grammar),) = found
    return name, evolve(grammar, after_reasoning=after_reasoning)


def read_format(raw: Mapping[str, Any] | None, path: str, *, is_flat: bool = False) -> Found | None:
    """Return what a response_format asks for, None for plain text; raises InvalidRequest naming what is wrong.

    One that is flat has the schema beside its type, as the Responses API and the Messages API have it.
    """
    if raw is None:
        return None
    kinds = FORMATS if is_flat else (*FORMATS, "structural_tag")
    kind = raw.get("type")
    if kind not in kinds:
        raise _wrong(f"{path}.type", f"{path}.type must be one of {', '.join(kinds)}.")
    if kind == "text":
        return None
    if kind == "json_object":
        return path, TextGrammar("json_object")
    if kind == "structural_tag":
        return path, TextGrammar("structural_tag", _text(raw))
    spec: Any = raw if is_flat else raw.get("json_schema")
    inner = path if is_flat else f"{path}.json_schema"
    if not isinstance(spec, dict):
        raise _wrong(inner, f"{inner} must be an object with a schema.")
    if not isinstance(spec.get("strict"), bool | None):
        raise _wrong(f"{inner}.strict", f"{inner}.strict must be a boolean.")
    schema: Any = spec.get("schema")
    if schema is None:
        raise _wrong(f"{inner}.schema", "schema_ is required for json_schema response format request.")
    if not isinstance(schema, dict | bool):
        raise _wrong(f"{inner}.schema", f"{inner}.schema must be an object.")
    return path, TextGrammar("json_schema", _text(schema))


def json_text(value: str | Mapping[str, Any], path: str) -> str:
    """Return JSON given as a value or as its text, as text; raises InvalidRequest for a text that is none."""
    if not isinstance(value, str):
        return _text(value)
    if value != ANY_JSON:
        try:
            orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise _wrong(path, f"{path} is not valid JSON: {error}") from None
    return value


def _structured(given: StructuredOutputs | None) -> Iterator[Found]:
    if given is None:
        return
    path = "structured_outputs"
    if given.whitespace_pattern is not None:
        name = f"{path}.whitespace_pattern"
        raise InvalidRequest(f"{name} is not supported by this server.", name, "unsupported_parameter")
    kinds = {
        "json": given.json,
        "regex": given.regex,
        "choice": given.choice,
        "grammar": given.grammar,
        "json_object": given.json_object,
        "structural_tag": given.structural_tag,
    }
    names = [f"{path}.{name}" for name, value in kinds.items() if value is not None]
    if len(names) > 1:
        raise _wrong(names[1], f"{names[0]} and {names[1]} cannot both be given: one grammar at most.")
    if not names:
        raise _wrong(path, f"{path} must hold one of {', '.join(kinds)}.")
    for name, value in kinds.items():
        for at, grammar in _vllm(f"{path}.{name}", name, value):
            yield at, _with_options(at, grammar, given)


def _guided(body: GrammarFields) -> Iterator[Found]:
    for name in ("json", "regex", "choice", "grammar", "json_object"):
        yield from _vllm(f"guided_{name}", name, getattr(body, f"guided_{name}"))


def _vllm(path: str, name: str, value: Any) -> Iterator[Found]:
    """Yield what one of vLLM's fields asks for; an empty one, or a false one, is an error as it is there."""
    if value is None:
        return
    if value in ("", [], False):
        raise _wrong(path, f"{path} must be true." if value is False else f"{path} must not be empty.")
    if name == "json_object":
        yield path, TextGrammar("json_object")
    elif name == "choice":
        yield path, TextGrammar("choice", _text(value))
    else:
        yield from _plain(path, {"json": "json_schema", "grammar": "ebnf"}.get(name, name), value)


def _plain(path: str, kind: str, value: str | Mapping[str, Any] | None) -> Iterator[Found]:
    if value is None or value == "":
        return
    if kind == "json_schema":
        yield path, TextGrammar("json_schema", json_text(value, path))
    elif kind == "structural_tag":
        yield path, TextGrammar("structural_tag", json_text(value, path))
    else:
        # Invariant: patterns and grammars are strings in every wire class.
        assert isinstance(value, str)
        yield path, TextGrammar("regex" if kind == "regex" else "ebnf", value)


def _with_options(path: str, grammar: TextGrammar, given: StructuredOutputs) -> TextGrammar:
    text = grammar.text
    if given.disable_additional_properties and grammar.kind == "json_schema" and text != ANY_JSON:
        try:
            text = _dump(_closed(json.loads(text)))
        except RecursionError:
            raise _wrong(path, f"{path} nests too deep.") from None
    return evolve(grammar, text=text, any_whitespace=not given.disable_any_whitespace)


def _closed(schema: Any) -> Any:
    """Return a schema whose objects with named properties have no others, where it does not say itself."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed_under(name, value) for name, value in schema.items()}
    if ("properties" in schema or "patternProperties" in schema) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def _closed_under(name: str, value: Any) -> Any:
    if name in _VALUES:
        return value
    if name in _NAMED_SCHEMAS and isinstance(value, dict):
        return {key: _closed(item) for key, item in value.items()}
    return _closed(value)


def _text(value: Any) -> str:
    return _dump(clean_json(value))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _wrong(path: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, path, "invalid_value")
