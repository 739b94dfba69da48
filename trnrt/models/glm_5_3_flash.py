"""GLM-5.3-Flash: KDA and sparse MLA, MoE, one MTP layer; the small model that ships with the package is one too."""

from trnrt.models.card import ModelCard

CARD = ModelCard(
    model_type="glm5_next",
    title="GLM-5.3-Flash",
    template="glm5",
    reasoning_parser="glm45",
    tool_call_parser="glm47",
)
