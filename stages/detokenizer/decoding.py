"""Loads the parsers that names mean, of ids or of text."""

from stages.detokenizer.choice import Decoding
from stages.detokenizer.parsers.loading import (
    load_id_reasoning_parser,
    load_id_tool_parser,
    load_reasoning_parser,
    load_tool_parser,
    tag_ids,
)
from stages.detokenizer.text_parts import text_parsers
from stages.detokenizer.vocabulary import Vocabulary


def decoding_of(vocabulary: Vocabulary, reasoning: str | None, tools: str | None, reads_ids: bool = True) -> Decoding:
    """Return the parsers of those names, None for off; raises ConfigError, or CheckpointError for a missing tag.

    They read ids where that is wanted and every one of them can, and text otherwise.
    """
    thinking = load_reasoning_parser(reasoning) if reasoning is not None else None
    calls = load_tool_parser(tools) if tools is not None else None
    if thinking is None and calls is None:
        return Decoding(vocabulary)
    id_thinking = load_id_reasoning_parser(reasoning) if reads_ids and reasoning is not None else None
    id_calls = load_id_tool_parser(tools) if reads_ids and tools is not None else None
    if (thinking is None) is (id_thinking is None) and (calls is None) is (id_calls is None):
        return Decoding(
            vocabulary,
            (id_thinking, tag_ids(id_thinking, vocabulary)) if id_thinking is not None else None,
            (id_calls, tag_ids(id_calls, vocabulary)) if id_calls is not None else None,
        )
    return Decoding(vocabulary, text=text_parsers(vocabulary, thinking, calls))
