"""What engines of any version say of themselves is found, and what says nothing sensible is unsaid."""

from typing import Any

import pytest

from stages.engine.facts import EngineFacts, facts_of, read_engine_facts
from stages.engine.http_client import HttpClient
from stages.errors import RemoteFailure
from tests.fake_engine import Exchange, FakeGenerate, never
from tests.stages.engine.kit import ORIGIN, remote_engine

MODEL = {"model_path": "org/model", "tokenizer_path": "org/model", "is_generation": True}
SERVER = {"sampling_defaults": "model", "context_length": None, "revision": None, "max_req_input_len": 4091}
MODELS = {"object": "list", "data": [{"id": "served", "max_model_len": 4096}]}
NEWER = {"/model_info": MODEL, "/server_info": SERVER, "/v1/models": MODELS}
OLDER = {"/get_model_info": MODEL, "/get_server_info": SERVER, "/v1/models": MODELS}


def answering(bodies: dict[str, Any], missing: int = 404) -> Any:
    async def order(exchange: Exchange) -> None:
        if exchange.path in bodies:
            await exchange.refuse(200, bodies[exchange.path])
        else:
            await exchange.refuse(missing, {"detail": "Not Found"})

    return order


async def read(fake: FakeGenerate) -> EngineFacts:
    return await read_engine_facts(HttpClient(ORIGIN, fake.connect))


@pytest.mark.parametrize("bodies", [NEWER, OLDER])
@pytest.mark.parametrize("missing", [404, 405, 401])
async def test_newer_and_older_routes_say_the_same(bodies: dict[str, Any], missing: int) -> None:
    async with remote_engine(never) as remote:
        remote.fake.order = answering(bodies, missing)
        facts = await read(remote.fake)
        assert facts == EngineFacts(
            names=("served",),
            model_path="org/model",
            tokenizer_path="org/model",
            context_length=4096,
            sampling_defaults="model",
            are_known=True,
        )


async def test_an_engine_without_such_routes_says_nothing() -> None:
    async with remote_engine(never) as remote:
        assert await read(remote.fake) == EngineFacts()


async def test_an_engine_in_trouble_is_one_that_is_not_up() -> None:
    async with remote_engine(never) as remote:
        remote.fake.order = answering({}, 503)
        with pytest.raises(RemoteFailure):
            await read(remote.fake)
        remote.fake.is_up = False
        with pytest.raises(RemoteFailure):
            await read(remote.fake)


async def test_long_answers_are_read_whole_and_what_is_no_json_is_passed_over() -> None:
    long = {**SERVER, "internal_states": [{"vocab_size": 99, "filler": "x" * 300_000}]}
    async with remote_engine(never) as remote:
        remote.fake.order = answering({"/server_info": long, "/model_info": b"<html>", "/get_model_info": MODEL})
        facts = await read(remote.fake)
        assert (facts.vocab_size, facts.model_path) == (99, "org/model")


@pytest.mark.parametrize(
    ("model", "server", "expected"),
    [
        (None, {"server_args": {"context_length": 8, "skip_tokenizer_init": True}}, {"context_length": 8}),
        ({"preferred_sampling_params": '{"top_k": 5}'}, None, {"preferred_sampling": {"top_k": 5}}),
        ({"preferred_sampling_params": {"top_k": 5}}, None, {"preferred_sampling": {"top_k": 5}}),
        ({"preferred_sampling_params": "nonsense"}, None, {"preferred_sampling": {}}),
        ({"vocab_size": "many", "model_path": 5, "served_model_name": ""}, None, {"vocab_size": None, "names": ()}),
        ({"vocab_size": True}, {"vocab_size": 7}, {"vocab_size": 7}),
        (None, {"internal_states": "x", "num_reserved_tokens": 3}, {"num_reserved_tokens": 3}),
    ],
)
def test_facts_are_taken_from_wherever_they_make_sense(model: Any, server: Any, expected: dict[str, Any]) -> None:
    facts = facts_of(model, server, {"data": [5]})
    assert {name: getattr(facts, name) for name in expected} == expected
