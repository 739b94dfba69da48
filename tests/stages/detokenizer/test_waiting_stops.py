"""Stop strings that end nothing before so many tokens exist."""

from typing import Any

from stages.messages import Finish, TextForm
from tests.small_tokenizer import ids, small_tokenizer
from tests.stages.detokenizer.rows import Result, run, singly, submit


def unheeded(text: str, stop: str, num_tokens: int, **form: Any) -> Result:
    sent = submit(TextForm(stops_after_tokens=num_tokens, **form), stop=(stop,), max_new_tokens=100)
    return run(sent, singly(ids(text)))


def test_a_stop_string_whole_before_so_many_tokens_exist_does_not_end_the_answer() -> None:
    text = "one END two END three"
    number = next(number for number in range(1, 99) if "END" in small_tokenizer().decode(ids(text)[:number]))
    early, late = unheeded(text, "END", number - 1), unheeded(text, "END", number)
    assert (early.text, early.finish) == ("one ", Finish("stop", matched="END"))
    assert (late.text, late.finish) == ("one END two ", Finish("stop", matched="END"))
    assert late.usage is not None
    assert late.usage.completion_tokens == len(late.token_ids)
    assert unheeded(text, "END", 99).text == text


def test_tokens_of_reasoning_count_for_stops_that_wait() -> None:
    text = "<think>much thought</think>END END"
    thought = len(ids("<think>much thought</think>"))
    assert unheeded(text, "END", thought, parse_reasoning=True).text == ""
    assert unheeded(text, "END", thought + len(ids("END")), parse_reasoning=True).text == "END "


def test_a_special_token_named_as_a_stop_string_waits_too() -> None:
    text = "a<|user|>b<|user|>c"
    assert unheeded(text, "<|user|>", 1).text == "a"
    assert unheeded(text, "<|user|>", 2).text == "ab"


def test_stops_that_wait_do_not_depend_on_how_ids_come() -> None:
    token_ids = ids("one END two END three")
    sent = submit(TextForm(stops_after_tokens=len(ids("one END"))), stop=("END",))
    whole = run(sent, [token_ids])
    assert whole.text == "one END two "
    for size in (1, 2, 5):
        steps = [token_ids[first : first + size] for first in range(0, len(token_ids), size)]
        assert run(sent, steps) == whole
