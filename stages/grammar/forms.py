"""Grammars of tokens and text, written for either engine. Core.

    Form -> structural_tag(form): what xgrammar reads      lark(form): what llguidance reads

xgrammar's masks cost a tenth, so it is asked wherever it follows every schema of a form wholly.
"""

import json
from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from stages.grammar.matchers.llguidance import HEAD, ruled_schema
from stages.grammar.matchers.port import Source
from stages.grammar.schemas import is_plain


@frozen
class Token:
    """One token by its id."""

    token_id: int


@frozen
class Text:
    """Exactly this text."""

    text: str


@frozen
class FreeText:
    """Any text of ordinary tokens, of min_letters to max_letters characters."""

    min_letters: int = 0
    max_letters: int | None = None


@frozen(eq=False)
class Json:
    """JSON that follows a schema."""

    schema: Mapping[str, Any] | bool


@frozen(eq=False)
class Seq:
    """One after another."""

    parts: "tuple[Form, ...]"


@frozen(eq=False)
class Alt:
    """One of them."""

    parts: "tuple[Form, ...]"


@frozen(eq=False)
class Repeat:
    """So many times; None is as often as one likes."""

    part: "Form"
    least: int
    most: int | None


Form = Token | Text | FreeText | Json | Seq | Alt | Repeat


def source_of(form: Form) -> Source:
    """Return the source of a form for the engine that follows it."""
    if _fits_xgrammar(form):
        tag = {"type": "structural_tag", "format": _format(form)}
        return Source("xgrammar", "structural_tag", json.dumps(tag, ensure_ascii=False))
    return Source("llguidance", "lark", lark(form))


def _fits_xgrammar(form: Form) -> bool:
    match form:
        case Json(schema):
            return is_plain(schema)
        case FreeText():
            return form == FreeText()
        case Seq(parts) | Alt(parts):
            return all(map(_fits_xgrammar, parts))
        case Repeat(part):
            return _fits_xgrammar(part)
    return True


def _format(form: Form) -> dict[str, Any]:
    match form:
        case Token(token_id):
            return {"type": "token", "token": token_id}
        case Text(text):
            return {"type": "const_string", "value": text}
        case FreeText():
            return {"type": "any_text"}
        case Json(schema):
            return {"type": "json_schema", "json_schema": schema}
        case Seq(parts):
            # A sequence of nothing has no form of its own.
            filled = [part for part in parts if not (isinstance(part, Seq) and not part.parts)]
            return {"type": "sequence", "elements": [_format(part) for part in filled]}
        case Alt(parts):
            return {"type": "or", "elements": [_format(part) for part in parts]}
        case Repeat(part, least, most):
            return {"type": "repeat", "min": least, "max": -1 if most is None else most, "content": _format(part)}


def lark(form: Form) -> str:
    """Return a form as a Lark grammar."""
    grammar = _Lark()
    grammar.rules.insert(0, f"start: {grammar.written(form)}")
    return "\n".join([HEAD, *grammar.rules])


@define(eq=False)
class _Lark:
    """Rules so far; whatever is more than one symbol becomes a rule of its own."""

    rules: list[str] = field(factory=list)

    def written(self, form: Form) -> str:
        match form:
            case Token(token_id):
                return f"<[{token_id}]>"
            case Text(text):
                return _quoted(text)
            case FreeText(least, most):
                return self._rule(f"/(?s:.{{{least},{'' if most is None else most}}})/", is_terminal=True)
            case Json(schema):
                # A boolean has no room for the rules: any JSON, or none.
                ruled = {"allOf": [schema]} if isinstance(schema, bool) else schema
                return self._rule(ruled_schema(ruled))
            case Seq(parts):
                return self._rule(" ".join(self.written(part) for part in parts) or '""')
            case Alt(parts):
                return self._rule(" | ".join(self.written(part) for part in parts))
            case Repeat(part, least, most):
                return f"{self.written(part)}{{{least},{'' if most is None else most}}}"

    def _rule(self, body: str, *, is_terminal: bool = False) -> str:
        name = f"{'T' if is_terminal else 'r'}{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
