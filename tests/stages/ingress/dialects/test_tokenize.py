"""/tokenize and /detokenize over real sockets, with the real prompt stage: both servers' shapes, and chat's own ids."""

import threading
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.detokenizer.vocabulary import Vocabulary
from stages.errors import RequestError
from stages.ingress.dialect import Lookup
from stages.ingress.dialects import find_dialects, openai_chat
from stages.ingress.dialects.tokenize import CHUNK_PROMPTS, DIALECT
from stages.messages import Chat, Detokenize, Tokenize
from stages.prompt.stage import Prompter, open_prompter
from stages.prompt.tokenizer import PromptTokenizer
from stages.settings import PromptSettings
from tests.fakes import counting, silent
from tests.small_tokenizer import SPECIAL, TAGS, ids, small_tokenizer, tag, write_small_tokenizer
from tests.stages.ingress.dialects.kit import MODEL, call_of
from tests.stages.ingress.http import Reply, Running, ask, running

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be terse."},
    {"role": "user", "content": "Hi <|user|> 你好"},
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
CALLED = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "hm",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "18C"}
CHATS: list[dict[str, Any]] = [
    {"messages": MESSAGES},
    {"messages": MESSAGES, "tools": [TOOL]},
    {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "none"},
    {"messages": [*MESSAGES, CALLED, RESULT], "tools": [TOOL], "max_tokens": 9, "temperature": 0, "n": 2, "user": "u"},
    {"messages": MESSAGES, "reasoning_effort": "low"},
    {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [*MESSAGES, CALLED, RESULT], "chat_template_kwargs": {"clear_thinking": True}},
    {"messages": [*MESSAGES, {"role": "assistant", "content": "Once"}], "continue_final_message": True},
    {
        "messages": [*MESSAGES, {"role": "assistant", "content": "Once"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    {"messages": MESSAGES, "add_generation_prompt": True, "add_special_tokens": False, "return_token_strs": True},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_tokenizer(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def prompter(folder: str) -> Prompter:
    return open_prompter(PromptSettings(folder))


def serving(folder: str) -> AbstractAsyncContextManager[Running]:
    return running(counting(1, 0), dialects=find_dialects(), tokenizer=folder)


async def told(server: Running, path: str, body: dict[str, Any]) -> Any:
    reply: Reply = await ask(server.port, path, body)
    assert reply.status == 200, reply.body
    return reply.json


def answer(prompter: Prompter, path: str, body: dict[str, Any]) -> Any:
    """What a call is answered, without a server."""
    call = call_of(body)
    lookup = DIALECT.parse(type(call)(**{**_fields(call), "path": path}), MODEL)
    assert isinstance(lookup, Lookup)
    done = prompter.answers(list(lookup.works))
    for one in done:
        if isinstance(one, Exception):
            raise one
    return orjson.loads(orjson.dumps(lookup.body(done)))  # type: ignore[arg-type]


def _fields(call: Any) -> dict[str, Any]:
    return {name: getattr(call, name) for name in ("body", "headers", "path", "request_id", "created_s")}


# -- /tokenize --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", CHATS)
async def test_a_chat_has_the_ids_the_engine_gets_for_the_same_body(folder: str, body: dict[str, Any]) -> None:
    async with serving(folder) as server:
        got = await told(server, "/tokenize", body)
        sent = {name: value for name, value in body.items() if name != "return_token_strs"}
        answered = await told(server, "/v1/chat/completions", {"max_tokens": 1, **sent})
        assert got["tokens"] == list(server.engine.submits[0].prompt_ids)
        assert got["count"] == len(got["tokens"]) == answered["usage"]["prompt_tokens"]


async def test_a_text_has_the_ids_the_engine_gets_on_completions_and_on_generate(folder: str) -> None:
    text = "Paris<|user|> 你"
    async with serving(folder) as server:
        got = await told(server, "/v1/tokenize", {"prompt": text})
        await told(server, "/v1/completions", {"prompt": text})
        await told(server, "/generate", {"text": text})
        assert got == {"tokens": list(ids(text)), "count": len(ids(text)), "max_model_len": 4096, "token_strs": None}
        assert [list(submit.prompt_ids) for submit in server.engine.submits] == [got["tokens"]] * 2


def test_a_batch_is_a_list_of_everything_also_for_a_batch_of_one(prompter: Prompter) -> None:
    for prompts in ([], ["a"], ["a", "", "The weather"], ["x y"] * (2 * CHUNK_PROMPTS + 1)):
        got = answer(prompter, "/tokenize", {"prompt": prompts, "return_token_strs": True})
        alone = [answer(prompter, "/tokenize", {"prompt": one, "return_token_strs": True}) for one in prompts]
        assert got["tokens"] == [one["tokens"] for one in alone]
        assert got["count"] == [one["count"] for one in alone]
        assert (got["token_strs"] or []) == [one["token_strs"] for one in alone]


def test_token_strings_are_the_vocabularys_own_names(prompter: Prompter) -> None:
    for body in ({"prompt": "the wind é🙂<think>"}, *CHATS):
        got = answer(prompter, "/tokenize", {**body, "return_token_strs": True})
        assert got["token_strs"] == [small_tokenizer().id_to_token(token_id) for token_id in got["tokens"]]
        assert len(got["token_strs"]) == got["count"]


def test_what_the_tokenizer_adds_to_a_text_can_be_left_out_and_never_goes_to_a_chat(tmp_path: Path) -> None:
    file = write_small_tokenizer(tmp_path) / "tokenizer.json"
    spec = orjson.loads(file.read_bytes())
    begin = {"SpecialToken": {"id": "<sop>", "type_id": 0}}
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<sop>": {"id": "<sop>", "ids": [tag("<sop>")], "tokens": ["<sop>"]}},
    }
    file.write_bytes(orjson.dumps(spec))
    prompter = open_prompter(PromptSettings(str(tmp_path)))
    plain = list(ids("the wind"))
    for asked in ({}, {"add_special_tokens": True}, {"add_special_tokens": None}):
        assert answer(prompter, "/tokenize", {"prompt": "the wind", **asked})["tokens"] == [tag("<sop>"), *plain]
    assert answer(prompter, "/tokenize", {"prompt": "the wind", "add_special_tokens": False})["tokens"] == plain
    assert answer(prompter, "/tokenize", {"messages": MESSAGES})["tokens"].count(tag("<sop>")) == 1


def test_history_alone_is_the_prompt_without_the_assistants_opening(prompter: Prompter) -> None:
    whole = answer(prompter, "/tokenize", {"messages": MESSAGES})["tokens"]
    alone = answer(prompter, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})["tokens"]
    assert whole == [*alone, tag("<|assistant|>"), tag("<think>")]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "prompt", "Exactly one of 'prompt' or 'messages' must be provided."),
        ({"prompt": None}, "prompt", "Exactly one of 'prompt' or 'messages' must be provided."),
        ({"prompt": "a", "messages": MESSAGES}, "prompt", "Exactly one of 'prompt' or 'messages' must be provided."),
        ({"prompt": 5}, "prompt", "prompt must be a string or a list"),
        ({"prompt": ["a", 5]}, "prompt.1", "prompt.1 must be a string"),
        ({"prompt": "a", "model": "other"}, "model", "does not exist"),
        ({"messages": []}, "messages", "Messages cannot be empty."),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0", "image_url"),
        ({"messages": MESSAGES, "tool_choice": "required", "tools": [TOOL]}, "tool_choice", "--structured-outputs"),
        ({"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens", "not supported"),
        ({"messages": MESSAGES, "chat_template": "{{ x }}"}, "chat_template", "not allowed"),
        (
            {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "cannot both be true",
        ),
        ({"prompt": ["a"] * 4097}, "prompt", "at most 4096"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(body: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        DIALECT.parse(call_of(body), MODEL)
    assert caught.value.param == param


def test_whatever_chat_refuses_is_refused_in_the_same_words() -> None:
    for extra in ({"logit_bias": {"1": 2}}, {"temperature": "hot"}, {"tools": [{"type": "web"}]}, {"top_logprobs": 3}):
        body = {"messages": MESSAGES, **extra}
        refusals = []
        for dialect in (DIALECT, openai_chat.DIALECT):
            with pytest.raises(RequestError) as caught:
                dialect.parse(call_of(body), MODEL)
            refusals.append((caught.value.param, caught.value.message))
        assert refusals[0] == refusals[1]


# -- /detokenize ------------------------------------------------------------------------------------------------------


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_what_was_tokenized_comes_back(prompter: Prompter, text: str) -> None:
    tokens = answer(prompter, "/tokenize", {"prompt": text})["tokens"]
    # A special token's name in the text is that token.
    body = {"tokens": tokens, "skip_special_tokens": False}
    assert answer(prompter, "/detokenize", body) == {"text": text, "prompt": text}


@given(st.lists(st.integers(0, tag("<|video|>")), max_size=12), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_ids_have_the_librarys_text(prompter: Prompter, tokens: list[int], skip: bool) -> None:
    got = answer(prompter, "/detokenize", {"tokens": tokens, "skip_special_tokens": skip})
    assert got["text"] == got["prompt"] == small_tokenizer().decode(tokens, skip_special_tokens=skip)


def test_special_tokens_are_hidden_unless_asked_for_and_tags_never_are(prompter: Prompter) -> None:
    tokens = [tag(text) for text in (*SPECIAL, *TAGS)]
    assert answer(prompter, "/detokenize", {"tokens": tokens})["text"] == "".join(TAGS)
    shown = answer(prompter, "/detokenize", {"tokens": tokens, "skip_special_tokens": False})["text"]
    assert shown == "".join((*SPECIAL, *TAGS))


def test_a_batch_of_ids_is_a_list_of_texts_and_no_ids_are_no_text(prompter: Prompter) -> None:
    assert answer(prompter, "/detokenize", {"tokens": []}) == {"text": "", "prompt": ""}
    assert answer(prompter, "/detokenize", {"tokens": [[]]})["text"] == [""]
    batch = [list(ids("a")), [], list(ids("The weather"))] * CHUNK_PROMPTS
    assert answer(prompter, "/detokenize", {"tokens": batch})["text"] == ["a", "", "The weather"] * CHUNK_PROMPTS


@pytest.mark.parametrize("tokens", [[-1], [tag("<|video|>") + 1], [2**62], [[1], [1, 9999]]])
async def test_an_id_outside_the_vocabulary_is_a_400_that_names_it(folder: str, tokens: list[Any]) -> None:
    async with serving(folder) as server:
        for path in ("/detokenize", "/v1/detokenize"):
            reply = await ask(server.port, path, {"tokens": tokens})
            assert reply.status == 400
            wrong = (tokens[-1] if isinstance(tokens[0], list) else tokens)[-1]
            message = (
                f"Error decoding tokens: Token id {wrong} is out-of-vocabulary: it must be in [0, {tag('<|video|>')}]."
            )
            assert reply.json["message"].startswith(message)
            assert reply.json["error"]["message"] == reply.json["message"]
            assert reply.json["error"]["param"] == "tokens"


@pytest.mark.parametrize("tokens", [None, "x", [1.5], [True], ["1"], [2**63], [[1], 2], [1, [2]], {}])
def test_what_is_no_list_of_ids_is_refused_by_name(tokens: Any) -> None:
    with pytest.raises(RequestError) as caught:
        DIALECT.parse(_at("/v1/detokenize", {"tokens": tokens}), MODEL)
    assert (caught.value.param or "").split(".")[0] == "tokens"


def _at(path: str, body: dict[str, Any]) -> Any:
    call = call_of(body)
    return type(call)(**{**_fields(call), "path": path})


# -- both -------------------------------------------------------------------------------------------------------------


def test_a_big_batch_is_several_visits_so_that_others_come_between() -> None:
    lookup = DIALECT.parse(call_of({"prompt": ["a"] * 40}), MODEL)
    assert isinstance(lookup, Lookup)
    assert [len(work.prompts) for work in lookup.works if isinstance(work, Tokenize)] == [16, 16, 8]
    lookup = DIALECT.parse(_at("/detokenize", {"tokens": [[1]] * 40}), MODEL)
    assert isinstance(lookup, Lookup)
    assert [len(work.sequences) for work in lookup.works if isinstance(work, Detokenize)] == [16, 16, 8]


async def test_both_directions_run_outside_the_loops_thread(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    encode, decode = PromptTokenizer.encode_texts, Vocabulary.text

    def encoded(self: PromptTokenizer, texts: Any, **more: Any) -> Any:
        threads.add(threading.get_ident())
        return encode(self, texts, **more)

    def decoded(self: Vocabulary, token_ids: Iterable[int], **more: Any) -> str:
        threads.add(threading.get_ident())
        return decode(self, token_ids, **more)

    async with serving(folder) as server:
        monkeypatch.setattr(PromptTokenizer, "encode_texts", encoded)
        monkeypatch.setattr(Vocabulary, "text", decoded)
        await told(server, "/tokenize", {"prompt": "a"})
        await told(server, "/detokenize", {"tokens": [1]})
        monkeypatch.undo()
    assert threads
    assert threading.get_ident() not in threads


async def test_neither_takes_a_place_in_the_queue_nor_runs_anything(folder: str) -> None:
    async with running(silent, dialects=find_dialects(), tokenizer=folder) as server:
        await told(server, "/tokenize", {"messages": MESSAGES})
        await told(server, "/detokenize", {"tokens": [1]})
        assert server.engine.submits == []
        assert server.engine.orders == []


async def test_errors_have_sglangs_shape_with_vllms_inside(folder: str) -> None:
    async with serving(folder) as server:
        reply = await ask(server.port, "/tokenize", {})
        message = "Exactly one of 'prompt' or 'messages' must be provided."
        assert (reply.status, reply.json) == (
            400,
            {
                "object": "error",
                "message": message,
                "type": "Bad Request",
                "param": None,
                "code": 400,
                "error": {
                    "message": message,
                    "type": "invalid_request_error",
                    "param": "prompt",
                    "code": "invalid_value",
                },
            },
        )
        assert (await ask(server.port, "/tokenize", {"prompt": "x"}, ["content-type: text/plain"])).status == 400


def test_a_chat_is_asked_for_as_a_chat_so_that_written_tags_stay_text() -> None:
    lookup = DIALECT.parse(call_of({"messages": MESSAGES}), MODEL)
    assert isinstance(lookup, Lookup)
    (work,) = lookup.works
    assert isinstance(work, Tokenize)
    assert isinstance(work.prompts[0], Chat)
