"""Which entries a message's pieces take: those of the tokens they are made of."""

from hypothesis import given
from hypothesis import strategies as st

from stages.ingress.dialects.openai_responses_logprobs import TextLogprobs
from stages.messages import TokenLogprob


def entry(number: int, data: bytes, *, is_visible: bool = True) -> TokenLogprob:
    top = ((1, -0.5, b"x"), (2, float("-inf"), b"y"))
    return TokenLogprob(number, -float(number), data, top, is_visible=is_visible)


def taken(logprobs: TextLogprobs, text: str) -> list[int]:
    """The numbers of the entries a piece takes."""
    return [round(-one["logprob"]) for one in logprobs.take(text)]


def test_entries_of_reasoning_and_of_tags_are_never_taken() -> None:
    logprobs = TextLogprobs(0)
    logprobs.add([entry(1, b"Hi", is_visible=False), entry(2, b"Hi"), entry(3, b"!", is_visible=False)])
    assert taken(logprobs, "Hi") == [2]
    assert taken(logprobs, "!") == []


def test_a_token_is_told_with_the_piece_it_begins_and_never_again() -> None:
    logprobs = TextLogprobs(0)
    logprobs.add([entry(1, b"a"), entry(2, b"bab"), entry(3, b"ab")])
    assert taken(logprobs, "ab") == [1, 2]
    assert taken(logprobs, "a") == []
    assert taken(logprobs, "ba") == [3]
    assert taken(logprobs, "b") == []
    logprobs.add([entry(4, b"ab")])
    assert taken(logprobs, "ab") == [4]


def test_what_a_piece_passes_over_is_gone() -> None:
    logprobs = TextLogprobs(0)
    logprobs.add([entry(1, b"\n\n"), entry(2, b"\nOne"), entry(3, b" two")])
    assert taken(logprobs, "One") == [2]
    assert taken(logprobs, " two") == [3]
    assert not logprobs.waiting


def test_bytes_that_are_no_text_are_told_with_the_replacement_for_them() -> None:
    logprobs = TextLogprobs(0)
    logprobs.add([entry(1, b"a"), entry(2, b"\xf0\x9f"), entry(3, b"b")])
    assert taken(logprobs, "a\ufffdb") == [1, 2, 3]
    logprobs.add([entry(4, b"cd"), entry(5, b"\xf0")])
    assert taken(logprobs, "c") == [4]
    assert taken(logprobs, "d\ufffd") == [5]
    logprobs.add([entry(6, b"e")])
    assert taken(logprobs, "e") == [6]


def test_alternatives_are_as_many_as_were_asked_for() -> None:
    logprobs = TextLogprobs(1)
    logprobs.add([entry(1, b"\xe2\x82"), entry(2, b"\xac")])
    first, second = logprobs.take("€")
    assert first == {
        "token": "\ufffd",
        "logprob": -1.0,
        "bytes": [0xE2, 0x82],
        "top_logprobs": [{"token": "x", "logprob": -0.5, "bytes": [120]}],
    }
    assert second["bytes"] == [0xAC]


@given(st.lists(st.text("ab€", min_size=1), max_size=8), st.data())
def test_pieces_of_any_size_take_every_token_once_in_order(tokens: list[str], data: st.DataObject) -> None:
    logprobs, text, told = TextLogprobs(0), "", list[int]()
    for number, token in enumerate(tokens, start=1):
        logprobs.add([entry(number, token.encode())])
        text += token
        size = data.draw(st.integers(0, len(text)))
        if size:
            told += taken(logprobs, text[:size])
            text = text[size:]
    if text:
        told += taken(logprobs, text)
    assert told == [*range(1, len(tokens) + 1)]
    assert not logprobs.waiting
