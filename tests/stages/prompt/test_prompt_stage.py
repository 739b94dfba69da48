"""The prompt stage: every Render answered on its own, off the loop."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from stages.errors import CheckpointError, ConfigError, EngineFailure, InvalidRequest
from stages.messages import Chat, Prompt, Render, Tool
from stages.prompt import stage
from stages.prompt.segments import as_text
from stages.prompt.stage import Prompter, open_prompter, run_prompt_stage
from stages.prompt.templates.glm5 import render
from stages.settings import PromptSettings
from tests.small_tokenizer import ids, small_tokenizer, tag, write_small_tokenizer

Answer = Prompt | Exception


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> PromptSettings:
    return PromptSettings(str(write_small_tokenizer(tmp_path_factory.mktemp("model"))))


def chat(content: str, **more: object) -> Chat:
    return Chat(({"role": "user", "content": content},), template=more)


async def answers(settings: PromptSettings, *prompts: Chat | str | tuple[int, ...]) -> list[Answer]:
    """Answers to prompts that all wait when the stage starts."""
    renders_send, renders = trio.open_memory_channel[Render](100)
    waiting = []
    for prompt in prompts:
        reply, answer = trio.open_memory_channel[Answer](1)
        renders_send.send_nowait(Render(prompt, reply))
        waiting.append(answer)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_prompt_stage, settings, renders)
            result = [await answer.receive() for answer in waiting]
            renders_send.close()
    return result


async def test_text_chat_and_ids_become_prompts(settings: PromptSettings) -> None:
    text, rendered, given = await answers(settings, "Hi<|user|>", chat("Hi <|user|>"), (1, 2))
    assert text == Prompt(ids("Hi<|user|>"), in_reasoning=False)
    assert isinstance(rendered, Prompt)
    assert rendered.in_reasoning
    assert rendered.token_ids.count(tag("<|user|>")) == 1
    decoded = small_tokenizer().decode(list(rendered.token_ids), skip_special_tokens=False)
    assert decoded == "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi <|user|><|assistant|><think>"
    assert given == Prompt((1, 2), in_reasoning=False)


async def test_a_chat_without_written_tags_has_the_ids_of_its_text(settings: PromptSettings) -> None:
    call = {"id": "1", "name": "f", "arguments": {"city": "Paris", "n": 3}}
    turns = (
        {"role": "system", "content": "Be terse. "},
        {"role": "user", "content": " 你好\n\n"},
        {"role": "assistant", "content": "hm", "reasoning_content": " why? ", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "18C, clear"},
    )
    rendered = Chat(turns, (Tool("f", {"name": "f", "description": "d"}),))
    (answer,) = await answers(settings, rendered)
    assert isinstance(answer, Prompt)
    assert answer.token_ids == ids(as_text(render(rendered)))


@pytest.mark.parametrize(
    ("prompt", "open_block"),
    [
        (chat("Hi"), True),
        (chat("Hi", enable_thinking=False), False),
        (chat("<think>", enable_thinking=False), False),
        ("<|assistant|><think>so", True),
        ("<think>so</think>", False),
        ("<think>so<|user|>Hi", False),
        ("plain", False),
        ((), False),
    ],
)
async def test_a_prompt_says_whether_it_leaves_thinking_open(
    settings: PromptSettings, prompt: Chat | str | tuple[int, ...], open_block: bool
) -> None:
    (answer,) = await answers(settings, prompt)
    assert isinstance(answer, Prompt)
    assert answer.in_reasoning is open_block


async def test_a_bad_prompt_is_answered_with_its_error_and_disturbs_no_other(settings: PromptSettings) -> None:
    size = tag("<|video|>") + 1
    prompts = ["a", (size,), (-1,), Chat(({"role": "nobody"},)), "\ud800", chat("\udfff"), chat("b"), (size - 1,)]
    got = await answers(settings, *prompts)
    assert [type(answer) for answer in got] == [Prompt, *[InvalidRequest] * 5, Prompt, Prompt]
    assert "out-of-vocabulary" in str(got[1])
    assert isinstance(got[1], InvalidRequest)
    assert got[1].param == "input_ids"


async def test_a_burst_larger_than_a_batch_is_answered_in_full(settings: PromptSettings) -> None:
    texts = [f"number {n}" for n in range(3 * stage.MAX_BATCH_PROMPTS + 1)]
    assert await answers(settings, *texts) == [Prompt(ids(text), in_reasoning=False) for text in texts]


async def test_a_request_whose_task_has_gone_is_skipped(
    settings: PromptSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    original = Prompter.answers

    def watched(self: Prompter, prompts: list[Chat | str | tuple[int, ...]]) -> list[Answer]:
        seen.extend(prompts)
        return original(self, prompts)

    monkeypatch.setattr(Prompter, "answers", watched)
    renders_send, renders = trio.open_memory_channel[Render](2)
    gone_reply, gone = trio.open_memory_channel[Answer](1)
    reply, answer = trio.open_memory_channel[Answer](1)
    renders_send.send_nowait(Render("gone", gone_reply))
    renders_send.send_nowait(Render("here", reply))
    gone.close()
    renders_send.close()
    with trio.fail_after(30):
        await run_prompt_stage(settings, renders)
    assert seen == ["here"]
    assert await answer.receive() == Prompt(ids("here"), in_reasoning=False)


async def test_a_task_that_goes_while_its_prompt_is_made_does_no_harm(settings: PromptSettings) -> None:
    renders_send, renders = trio.open_memory_channel[Render](2)
    reply, answer = trio.open_memory_channel[Answer](1)
    full_reply, full = trio.open_memory_channel[Answer](0)
    renders_send.send_nowait(Render("gone", reply))
    renders_send.send_nowait(Render("nobody receives", full_reply))
    async with trio.open_nursery() as nursery:
        await nursery.start(run_prompt_stage, settings, renders)
        await trio.testing.wait_all_tasks_blocked()
        answer.close()
        renders_send.close()
    with pytest.raises(trio.EndOfChannel):
        full.receive_nowait()


async def test_the_work_runs_outside_the_loops_thread(
    settings: PromptSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(Prompter, "answers", _noting(threads, Prompter.answers))
    await answers(settings, "a")
    assert threads
    assert threading.get_ident() not in threads


def _noting(threads: list[int], call: Callable[..., list[Answer]]) -> Callable[..., list[Answer]]:
    def noted(*args: object) -> list[Answer]:
        threads.append(threading.get_ident())
        return call(*args)

    return noted


def test_a_prompt_the_library_chokes_on_fails_alone(settings: PromptSettings) -> None:
    prompter = open_prompter(settings)

    class Choking:
        vocab_size = prompter.tokenizer.vocab_size
        control_ids = prompter.tokenizer.control_ids
        encode_segments = prompter.tokenizer.encode_segments

        def encode_texts(self, texts: list[str]) -> list[tuple[int, ...]]:
            if "bad" in texts:
                raise TypeError("bad")
            return prompter.tokenizer.encode_texts(texts)

    choking = Prompter(prompter.template, Choking())  # type: ignore[arg-type]
    good, bad, chatted = choking.answers(["good", "bad", chat("Hi")])
    assert good == Prompt(ids("good"), in_reasoning=False)
    assert isinstance(bad, EngineFailure)
    assert bad.__cause__ is not None, "whoever logs it has no traceback"
    assert isinstance(chatted, Prompt)


def test_a_template_that_breaks_on_one_chat_spares_the_others(settings: PromptSettings) -> None:
    prompter = open_prompter(settings)
    broken = Chat(({"role": "user", "content": "a"},), (Tool("f", {"name": {1, 2}}),))
    failed, good = prompter.answers([broken, "good"])
    assert isinstance(failed, EngineFailure)
    assert failed.__cause__ is not None, "whoever logs it has no traceback"
    assert good == Prompt(ids("good"), in_reasoning=False)


async def test_an_unknown_template_stops_the_start(settings: PromptSettings) -> None:
    with pytest.raises(ConfigError, match="glm5"):
        open_prompter(PromptSettings(settings.tokenizer_path, template="nothing"))


def test_a_tokenizer_without_the_templates_tokens_stops_the_start(tmp_path: Path) -> None:
    write_small_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace("<|observation|>", "<|observed|>"))
    with pytest.raises(CheckpointError, match=r"<\|observation\|>"):
        open_prompter(PromptSettings(str(tmp_path)))
