"""What frames of either form come to."""

import json
import math
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.engine.frames import FrameReader
from stages.errors import RemoteFailure
from stages.messages import Finish, TokensRow
from tests.stages.engine.kit import submits_of


def reader_of(**fields: Any) -> FrameReader:
    return FrameReader(submits_of(**fields)[0][0])


def read(reader: FrameReader, ids: list[int], total: int, finish: object = None, **meta: Any) -> TokensRow:
    info = {"prompt_tokens": 3, "completion_tokens": total, "finish_reason": finish, **meta}
    return reader.read(orjson.dumps({"output_ids": ids, "meta_info": info}))


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.booleans(),
    st.sampled_from(["length", "kept", "trimmed", "pair"]),
    st.data(),
)
def test_either_form_gives_each_token_once(
    sizes: list[int], is_cumulative: bool, end: str, data: st.DataObject
) -> None:
    tokens = list(range(100, 100 + sum(sizes)))
    reader, told, got = reader_of(), 0, []
    for size in sizes:
        ids = tokens[: told + size] if is_cumulative else tokens[told : told + size]
        told += size
        got += read(reader, ids, told).token_ids
    last = {"length": [], "kept": [7], "trimmed": [], "pair": []}[end]
    num_trimmed = {"trimmed": 1, "pair": 2}.get(end, 0)
    matched = {"kept": 7, "trimmed": 7, "pair": [7, 8]}.get(end)
    # An incremental engine that leaves its stop token in the ids cannot be told from a cumulative one that does not.
    if end == "kept" and not is_cumulative and told == 1:
        return
    total = told + len(last) + num_trimmed
    finish = {"type": "length"} if end == "length" else {"type": "stop", "matched": matched}
    row = read(reader, tokens[:told] + last if is_cumulative else last, total, finish)
    assert got + list(row.token_ids) == tokens + last
    assert row.usage.completion_tokens == total
    assert reader.has_ended


@pytest.mark.parametrize("ids", [[], [7]])
def test_a_stop_token_left_out_gives_no_id_in_either_form(ids: list[int]) -> None:
    reader = reader_of()
    read(reader, [7], 1)
    assert read(reader, ids, 2, {"type": "stop", "matched": 9}).token_ids == ()


def test_one_id_of_two_is_new_unless_a_stop_was_left_out() -> None:
    reader = reader_of()
    read(reader, [7], 1)
    assert read(reader, [8], 2).token_ids == (8,)


def test_more_tokens_than_were_asked_for_are_the_engines_failure() -> None:
    reader = reader_of(max_new_tokens=2)
    assert read(reader, [7, 8], 2).token_ids == (7, 8)
    with pytest.raises(RemoteFailure, match="3 tokens exist where at most 2 were asked for"):
        read(reader, [7, 8, 9], 3)


def test_an_engine_that_makes_one_token_where_none_were_asked_for_has_not_failed() -> None:
    assert read(reader_of(max_new_tokens=0), [7], 1, {"type": "length"}).token_ids == (7,)


FINISHES = [
    ({"type": "length", "length": 3}, Finish("length")),
    ("length", Finish("length")),
    ({"type": "stop", "matched": 9}, Finish("stop", matched=9)),
    ({"type": "stop", "matched": "END"}, Finish("stop", matched="END")),
    ({"type": "stop", "matched": None}, Finish("stop")),
    ({"type": "stop"}, Finish("stop")),
    ({"type": "content_filter"}, Finish("content_filter")),
    ({"type": "abort", "message": "by hand"}, Finish("abort", message="by hand")),
    ({"type": "something"}, Finish("stop")),
]


@pytest.mark.parametrize(("wire", "finish"), FINISHES)
def test_the_reason_of_an_end_is_told(wire: object, finish: Finish) -> None:
    reader = reader_of()
    assert read(reader, [5], 1, wire).finish == finish
    assert reader.has_ended


def test_cached_tokens_stay_told_where_a_later_frame_leaves_them_out() -> None:
    reader = reader_of()
    assert read(reader, [5], 1, cached_tokens=2).usage.cached_tokens == 2
    assert read(reader, [6], 2).usage.cached_tokens == 2


WRONG = [
    b"[]",
    b"7",
    b"{",
    b'{"output_ids": 7, "meta_info": {"completion_tokens": 1}}',
    b'{"output_ids": ["a"], "meta_info": {"completion_tokens": 1}}',
    b'{"output_ids": [-1], "meta_info": {"completion_tokens": 1}}',
    b'{"output_ids": [true], "meta_info": {"completion_tokens": 1}}',
    b'{"output_ids": [1], "meta_info": {"completion_tokens": "1"}}',
    b'{"output_ids": [1], "meta_info": 7}',
    b'{"output_ids": [1]}',
    b'{"output_ids": [1], "meta_info": {"completion_tokens": 1, "finish_reason": {}}}',
    b'{"output_ids": [1], "meta_info": {"completion_tokens": 1, "finish_reason": 7}}',
    *(
        b'{"output_ids": [1], "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "stop", "matched": %b}}}'
        % matched
        for matched in (b"[[1]]", b"[{}]", b"{}", b"true", b"1.5", b'["a"]')
    ),
]


