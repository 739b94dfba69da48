"""Reasoning of GLM-4.5 to 5.3: everything to `</think>`; a tool call begun while thinking ends it as well. Core."""

from attrs import define

from stages.detokenizer.parsers.port import ReasoningParser, TagIds


@define(eq=False)
class Glm45Reasoning:
    """Whether the next token is reasoning, and how many were, tags of the block included."""

    open_id: int
    close_id: int
    call_id: int
    active: bool
    num_tokens: int = 0

    def take(self, token_id: int) -> bool:
        """Move over one id; True for `<think>` and `</think>` wherever they stand."""
        if token_id == self.open_id:
            self.active = True
            self.num_tokens += 1
            return True
        if not self.active:
            return token_id == self.close_id
        if token_id == self.call_id:
            self.active = False
            return False
        self.num_tokens += 1
        self.active = token_id != self.close_id
        return not self.active


def _make(tags: TagIds, in_reasoning: bool) -> Glm45Reasoning:
    return Glm45Reasoning(tags["<think>"], tags["</think>"], tags["<tool_call>"], in_reasoning)


PARSER = ReasoningParser("glm45", ("<think>", "</think>", "<tool_call>"), _make)
