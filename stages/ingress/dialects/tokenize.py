"""`POST /tokenize` and `/detokenize`, under /v1 too: SGLang's and vLLM's routes, both shapes in one answer.

A chat body is read by the chat completions dialect itself and its prompt goes through the same template and tokenizer,
so its ids are those the same body would have on /v1/chat/completions, and what that route refuses is refused here.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from attrs import field, frozen

from stages.ingress.dialect import BodyForm, Call, Dialect, Lookup, Route
from stages.ingress.dialects import openai_chat
from stages.ingress.dialects.common import MAX_PROMPTS
from stages.ingress.dialects.fields import shown
from stages.ingress.dialects.openai_common import check_model, invalid, read_body
from stages.ingress.dialects.openai_messages import WireMessage
from stages.ingress.error_bodies import flat_error, openai_error
from stages.messages import Chat, Detokenize, Detokenized, Tokenize, Tokenized, Work, WorkDone
from stages.settings import ModelSettings

# One visit to the prompt stage takes so many prompts of a batch; those of others come between two visits.
CHUNK_PROMPTS = 16


@frozen(kw_only=True)
class TokenizeBody:
    """The body of /tokenize; one with messages is a chat completion's body besides."""

    model: str = ""
    prompt: str | list[str] | None = field(default=None, metadata=shown(maxItems=MAX_PROMPTS))
    messages: list[Any] | None = field(default=None, metadata=shown(items=WireMessage, minItems=1))
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


@frozen(kw_only=True)
class DetokenizeBody:
    """The body of /detokenize."""

    model: str = ""
    tokens: list[int] | list[list[int]] | None = field(default=None, metadata=shown(required=True))
    skip_special_tokens: bool = True


def parse(call: Call, model: ModelSettings) -> Lookup:
    """Return the question asked; raises RequestError naming the field."""
    if call.path.rstrip("/").endswith("/detokenize"):
        return _detokenize(read_body(DetokenizeBody, call.body), model)
    return _tokenize(call, read_body(TokenizeBody, call.body), model)


# ---------------------------------------------------------------------------------------------------------------------
# Text and chats to ids
# ---------------------------------------------------------------------------------------------------------------------


def _tokenize(call: Call, body: TokenizeBody, model: ModelSettings) -> Lookup:
    check_model(body.model, model)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "Exactly one of 'prompt' or 'messages' must be provided.")
    prompts: Sequence[Chat | str]
    if body.messages is not None:
        prompts = [_chat(call, body, model)]
    else:
        prompts = body.prompt if isinstance(body.prompt, list) else [body.prompt or ""]
    # A template has its own control tokens, whatever a text would get.
    adds = body.messages is not None or body.add_special_tokens is not False
    make = partial(Tokenize, add_special_tokens=adds, with_names=body.return_token_strs)
    is_batch = isinstance(body.prompt, list)
    return Lookup(_chunks(prompts, "prompt", make), partial(_ids_json, is_batch, model.context_length_tokens))


def _chat(call: Call, body: TokenizeBody, model: ModelSettings) -> Chat:
    """Return the chat that /v1/chat/completions would make of the body; history alone is for this route only."""
    leaves_closed = body.add_generation_prompt is False and not body.continue_final_message
    passed = {name: value for name, value in call.body.items() if name != "return_token_strs"}
    if leaves_closed:
        del passed["add_generation_prompt"]
    (ask,) = openai_chat.parse(attrs.evolve(call, body=passed), model).asks
    # Invariant: a chat completion's prompt is a Chat.
    assert isinstance(ask.prompt, Chat)
    return attrs.evolve(ask.prompt, opens_turn=not leaves_closed)


def _ids_json(is_batch: bool, max_model_len: int, done: Sequence[WorkDone]) -> dict[str, object]:
    ids: list[tuple[int, ...]] = []
    names: list[tuple[str, ...]] = []
    for part in done:
        # Invariant: a Tokenize is answered with a Tokenized.
        assert isinstance(part, Tokenized)
        ids.extend(part.token_ids)
        names.extend(part.names or ())
    counts = [len(one) for one in ids]
    return {
        "tokens": ids if is_batch else ids[0],
        "count": counts if is_batch else counts[0],
        "max_model_len": max_model_len,
        "token_strs": (names if is_batch else names[0]) if names else None,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Ids to text
# ---------------------------------------------------------------------------------------------------------------------


def _detokenize(body: DetokenizeBody, model: ModelSettings) -> Lookup:
    check_model(body.model, model)
    if body.tokens is None:
        raise invalid("tokens", "tokens must be a list of token ids, or a list of such lists.")
    is_batch = bool(body.tokens) and isinstance(body.tokens[0], list)
    given: list[Any] = body.tokens if is_batch else [body.tokens]
    make = partial(Detokenize, skip_special_tokens=body.skip_special_tokens)
    return Lookup(_chunks([tuple(one) for one in given], "tokens", make), partial(_texts_json, is_batch))


def _texts_json(is_batch: bool, done: Sequence[WorkDone]) -> dict[str, object]:
    texts: list[str] = []
    for part in done:
        # Invariant: a Detokenize is answered with a Detokenized.
        assert isinstance(part, Detokenized)
        texts.extend(part.texts)
    value = texts if is_batch else texts[0]
    return {"text": value, "prompt": value}


# ---------------------------------------------------------------------------------------------------------------------
# Both
# ---------------------------------------------------------------------------------------------------------------------


def _chunks(items: Sequence[Any], name: str, make: Callable[[tuple[Any, ...]], Work]) -> tuple[Work, ...]:
    if len(items) > MAX_PROMPTS:
        raise invalid(name, f"at most {MAX_PROMPTS} are allowed in a batch, got {len(items)}")
    return tuple(make(tuple(items[at : at + CHUNK_PROMPTS])) for at in range(0, len(items), CHUNK_PROMPTS))


def _error(error: Exception, status: int, request_id: str) -> Mapping[str, object]:
    """Return SGLang's flat error with vLLM's nested one inside, as each client looks for its own."""
    return {**flat_error(error, status, request_id), **openai_error(error, status, request_id)}


FORMS = {
    "tokenize": BodyForm((TokenizeBody,), any_of=("prompt", "messages")),
    "detokenize": BodyForm((DetokenizeBody,)),
}

SAMPLES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "tokenize": ({"prompt": "a"}, {"prompt": ["a"]}, *({"prompt": p, "return_token_strs": True} for p in ("a", ["a"]))),
    "detokenize": ({"tokens": [1]}, {"tokens": [[1]]}),
}

DIALECT = Dialect(
    name="tokenize",
    routes=tuple(
        Route(f"{prefix}/{name}", form=form, samples=SAMPLES[name])
        for prefix in ("", "/v1")
        for name, form in FORMS.items()
    ),
    parse=parse,
    error=_error,
    generates=False,
)
