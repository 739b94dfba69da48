"""What a card says of a served model."""

from attrs import frozen


@frozen
class ModelCard:
    """A served model: its architecture's file under graphs/models, its chat template and its parsers by name."""

    name: str
    architecture: str
    template: str
    reasoning_parser: str | None
    tool_call_parser: str | None
