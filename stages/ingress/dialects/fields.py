"""Strict reading of JSON into attrs classes: no value is ever converted, and every complaint names its dotted field.

A wire class lists the fields a dialect knows; `read` fills it and leaves unknown keys alone. Rules for all of them:
an explicit null is an absent field; true is not an integer and "0.7" is not a number; an integer is fine where a float
is wanted; integers are 64-bit. What is wrong is told by FieldError, which each dialect words in its own way
(`in_words` for people, `in_serde` as SGLang's gate has it).
"""

import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, NewType, TypeVar

import attrs
import cattrs

Unsigned = NewType("Unsigned", int)

T = TypeVar("T")
# A flag of the server, as ModelSettings has it.
Flag = Literal["structured_outputs", "penalties"]
Hook = Callable[[Any, Any], Any]

# Above what ingress lets a body nest, far below what the interpreter's stack bears.
MAX_DEPTH = 160
# Calls of the interpreter's own functions hold its lock: so many items are a millisecond.
NUM_AT_A_TIME = 32_768
INT64_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1

_WORDS = {
    "f64": "a number",
    "i64": "an integer",
    "u64": "an integer that is not negative",
    "a sequence": "a list",
    "a map": "an object",
}


class FieldError(Exception):
    """A value of the wrong type: where it stands, the value, and the expected kind in serde's words."""

    def __init__(self, value: object, expected: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(expected)
        self.value = value
        self.expected = expected
        self.path = path

    def under(self, name: str | int) -> "FieldError":
        """Return the same error one level further out."""
        return FieldError(self.value, self.expected, (str(name), *self.path))

    @property
    def param(self) -> str:
        """Return the dotted path of the field."""
        return ".".join(self.path)

    def in_words(self) -> str:
        """Return a sentence for people: which field, what it should be and what it is."""
        expected = " or ".join(_WORDS.get(kind, kind) for kind in self.expected.split(" or "))
        return f"{self.param} must be {expected}, got {_kind_in_words(self.value)}."

    def in_serde(self) -> str:
        """Return the complaint in the words of SGLang's contract gate, the field at its end."""
        wrong = "value" if _is_integer(self.value) and self.expected in ("i64", "u64") else "type"
        return f"invalid {wrong}: {_kind_in_serde(self.value)}, expected {self.expected} at `{self.param}`"


def read(cls: type[T], value: object, path: tuple[str, ...] = ()) -> T:
    """Return `value` as an instance of a wire class (or any type of fields); raises FieldError."""
    try:
        return typing.cast(T, _converter.get_structure_hook(cls)(value, cls))
    except FieldError as error:
        raise FieldError(error.value, error.expected, (*path, *error.path)) from None


def shown(
    *, required: bool = False, items: type | None = None, needs: Flag | None = None, **keywords: object
) -> dict[str, object]:
    """Return the metadata of a field for the document at /openapi.json: what its type does not say.

    `required` fields may be absent for `read` and are then refused by the dialect; `items` is the class of what the
    type leaves open; `needs` is the flag without which a value that asks for something is refused; `keywords` are
    those of JSON Schema.
    """
    return {"required": required, "items": items, "needs": needs, "keywords": keywords}


def flag_name(flag: Flag) -> str:
    """Return the flag as it is written on the command line."""
    return f"--{flag.replace('_', '-')}"


def clean(text: str) -> str:
    """Return `text` with lone surrogates, which no encoder takes, replaced."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_json(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with every string in it, keys too, cleaned; raises RecursionError beyond MAX_DEPTH."""
    if isinstance(value, str):
        return clean(value)
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, list):
        return [clean_json(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean_json(item, depth + 1) for key, item in value.items()}
    return value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind_in_words(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return f"the integer {value}" if INT64_MIN <= value <= UINT64_MAX else "an integer beyond 64 bits"
    for kind, words in ((float, "a number"), (str, "a string"), (list, "a list"), (dict, "an object")):
        if isinstance(value, kind):
            return words
    return type(value).__name__


def _kind_in_serde(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`" if INT64_MIN <= value <= UINT64_MAX else "integer beyond 64 bits"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f'string "{clean(value[:64])}"'
    return "sequence" if isinstance(value, list) else "map"


# ---------------------------------------------------------------------------------------------------------------------
# Hooks
# ---------------------------------------------------------------------------------------------------------------------


def _integer(lowest: int, highest: int, expected: str) -> Hook:
    def hook(value: Any, _: Any) -> int:
        if not _is_integer(value) or not lowest <= value <= highest:
            raise FieldError(value, expected)
        return typing.cast(int, value)

    return hook


def _float(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(value, "f64")
    if isinstance(value, int) and not INT64_MIN <= value <= UINT64_MAX:
        raise FieldError(value, "f64")
    return value


def _bool(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise FieldError(value, "a boolean")
    return value


def _str(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise FieldError(value, "a string")
    return clean(value)


def _list_hook(type_: Any) -> Hook:
    (item_type, *_) = typing.get_args(type_)
    make = typing.get_origin(type_)
    item_hook = _converter.get_structure_hook(item_type)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise FieldError(value, "a sequence")
        if item_type is int and _all_int64(value):  # a prompt may hold a million ids: no call for each
            return make(value)
        items = []
        for index, item in enumerate(value):
            try:
                items.append(item_hook(item, item_type))
            except FieldError as error:
                raise error.under(index) from None
        return make(items)

    return hook


def _all_int64(value: list[Any]) -> bool:
    return all_in_range(value, INT64_MIN, INT64_MAX)


def all_in_range(value: Sequence[Any], low: int, high: int) -> bool:
    """Say whether all of a list that is not empty are integers of [low, high]; many at a time, never all in one go."""
    parts = (value[at : at + NUM_AT_A_TIME] for at in range(0, len(value), NUM_AT_A_TIME))
    return bool(value) and all(
        set(map(type, part)) == {int} and min(part) >= low and max(part) <= high for part in parts
    )


def _dict_hook(type_: Any) -> Hook:
    _, item_type = typing.get_args(type_)
    item_hook = _converter.get_structure_hook(item_type)

    def hook(value: Any, _: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FieldError(value, "a map")
        items = {}
        for key, item in value.items():
            try:
                items[clean(key)] = item_hook(item, item_type)
            except FieldError as error:
                raise error.under(key) from None
        return items

    return hook


def _class_hook(cls: Any) -> Hook:
    known = {field.name: (field.type, _converter.get_structure_hook(field.type)) for field in attrs.fields(cls)}
    required = [field.name for field in attrs.fields(cls) if field.default is attrs.NOTHING]

    def fill(name: str, item: Any) -> Any:
        type_, item_hook = known[name]
        try:
            return item_hook(item, type_)
        except FieldError as error:
            raise error.under(name) from None

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise FieldError(value, "a map")
        found = {name: fill(name, item) for name, item in value.items() if item is not None and name in known}
        for name in required:
            if name not in found:
                fill(name, None)
        return cls(**found)

    return hook


def _union_hook(type_: Any) -> Hook:
    arms = [(arm, _shape(arm), _converter.get_structure_hook(arm)) for arm in _arms(type_)]
    expected = " or ".join(dict.fromkeys(shape.expected for _, shape, _ in arms))
    optional = types.NoneType in typing.get_args(type_)

    def hook(value: Any, _: Any) -> Any:
        if value is None and optional:
            return None
        fitting = [(arm, shape, item_hook) for arm, shape, item_hook in arms if shape.fits(value)]
        if not fitting:
            raise FieldError(value, expected)
        if len(fitting) > 1 and isinstance(value, list) and value:
            fitting = [entry for entry in fitting if entry[1].fits_first(value[0])] or fitting
        arm, _, item_hook = fitting[0]
        return item_hook(value, arm)

    return hook


def _arms(type_: Any) -> list[Any]:
    return [arm for arm in typing.get_args(type_) if arm is not types.NoneType]


@attrs.frozen
class _Shape:
    """How a union's arm looks from outside: which JSON kinds it takes, and of a list, which first item."""

    expected: str
    kinds: tuple[type, ...]
    first: "_Shape | None" = None

    def fits(self, value: object) -> bool:
        return isinstance(value, self.kinds) and (not isinstance(value, bool) or bool in self.kinds)

    def fits_first(self, item: object) -> bool:
        return self.first is None or self.first.fits(item)


_SHAPES = {
    int: _Shape("i64", (int,)),
    Unsigned: _Shape("u64", (int,)),
    float: _Shape("f64", (int, float)),
    bool: _Shape("a boolean", (bool,)),
    str: _Shape("a string", (str,)),
}


def _shape(type_: Any) -> _Shape:
    if type_ in _SHAPES:
        return _SHAPES[type_]
    if _origin(type_) in (list, tuple):
        item = typing.get_args(type_)[0]
        arms = _arms(item) if _is_union(item) else [item]
        return _Shape("a sequence", (list,), _shape(arms[0]) if arms[0] is not Any else None)
    return _Shape("a map", (dict,))


def _is_union(type_: Any) -> bool:
    return _origin(type_) in (typing.Union, types.UnionType)


def _origin(type_: Any) -> Any:
    return typing.get_origin(type_)


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(int, _integer(INT64_MIN, INT64_MAX, "i64"))
    converter.register_structure_hook(Unsigned, _integer(0, UINT64_MAX, "u64"))
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook(bool, _bool)
    converter.register_structure_hook(str, _str)
    converter.register_structure_hook_factory(lambda t: _origin(t) in (list, tuple), _list_hook)
    converter.register_structure_hook_factory(lambda t: _origin(t) is dict, _dict_hook)
    converter.register_structure_hook_factory(attrs.has, _class_hook)
    converter.register_structure_hook_factory(_is_union, _union_hook)
    return converter


_converter = _make_converter()
