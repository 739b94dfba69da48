"""What an engine says of itself on its info routes, whichever names and versions it has."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import trio
from attrs import field, frozen

from stages.engine.http_client import HttpClient
from stages.errors import RemoteFailure

# Newer names first.
MODEL_PATHS = ("/model_info", "/get_model_info")
SERVER_PATHS = ("/server_info", "/get_server_info")
MODELS_PATHS = ("/v1/models",)
# An engine's own probe of its device may take 20 s.
HEALTH_TIMEOUT_S = 30.0
UNAVAILABLE = 503
# Of settings and states of every rank.
MAX_INFO_BYTES = 4 * 1024 * 1024

Info = Mapping[str, Any]


@frozen
class EngineFacts:
    """What was said; None or nothing is unsaid."""

    names: tuple[str, ...] = ()
    model_path: str | None = None
    tokenizer_path: str | None = None
    revision: str | None = None
    context_length: int | None = None
    vocab_size: int | None = None
    num_reserved_tokens: int | None = None
    sampling_defaults: str | None = None
    # Sampling parameters that the engine adds to what it is asked for.
    preferred_sampling: Mapping[str, Any] = field(factory=dict)
    skips_tokenizer: bool = False
    # Whether any route said anything.
    are_known: bool = False


async def health_of(client: HttpClient) -> int:
    """Return the status of an engine's own /health, 503 when it has none to give in time."""
    try:
        with trio.fail_after(HEALTH_TIMEOUT_S):
            async with await client.send("GET", "/health") as response:
                return response.status
    except (RemoteFailure, trio.TooSlowError):
        return UNAVAILABLE


async def read_engine_facts(client: HttpClient) -> EngineFacts:
    """Ask an engine for its facts; raises RemoteFailure when it cannot be reached or answers each with a 5xx."""
    return facts_of(
        await _first(client, MODEL_PATHS), await _first(client, SERVER_PATHS), await _first(client, MODELS_PATHS)
    )


def facts_of(model: Info | None, server: Info | None, models: Info | None) -> EngineFacts:
    """Return the facts in the bodies of the info routes, of which any may be missing."""
    model, server = model or {}, server or {}
    states = server.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    given = server.get("server_args")
    arguments = given if isinstance(given, dict) else {}
    places: tuple[Info, ...] = (model, server, arguments, state)
    served = _entries(models)
    names = [entry.get("id") for entry in served] + [place.get("served_model_name") for place in places]
    lengths = [entry.get("max_model_len") for entry in served]
    lengths += [place.get(key) for key in ("context_length", "max_model_len", "context_len") for place in places]
    return EngineFacts(
        names=tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name)),
        model_path=_text(places, "model_path"),
        tokenizer_path=_text(places, "tokenizer_path"),
        revision=_text(places, "revision"),
        context_length=next((length for length in lengths if _is_count(length)), None),
        vocab_size=_count(places, "vocab_size"),
        num_reserved_tokens=_count(places, "num_reserved_tokens", "reserve_input_token_num"),
        sampling_defaults=_text(places, "sampling_defaults"),
        preferred_sampling=_object(places, "preferred_sampling_params"),
        skips_tokenizer=any(place.get("skip_tokenizer_init") is True for place in places),
        are_known=bool(model or server or served),
    )


async def _first(client: HttpClient, paths: Sequence[str]) -> Info | None:
    """Return the object that the first of these routes answers with; raises RemoteFailure for a server in trouble."""
    for path in paths:
        async with await client.send("GET", path) as response:
            body = await response.text(MAX_INFO_BYTES)
        if response.status >= 500:
            raise RemoteFailure(f"the engine answered {path} with HTTP {response.status}", response.status)
        if response.status == 200:
            try:
                told = json.loads(body)
            except ValueError:
                continue
            if isinstance(told, dict):
                return told
    return None


def _entries(models: Info | None) -> list[Info]:
    data = (models or {}).get("data")
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _text(places: Sequence[Info], key: str) -> str | None:
    return next((place[key] for place in places if isinstance(place.get(key), str) and place[key]), None)


def _count(places: Sequence[Info], *keys: str) -> int | None:
    return next((place[key] for key in keys for place in places if _is_count(place.get(key))), None)


def _object(places: Sequence[Info], key: str) -> Info:
    """Return an object, which some versions give as its JSON text."""
    for place in places:
        value = place.get(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                continue
        if isinstance(value, dict):
            return value
    return {}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
