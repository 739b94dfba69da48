"""What an ask would be submitted to a `/generate` engine as, without submitting it."""

from typing import Any

from attrs import frozen

from stages.detokenizer.parsers.constraints import tool_constraint
from stages.engine.generate_body import (
    PassedGrammar,
    ToolConstraint,
    generate_fields,
    no_tool_constraint,
    text_constraint,
)
from stages.messages import Ask, Prompt, Submit, ToolGrammar
from stages.request import cut, made_of
from stages.settings import ModelSettings


@frozen
class Renderer:
    """Makes the bodies that an engine behind this server gets; the same for the answers and for the render routes."""

    model: ModelSettings

    @property
    def own_end_ids(self) -> frozenset[int]:
        """Return the end tokens that the engine has from the same model."""
        return self.model.eos_token_ids

    @property
    def tool_constraint(self) -> ToolConstraint:
        """Return how the engine is told to call tools in the model's format."""
        parser = self.model.tool_call_parser
        if parser is None:
            return no_tool_constraint

        def constraint(grammar: ToolGrammar) -> Any:
            text = tool_constraint(parser, grammar)
            return no_tool_constraint(grammar) if text is None else text_constraint(text)

        return constraint

    def submits(self, ask: Ask, prompt: Prompt) -> tuple[Submit, ...]:
        """Return the choices of an ask as they would be submitted; raises RequestError for what could not be."""
        grammar = None if ask.constraint is None else PassedGrammar(ask.constraint)
        submits, _, _ = made_of(ask, cut(prompt, self.model), grammar, self.model)
        return submits

    def fields(self, ask: Ask, prompt: Prompt) -> list[dict[str, Any]]:
        """Return the body of each choice as an object; raises RequestError for what could not be submitted."""
        return [
            generate_fields(
                submit, stream=ask.stream, own_end_ids=self.own_end_ids, tool_constraint=self.tool_constraint
            )
            for submit in self.submits(ask, prompt)
        ]