@pytest.mark.parametrize("data", WRONG)
def test_a_malformed_frame_is_a_500_that_says_so(data: bytes) -> None:
    with pytest.raises(RemoteFailure, match="invalid engine frame") as caught:
        reader_of().read(data)
    assert caught.value.status == 500


NAMES = st.sampled_from(["output_ids", "meta_info", "finish_reason", "type", "completion_tokens", "error"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner)
)


@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_frame_raises_anything_else(data: bytes) -> None:
    with suppress(RemoteFailure):
        reader_of(logprobs=True, num_top_logprobs=1).read(data)


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    data = b'{"text": "\xff", "output_ids": [5], "meta_info": {"completion_tokens": 1}}'
    assert reader_of().read(data).token_ids == (5,)


ENTRIES = [[-0.5, 5, None], [None, 6, None], [-0.25, 7, "x"]]
TOPS = [[[-0.5, 5, None], [-1.0, 8, None]], None, [[-0.25, 7, None]]]


@pytest.mark.parametrize("is_cumulative", [False, True])
def test_logprobs_follow_their_ids(is_cumulative: bool) -> None:
    reader = reader_of(logprobs=True, num_top_logprobs=2)
    first = read(reader, [5], 1, output_token_logprobs=ENTRIES[:1], output_top_logprobs=TOPS[:1])
    start = 0 if is_cumulative else 1
    second = read(reader, [5, 6, 7][start:], 3, output_token_logprobs=ENTRIES[start:], output_top_logprobs=TOPS[start:])
    assert (first.logprobs, first.top) == ((-0.5,), (((5, -0.5), (8, -1.0)),))
    assert math.isnan(second.logprobs[0])
    assert (second.logprobs[1], second.top) == (-0.25, ((), ((7, -0.25),)))


def test_tops_of_nothing_but_null_are_none() -> None:
    reader = reader_of(logprobs=True, num_top_logprobs=2)
    assert read(reader, [5], 1, output_token_logprobs=ENTRIES[:1], output_top_logprobs=[None]).top == ()


def test_a_stop_token_left_out_of_the_ids_may_have_a_logprob() -> None:
    reader = reader_of(logprobs=True)
    row = read(reader, [5], 2, {"type": "stop", "matched": 6}, output_token_logprobs=ENTRIES[:2])
    assert (row.token_ids, row.logprobs) == ((5,), (-0.5,))


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"output_token_logprobs": []},
        {"output_token_logprobs": ENTRIES[:1]},
        {"output_token_logprobs": ENTRIES[:2], "output_top_logprobs": TOPS[:1]},
        {"output_token_logprobs": [[1], [2]], "output_top_logprobs": [7, 7]},
        {"output_token_logprobs": [["a", 5], ["b", 6]]},
        # An id that is none would end the detokenizer, and with it the server.
        *(
            {"output_token_logprobs": ENTRIES[:2], "output_top_logprobs": [[[-1.0, wrong, None]]] * 2}
            for wrong in ({"a": 1}, "5", None, -1, True, 2**40)
        ),
    ],
)
def test_logprobs_that_do_not_fit_the_ids_are_a_500(meta: dict[str, Any]) -> None:
    with pytest.raises(RemoteFailure, match="invalid engine frame"):
        read(reader_of(logprobs=True, num_top_logprobs=1), [5, 6], 2, **meta)


def test_the_prompt_is_scored_once() -> None:
    reader = reader_of(logprobs=True, num_top_logprobs=1, prompt_logprobs_from=0, logprob_token_ids=(9,))
    meta = {
        "input_token_logprobs": [[None, 1, None], [-1.0, 2, None], [-2.0, 3, None]],
        "input_top_logprobs": [None, [[-0.5, 4, None]], [[-0.25, 5, None]]],
        "input_token_ids_logprobs": [None, [[-3.0, 9, None]], [[-4.0, 9, None]]],
        "output_token_ids_logprobs": [[[-5.0, 9, None]]],
        "output_token_logprobs": ENTRIES[:1],
    }
    row = read(reader, [5], 1, **meta)
    assert row.prompt is not None
    assert row.wanted == ((-5.0,),)
    assert row.prompt.logprobs.tolist() == [-1.0, -2.0]
    assert (row.prompt.top_ids.tolist(), row.prompt.top_logprobs.tolist()) == ([[4], [5]], [[-0.5], [-0.25]])
    assert row.prompt.wanted is not None
    assert row.prompt.wanted.tolist() == [[-3.0], [-4.0]]
    assert (
        read(
            reader,
            [5, 6],
            2,
            **{**meta, "output_token_logprobs": ENTRIES[:2], "output_token_ids_logprobs": [[[-5.0, 9, None]]] * 2},
        ).prompt
        is None
    )
