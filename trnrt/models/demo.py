"""The small GLM-5.3-Flash that ships with the package, its files beside this one in demo_files."""

from trnrt.models.card import ModelCard

CARD = ModelCard(
    name="glm-5.3-flash-demo",
    architecture="glm5_next",
    template="glm5",
    reasoning_parser="glm45",
    tool_call_parser="glm47",
)
