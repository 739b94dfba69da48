"""`POST /v1/messages/count_tokens`: how long the prompt of the same message would be; takes no place in the queue."""

from stages.ingress.dialect import Call, Dialect, Parsed, Route
from stages.ingress.dialects.anthropic_answer import CountEncoder, error_json
from stages.ingress.dialects.anthropic_messages import PromptBody, read_ask
from stages.ingress.dialects.openai_common import read_body
from stages.settings import ModelSettings


def parse(call: Call, model: ModelSettings) -> Parsed:
    """Return the count asked for; refuses what a message would be refused for, raising RequestError."""
    body = read_body(PromptBody, call.body)
    ask = read_ask(body, call, model, max_tokens=None)
    return Parsed((ask,), stream=False, encoder=CountEncoder(), renders_only=True)


DIALECT = Dialect(
    name="anthropic_count_tokens", routes=(Route("/v1/messages/count_tokens"),), parse=parse, error=error_json
)
