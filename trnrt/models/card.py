"""What a card says."""

from attrs import frozen


@frozen
class ModelCard:
    """A served model: its config.json's model_type, prompt template and parsers; None is no parser."""

    model_type: str
    title: str
    template: str
    reasoning_parser: str | None
    tool_call_parser: str | None
