"""What every parser that reads ids keeps to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer.parsers import id_reasoning, id_tools
from stages.detokenizer.parsers.loading import load_id_reasoning_parser, load_id_tool_parser, names, tag_ids
from tests.small_tokenizer import ids, tag
from tests.stages.detokenizer.rows import tool, vocabulary

token_ids = st.lists(st.integers(0, tag("<|video|>")), max_size=40)
TOOLS = (tool("f", s={"type": "string"}, i={"type": "integer"}),)


@pytest.mark.parametrize("name", names(id_reasoning))
@given(token_ids, st.booleans())
def test_a_reasoning_parser_counts_what_it_takes(name: str, ids: list[int], in_reasoning: bool) -> None:
    parser = load_id_reasoning_parser(name)
    assert parser is not None
    assert parser.name == name
    state = parser.make(tag_ids(parser, vocabulary()), in_reasoning)
    assert state.active is in_reasoning
    for token_id in ids:
        before, was_active = state.num_tokens, state.active
        is_tag = state.take(token_id)
        assert state.num_tokens - before in (0, 1)
        if is_tag:
            assert token_id in tag_ids(parser, vocabulary()).values()
        elif was_active == state.active:
            assert state.num_tokens - before == was_active


@pytest.mark.parametrize("name", names(id_tools))
@given(token_ids, st.data())
def test_a_tool_parser_takes_any_ids_and_closes_what_it_began(name: str, ids: list[int], data: st.DataObject) -> None:
    parser = load_id_tool_parser(name)
    assert parser is not None
    assert parser.name == name
    tags = tag_ids(parser, vocabulary())
    state = parser.make(tags, TOOLS)
    assert not state.active
    calls: list[str] = []
    mixed = [data.draw(st.sampled_from([token_id, *tags.values()])) for token_id in ids]
    for token_id in mixed:
        was_active = state.active
        sent = state.take(token_id, vocabulary().piece(token_id))
        assert sent is not None or not (was_active or state.active)
        for piece in sent or ():
            if piece.name is not None:
                calls.append("")
                assert piece.name
            assert piece.index == len(calls) - 1
            calls[-1] += piece.arguments
    for arguments in calls[: -1 if state.active else None]:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("name", names(id_tools))
def test_a_tool_parser_leaves_plain_text_alone(name: str) -> None:
    parser = load_id_tool_parser(name)
    assert parser is not None
    state = parser.make(tag_ids(parser, vocabulary()), TOOLS)
    assert all(state.take(token_id, b"x") is None for token_id in ids('plain {"a": 1} text'))
