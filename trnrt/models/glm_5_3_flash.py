"""GLM-5.3-Flash, as published: weights come with --model-path."""

from trnrt.models.card import ModelCard

CARD = ModelCard(
    name="glm-5.3-flash",
    architecture="glm5_next",
    template="glm5",
    reasoning_parser="glm45",
    tool_call_parser="glm47",
)
