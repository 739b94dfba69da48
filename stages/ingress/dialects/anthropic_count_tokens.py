"""`POST /v1/messages/count_tokens`: how long the prompt of the same message would be; takes no place in the queue."""

from collections.abc import Sequence

from stages.ingress.dialect import BodyForm, Call, Dialect, Lookup, Route
from stages.ingress.dialects.anthropic_answer import error_json
from stages.ingress.dialects.anthropic_messages import REFUSED, PromptBody, read_ask
from stages.ingress.dialects.openai_common import read_body
from stages.messages import Prompt, WorkDone
from stages.settings import ModelSettings


def parse(call: Call, model: ModelSettings) -> Lookup:
    """Return the count asked for; refuses what a message would be refused for, raising RequestError."""
    body = read_body(PromptBody, call.body)
    return Lookup((read_ask(body, call, model, max_tokens=None).prompt,), _count_json)


def _count_json(done: Sequence[WorkDone]) -> dict[str, int]:
    (prompt,) = done
    # Invariant: a prompt is answered with a Prompt.
    assert isinstance(prompt, Prompt)
    return {"input_tokens": len(prompt.token_ids)}


SAMPLES = ({"messages": [{"role": "user", "content": "a"}]},)

DIALECT = Dialect(
    name="anthropic_count_tokens",
    routes=(Route("/v1/messages/count_tokens", form=BodyForm((PromptBody,), REFUSED), samples=SAMPLES),),
    parse=parse,
    error=error_json,
    generates=False,
)
