"""A tool call's argument as the model wrote it, as JSON of a type its schema allows. Core.

The text of a value is read as JSON, then as a Python literal, then as what a JSON string of it holds ("5" in quotes);
the first reading of an allowed type wins, and where strings are allowed the text itself is the last of them. When no
reading is allowed, the first there was is passed on: the tool says better than we what is wrong with it.

# Invariant: a number's digits are never rewritten, so integers beyond 2**53 and long decimals stay exact; the one
# exception is a whole float (5.0) for an integer.
"""

import ast
import json
import warnings
from collections.abc import Iterator

from attrs import frozen

from stages.detokenizer.parsers.schema import Kinds, kind_of

MAX_LITERAL_CHARS = 10_000


@frozen
class Reading:
    """One way to read a value: its JSON type and its JSON text."""

    kind: str
    json_text: str


def argument_json(text: str, kinds: Kinds | None) -> str:
    """Return a value's text as JSON text of one of the kinds, or of any kind when None."""
    readings = list(_readings(text))
    for reading in readings:
        fitting = _fitted(reading, kinds)
        if fitting is not None:
            return fitting
    if readings and kinds is not None and "string" not in kinds:
        return readings[0].json_text
    return json_string(text)


def json_string(text: str) -> str:
    """Return text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def json_characters(text: str) -> str:
    """Return text as it stands inside a JSON string; pieces escaped one by one join to the whole's escape."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _fitted(reading: Reading, kinds: Kinds | None) -> str | None:
    if kinds is None or reading.kind in kinds:
        return reading.json_text
    if reading.kind == "integer" and "number" in kinds:
        return reading.json_text
    if reading.kind == "number" and "integer" in kinds:
        value = float(reading.json_text)
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else None
    return None


def _readings(text: str) -> Iterator[Reading]:
    text = text.strip()
    value = _from_json(text)
    if value is not None:
        yield value
    literal = _from_literal(text)
    if literal is not None:
        yield literal
    if value is not None and value.kind == "string":
        inner = _from_json(json.loads(text).strip())
        if inner is not None and inner.kind != "string":
            yield inner


def _from_json(text: str) -> Reading | None:
    try:
        # Integers are only told from floats here, so any int will do: some have more digits than Python converts.
        value = json.loads(text, parse_constant=_refuse, parse_int=len)
    except (ValueError, RecursionError):
        return None
    return Reading(kind_of(value), text)


def _from_literal(text: str) -> Reading | None:
    if len(text) > MAX_LITERAL_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model's escapes are not this program's
            value = ast.literal_eval(text)
        return Reading(kind_of(value), json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
