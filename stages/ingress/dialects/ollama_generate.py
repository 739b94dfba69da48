"""`POST /api/generate`: Ollama's completion of one prompt, through the chat template unless raw is true."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from stages.ingress.dialect import BodyForm, Call, Dialect, Lookup, Parsed, Route
from stages.ingress.dialects.ollama_answer import OllamaEncoder
from stages.ingress.dialects.ollama_common import (
    NDJSON,
    NOT_SERVED,
    OPTIONS_NOT_SERVED,
    OllamaBody,
    Options,
    check_name,
    check_top_logprobs,
    constrain,
    read_limits,
    read_sampling,
    read_think,
    refuse_unserved,
)
from stages.ingress.dialects.openai_common import read_body
from stages.ingress.dialects.placement import place
from stages.ingress.error_bodies import ollama_error
from stages.ingress.instants import rfc3339
from stages.messages import Ask, Chat, TextForm
from stages.settings import ModelSettings


@frozen(kw_only=True)
class GenerateBody(OllamaBody):
    """The body of /api/generate."""

    prompt: str = ""
    system: str = ""
    raw: bool = False


def parse(call: Call, model: ModelSettings) -> Parsed | Lookup:
    """Return the completion asked for, or the answer to a call without a prompt, which only loads the model elsewhere.

    A raw prompt is the text as it stands, and so is what comes of it.
    """
    body = read_body(GenerateBody, call.body)
    refuse_unserved(call.body)
    name = check_name(body.model, model)
    options = body.options or Options()
    system = ({"role": "system", "content": body.system},) if body.system else ()
    chat = Chat((*system, {"role": "user", "content": body.prompt}), template=read_think(body.think, model))
    ask = Ask(
        request_id=call.request_id,
        prompt=body.prompt if body.raw else chat,
        sampling=read_sampling(options, model.default_sampling),
        penalties=model.default_penalties,
        limits=read_limits(options),
        form=TextForm(parse_reasoning=model.reasoning_parser is not None and not body.raw),
        stream=body.stream,
        logprobs=body.logprobs,
        num_top_logprobs=check_top_logprobs(body),
    )
    ask = constrain(ask, body, model, after_reasoning=not body.raw)
    (ask,) = place((ask,), body, call)
    if not body.prompt:
        created_at = rfc3339(call.created_s)
        answer = {"model": name, "created_at": created_at, "response": "", "done": True, "done_reason": "load"}
        return Lookup((), lambda _: answer)
    return Parsed((ask,), body.stream, OllamaEncoder(call, ask, name, "response"))


SAMPLES: tuple[Mapping[str, Any], ...] = (
    {"prompt": "a"},
    {"prompt": ""},
    {"prompt": "a", "logprobs": True, "top_logprobs": 2},
)
FORM = BodyForm((GenerateBody,), NOT_SERVED, {Options: OPTIONS_NOT_SERVED})

DIALECT = Dialect(
    name="ollama_generate",
    routes=(Route("/api/generate", form=FORM, samples=SAMPLES),),
    parse=parse,
    error=ollama_error,
    json_only=False,
    ping=None,
    stream_type=NDJSON,
)
