"""Strict reading: nothing is converted, and complaints name the dotted field."""

from typing import Any

import pytest
from attrs import frozen

from stages.ingress.dialects.fields import FieldError, Unsigned, clean, clean_json, read


@frozen(kw_only=True)
class Inner:
    name: str
    sizes: list[int] | None = None


@frozen(kw_only=True)
class Outer:
    whole: int = 0
    count: Unsigned | None = None
    share: float = 0.5
    on: bool = False
    word: str = ""
    words: str | list[str] | None = None
    ids: list[int] | list[list[int]] | None = None
    holes: list[int | None] | None = None
    inner: Inner | None = None
    inners: list[Inner] | None = None
    table: dict[str, float] | None = None
    free: dict[str, Any] | None = None


def fault(value: object) -> FieldError:
    with pytest.raises(FieldError) as caught:
        read(Outer, value)
    return caught.value


def test_absent_null_and_unknown_fields_leave_the_defaults() -> None:
    assert read(Outer, {"whole": None, "words": None, "surprise": 1}) == Outer()


def test_every_kind_of_field_is_filled() -> None:
    filled = read(
        Outer,
        {
            "whole": -(2**63),
            "count": 2**64 - 1,
            "share": 2,
            "on": True,
            "word": "é",
            "words": ["a"],
            "ids": [[1], [2, 3]],
            "holes": [None, 1],
            "inner": {"name": "n", "sizes": [4]},
            "inners": [{"name": "m"}],
            "table": {"1": 2},
            "free": {"x": [None]},
        },
    )
    assert filled == Outer(
        whole=-(2**63),
        count=Unsigned(2**64 - 1),
        share=2,
        on=True,
        word="é",
        words=["a"],
        ids=[[1], [2, 3]],
        holes=[None, 1],
        inner=Inner(name="n", sizes=[4]),
        inners=[Inner(name="m")],
        table={"1": 2},
        free={"x": [None]},
    )


@pytest.mark.parametrize(
    ("value", "param", "serde"),
    [
        ({"whole": "1"}, "whole", 'invalid type: string "1", expected i64 at `whole`'),
        ({"whole": True}, "whole", "invalid type: boolean `true`, expected i64 at `whole`"),
        ({"whole": 1.0}, "whole", "invalid type: floating point `1.0`, expected i64 at `whole`"),
        ({"whole": 2**63}, "whole", "invalid value: integer `9223372036854775808`, expected i64 at `whole`"),
        ({"count": -1}, "count", "invalid value: integer `-1`, expected u64 at `count`"),
        ({"share": "0.7"}, "share", 'invalid type: string "0.7", expected f64 at `share`'),
        ({"share": False}, "share", "invalid type: boolean `false`, expected f64 at `share`"),
        ({"share": 10**400}, "share", "invalid type: integer beyond 64 bits, expected f64 at `share`"),
        ({"on": 1}, "on", "invalid type: integer `1`, expected a boolean at `on`"),
        ({"on": "true"}, "on", 'invalid type: string "true", expected a boolean at `on`'),
        ({"word": 5}, "word", "invalid type: integer `5`, expected a string at `word`"),
        ({"words": {}}, "words", "invalid type: map, expected a string or a sequence at `words`"),
        ({"words": ["a", None]}, "words.1", "invalid type: null, expected a string at `words.1`"),
        ({"ids": [1, "x"]}, "ids.1", 'invalid type: string "x", expected i64 at `ids.1`'),
        ({"ids": [[1], 2]}, "ids.1", "invalid type: integer `2`, expected a sequence at `ids.1`"),
        ({"ids": [True]}, "ids.0", "invalid type: boolean `true`, expected i64 at `ids.0`"),
        ({"ids": [2**63]}, "ids.0", "invalid value: integer `9223372036854775808`, expected i64 at `ids.0`"),
        ({"inner": []}, "inner", "invalid type: sequence, expected a map at `inner`"),
        ({"inner": {}}, "inner.name", "invalid type: null, expected a string at `inner.name`"),
        ({"inners": [{"name": "a", "sizes": "abc"}]}, "inners.0.sizes", None),
        ({"table": {"k": "v"}}, "table.k", 'invalid type: string "v", expected f64 at `table.k`'),
    ],
)
def test_a_wrong_value_is_named_by_its_path(value: object, param: str, serde: str | None) -> None:
    error = fault(value)
    assert error.param == param
    assert error.in_words().startswith(f"{param} must be ")
    if serde is not None:
        assert error.in_serde() == serde


def test_words_for_people_say_what_was_expected_and_what_came() -> None:
    assert fault({"share": "x"}).in_words() == "share must be a number, got a string."
    assert fault({"words": 3}).in_words() == "words must be a string or a list, got the integer 3."


def test_lone_surrogates_are_replaced_everywhere() -> None:
    assert clean("a\ud83db") == "a\ufffdb"
    assert clean("😀") == "😀"
    assert clean_json({"k\udc00": ["\ud800", {"x": "ok"}]}) == {"k\ufffd": ["\ufffd", {"x": "ok"}]}
    assert read(Outer, {"word": "\ud83d"}).word == "\ufffd"
