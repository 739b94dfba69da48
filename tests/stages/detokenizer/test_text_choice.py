"""One choice whose parsers read text: its tokens may split tags and characters anywhere."""

from typing import Any

from attrs import evolve, frozen

from stages.detokenizer.choice import Choice
from stages.detokenizer.decoding import decoding_of
from stages.messages import Constraint, Delta, Finish, Rules, TextForm, ToolGrammar
from tests.small_tokenizer import ids, tag
from tests.stages.detokenizer.parsers.families import FAMILIES
from tests.stages.detokenizer.parsers.saying import TOOLS
from tests.stages.detokenizer.rows import LENGTH, PARSED, RAW, Result, joined, rows, singly, submit, vocabulary

FORM = evolve(PARSED, tools=TOOLS)
TIME = ("get_time", {"tz": "UTC"})


def bytes_of(text: str) -> tuple[int, ...]:
    """Ids of one byte each, so that no tag is one token."""
    return tuple(vocabulary().pieces.index(bytes([byte])) for byte in text.encode())


def run(
    token_ids: tuple[int, ...], tools: str | None, reasoning: str | None, form: TextForm = FORM, **changes: Any
) -> Result:
    sent = submit(form, **changes)
    decoding = decoding_of(vocabulary(), reasoning, tools, reads_ids=False)

    def result(steps: list[tuple[int, ...]]) -> Result:
        choice = Choice(sent, decoding)
        return joined(event for row in rows(sent, steps, LENGTH) for event in choice.take(row))

    whole = result([token_ids])
    assert result(singly(token_ids)) == whole
    return whole


def test_a_thought_an_answer_and_a_call_of_single_bytes() -> None:
    text = "<think>né🙂d</think>Sure. " + FAMILIES["hermes"].write(TIME) + " é"
    result = run(bytes_of(text), "hermes", "qwen3")
    assert (result.reasoning, result.text, result.calls) == ("né🙂d", "Sure.  é", (("get_time", '{"tz": "UTC"}'),))
    assert result.usage is not None
    # The opening tag's last byte, the thought and all of the closing tag.
    assert result.usage.reasoning_tokens == 1 + len("né🙂d".encode()) + len("</think>")


def test_tags_that_are_tokens_are_read_as_their_text() -> None:
    text = "why</think><tool_call>get_time<arg_key>tz</arg_key><arg_value>UTC</arg_value></tool_call>"
    result = run(ids(text), "glm47", "glm45", in_reasoning=True)
    assert (result.reasoning, result.text, result.calls) == ("why", "", (("get_time", '{"tz":"UTC"}'),))


def test_special_tokens_are_no_text_unless_the_format_reads_them() -> None:
    assert run(ids("a<|user|>b"), "glm47", None).text == "ab"
    assert run(ids("a<|user|>b"), "glm47", None, evolve(FORM, skip_special_tokens=False)).text == "a<|user|>b"


def test_a_format_decides_where_the_prompt_does_not_say() -> None:
    assert run(bytes_of("why</think>a"), None, "deepseek_r1", in_reasoning=None).reasoning == "why"
    assert run(bytes_of("why</think>a"), None, "deepseek_r1", in_reasoning=False).text == "whya"


def test_reasoning_that_is_not_told_apart_is_text_and_counted() -> None:
    result = run(bytes_of("why</think>a"), "hermes", "qwen3", RAW, in_reasoning=True)
    assert (result.text, result.reasoning) == ("why</think>a", "")
    assert result.usage is not None
    assert result.usage.reasoning_tokens == len("why</think>")


def test_reasoning_that_is_held_comes_before_the_text() -> None:
    form = evolve(FORM, stream_reasoning=False)
    sent = submit(form, in_reasoning=True)
    choice = Choice(sent, decoding_of(vocabulary(), "qwen3", "hermes", reads_ids=False))
    steps = singly(bytes_of("a b</think>c"))
    deltas = [event for row in rows(sent, steps, LENGTH) for event in choice.take(row) if isinstance(event, Delta)]
    assert [delta.reasoning for delta in deltas if delta.reasoning] == ["a b"]
    assert "".join(delta.text for delta in deltas) == "c"


def test_a_stop_string_ends_the_text_and_what_comes_with_it() -> None:
    result = run(bytes_of("ab STOP" + FAMILIES["hermes"].write(TIME)), "hermes", None, stop=("STOP",))
    assert (result.text, result.calls) == ("ab ", ())
    assert result.finish == Finish("stop", matched="STOP")
    inside = run(bytes_of(FAMILIES["hermes"].write(("get_time", {"tz": "STOP"}))), "hermes", None, stop=("STOP",))
    assert inside.calls == (("get_time", '{"tz": "STOP"}'),)


def test_a_special_token_that_is_a_stop_string_ends_the_text() -> None:
    result = run(ids("ab <|user|>c"), "hermes", None, stop=("<|user|>",))
    assert (result.text, result.finish) == ("ab ", Finish("stop", matched="<|user|>"))
    assert tag("<|user|>") in result.token_ids


def test_without_the_parsing_of_calls_they_are_text() -> None:
    text = FAMILIES["hermes"].write(TIME)
    assert run(bytes_of(text), "hermes", None, evolve(FORM, parse_tools=False)).text == text


@frozen
class Compiled:
    constraint: Constraint


def test_required_calls_may_come_as_the_list_that_engines_are_held_to() -> None:
    text = '[{"name": "get_time", "parameters": {"tz": "U"}}]'
    required = Rules(grammar=Compiled(ToolGrammar(TOOLS, True, ("get_time",))))
    assert run(bytes_of(text), "kimi_k2", None, rules=required).calls == (("get_time", '{"tz": "U"}'),)
    assert run(bytes_of(text), "kimi_k2", None).text == text


def test_what_is_held_at_the_end_comes_before_it() -> None:
    assert run(bytes_of("tail <tool"), "hermes", "qwen3").text == "tail <tool"
    assert run(bytes_of("a</thi"), "hermes", "qwen3", in_reasoning=True).reasoning == "a</thi"


def test_a_call_behind_a_stop_string_that_was_held_is_none() -> None:
    held = '{"name": "STOP", "arguments": {' + FAMILIES["hermes"].write(TIME)
    assert run(bytes_of(held), "hermes", None).calls == (("get_time", '{"tz": "UTC"}'),)
    result = run(bytes_of(held), "hermes", None, stop=("STOP",))
    assert (result.text, result.calls) == ('{"name": "', ())
    assert result.finish == Finish("stop", matched="STOP")
