"""The web application of the renderer: which dialects it has in which mode, and what it says about itself."""

from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus

import orjson
from attrs import frozen
from quart import Response

from stages.ingress import info as facts
from stages.ingress import ollama
from stages.ingress.app import JSON, App
from stages.ingress.dialect import Dialect
from stages.ingress.dialects import (
    anthropic_count_tokens,
    anthropic_messages,
    ollama_chat,
    ollama_generate,
    ollama_show,
    openai_chat,
    openai_completions,
    openai_responses,
    sglang_generate,
    sglang_parsing,
    tokenize,
)
from stages.ingress.dialects.derendering import Submits, derender_dialect
from stages.ingress.dialects.passing import passing
from stages.ingress.dialects.rendering import Fields, render_dialect
from stages.ingress.dialects.strict import only, strict
from stages.ingress.generation import bare_app
from stages.ingress.info import Info
from stages.ingress.proxy import Proxy
from stages.ingress.respond import Serving
from stages.ingress.routes import add_document

READY = "/_sglang_renderer/ready"
# What decides a prompt's ids; whatever else a chat's body has is nothing to the tokenizer routes.
TOKENIZED = frozenset(
    (
        "model",
        "prompt",
        "tokens",
        "messages",
        "add_special_tokens",
        "skip_special_tokens",
        "return_token_strs",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "chat_template_kwargs",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "thinking",
        "tool_choice",
        "tools",
    )
)


@frozen(eq=False)
class RenderFacts:
    """What the application is made for: its mode by what there is, and where its own facts come from."""

    info: Info
    fields: Fields
    submits: Submits
    # Asks the engine how it is, giving its status; None where that is left to the proxy, or there is no engine.
    engine_health: Callable[[], Awaitable[int]] | None = None
    # Whether answers can be generated.
    has_engine: bool = False
    # Has the engine answer what is not served here; None is a 404.
    proxy: Proxy | None = None
    # Whether unknown fields are passed over, and streams end with their usage unasked.
    allows_unknown: bool = False
    tells_usage: bool = False
    # Whether the render routes take return_hidden_states.
    hidden_states: bool = False


def render_dialects(made: RenderFacts) -> tuple[Dialect, ...]:
    """Return the dialects of a mode, those of the contract held to it."""
    held = partial(strict, allows_unknown=made.allows_unknown, tells_usage=made.tells_usage)
    chat, completions = held(passing(openai_chat.DIALECT)), held(passing(openai_completions.DIALECT))
    responses, messages = passing(openai_responses.DIALECT), passing(anthropic_messages.DIALECT)
    shown_chat, shown_completions = (
        held(passing(dialect, hidden_states=made.hidden_states))
        for dialect in (openai_chat.DIALECT, openai_completions.DIALECT)
    )
    dialects = [
        render_dialect(shown_chat, "/v1/chat/completions", made.fields),
        render_dialect(shown_completions, "/v1/completions", made.fields, is_list=True),
        derender_dialect(chat, "/v1/chat/completions", made.submits),
        derender_dialect(completions, "/v1/completions", made.submits),
        render_dialect(responses, "/v1/responses", made.fields),
        render_dialect(messages, "/v1/messages", made.fields),
        only(strict(tokenize.DIALECT, allows_unknown=True), TOKENIZED),
        anthropic_count_tokens.DIALECT,
        sglang_parsing.DIALECT,
    ]
    if made.has_engine:
        dialects += [chat, completions, responses, messages]
        dialects += [passing(ollama_chat.DIALECT), passing(ollama_generate.DIALECT), ollama_show.DIALECT]
        if made.proxy is None:  # else the engine's own
            dialects.append(passing(sglang_generate.DIALECT))
    return tuple(dialects)


def create_render_app(serving: Serving, made: RenderFacts) -> App:
    """Return the renderer's application."""
    dialects = render_dialects(made)
    app = bare_app(dialects, serving)
    app.proxy = made.proxy

    async def ready() -> Response:
        readiness = made.info.readiness()
        response = Response(b"", 204 if readiness == "ready" else 503, headers={"x-sglang-renderer": readiness})
        if response.status_code == HTTPStatus.NO_CONTENT:  # which has no length, not one of 0
            del response.headers["content-length"], response.headers["content-type"]
        return response

    async def health() -> Response:
        if made.engine_health is None:
            return Response(b"", 200)
        return Response(b"", await made.engine_health())

    async def models() -> Response:
        return _json(facts.models(made.info))

    async def model(model_id: str) -> Response:
        return _json(facts.model(made.info, model_id))

    async def tags() -> Response:
        return _json(ollama.tags(made.info))

    async def api_version() -> Response:
        return _json(ollama.version())

    routes: list[tuple[str, Callable[..., Awaitable[Response]]]] = [
        (READY, ready),
        ("/v1/models", models),
        ("/v1/models/<path:model_id>", model),
    ]
    if made.has_engine:
        routes += [("/api/tags", tags), ("/api/version", api_version)]
    if made.proxy is None:
        routes.append(("/health", health))
    for path, answer in routes:
        kind = "health" if path in ("/health", READY) else "info"
        app.add_url_rule(path, f"{kind} {path}", answer, methods=["GET"])
    if made.proxy is None:  # else the engine's own
        add_document(app, dialects, made.info)
    return app


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), 200, content_type=JSON)
