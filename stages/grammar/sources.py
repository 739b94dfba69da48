"""What a constraint compiles to: which engine, and what it reads. Core; runs in a worker process."""

import json
import re
from collections.abc import Mapping
from typing import Any

from stages.errors import InvalidRequest
from stages.grammar.forms import source_of
from stages.grammar.matchers.port import Source
from stages.grammar.schemas import followed, is_plain, read_schema
from stages.grammar.tokens import GrammarTokens, spells_tag
from stages.grammar.tools import TAGS, calls_form
from stages.messages import Constraint, TextGrammar, ToolGrammar

# What SGLang calls a kind where one fails to compile.
NAMES = {"json_schema": "json", "json_object": "json", "choice": "choice", "regex": "regex", "ebnf": "ebnf"}
MAX_CHOICES = 10_000


def constraint_source(constraint: Constraint, tokens: GrammarTokens) -> Source:
    """Return the source of a constraint; raises InvalidRequest naming what cannot be followed."""
    if isinstance(constraint, ToolGrammar):
        missing = [tag for tag in TAGS if tag not in tokens.added]
        if missing:
            raise InvalidRequest(f"This model has no token {missing[0]} to call tools with.", "tools")
        return source_of(calls_form(constraint, {tag: tokens.added[tag] for tag in TAGS}))
    return _text_source(constraint, tokens)


def kind_name(constraint: Constraint) -> str:
    """Return what a constraint's kind is called in an error."""
    return "tool" if isinstance(constraint, ToolGrammar) else NAMES.get(constraint.kind, constraint.kind)


def _text_source(grammar: TextGrammar, tokens: GrammarTokens) -> Source:
    match grammar.kind:
        case "json_object":
            return _json_source({"type": "object"}, is_compact=not grammar.any_whitespace)
        case "json_schema":
            schema = followed(read_schema(grammar.text, "json_schema"), "json_schema")
            return _json_source(schema, is_compact=not grammar.any_whitespace)
        case "regex":
            return Source("llguidance", "regex", grammar.text)
        case "choice":
            return Source("llguidance", "regex", "|".join(re.escape(text) for text in _choices(grammar.text)))
        case "ebnf":
            return Source("xgrammar", "ebnf", grammar.text, has_tags=spells_tag(grammar.text, tokens))
        case "structural_tag":
            return _structural_tag(grammar.text, tokens)


def _json_source(schema: Mapping[str, Any] | bool, *, is_compact: bool) -> Source:
    if schema is False:
        raise InvalidRequest("Failed to compile json grammar: the schema false allows nothing.", "json_schema")
    if schema is True:
        schema = {}
    engine = "xgrammar" if is_plain(schema) else "llguidance"
    text = json.dumps(schema, ensure_ascii=False)
    return Source(engine, "compact_json_schema" if is_compact else "json_schema", text)  # type: ignore[arg-type]


def _choices(text: str) -> list[str]:
    try:
        choices = json.loads(text)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise InvalidRequest("Failed to compile choice grammar: it must be a list of strings.", "choice")
    if not 0 < len(choices) <= MAX_CHOICES or "" in choices:
        raise InvalidRequest(
            f"Failed to compile choice grammar: it must be 1 to {MAX_CHOICES} strings that are not empty.", "choice"
        )
    return choices


def _structural_tag(text: str, tokens: GrammarTokens) -> Source:
    """Return the source of a structural tag, new or legacy, whose schemas xgrammar follows wholly."""
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"Failed to compile structural_tag grammar: not JSON: {error}", "structural_tag") from None
    if not isinstance(tag, dict):
        raise InvalidRequest("Failed to compile structural_tag grammar: it must be a JSON object.", "structural_tag")
    if "structures" in tag:
        tag = _renewed(tag)
    for path, schema in _schemas_in(tag, "#"):
        if not is_plain(followed(schema, "structural_tag")):
            raise InvalidRequest(
                f"Failed to compile structural_tag grammar: {path}: inside structural tags a schema gives one type for "
                "each value, declares all properties with additionalProperties false, and may have required, enum, "
                "const, anyOf, $ref, items, minItems, maxItems, minimum and maximum.",
                "structural_tag",
            )
    source = json.dumps(tag, ensure_ascii=False)
    return Source("xgrammar", "structural_tag", source, has_tags=spells_tag(source, tokens))


def _renewed(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Return a legacy structural tag in the new form."""
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise InvalidRequest(
            "Failed to compile structural_tag grammar: structures and triggers must be lists.", "structural_tag"
        )
    tags = [
        {
            "type": "tag",
            "begin": each.get("begin"),
            "content": {"type": "json_schema", "json_schema": each.get("schema", {})},
            "end": each.get("end"),
        }
        for each in structures
        if isinstance(each, dict)
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


def _schemas_in(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [each for index, part in enumerate(value) for each in _schemas_in(part, f"{path}/{index}")]
    if not isinstance(value, dict):
        return []
    found = [(f"{path}/json_schema", value["json_schema"])] if "json_schema" in value else []
    parts = ((name, part) for name, part in value.items() if name != "json_schema")
    return found + [each for name, part in parts for each in _schemas_in(part, f"{path}/{name}")]
