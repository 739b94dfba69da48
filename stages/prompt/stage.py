"""Task: prompts to token ids, in one worker thread, off the loop.

Whatever waits when the thread is free is one batch, so a burst costs one hop; a batch is small, so that the first
prompt of a burst does not wait for the last. Each Render is answered on its own: what one of them gets wrong reaches
no other.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio
from attrs import Factory, evolve, field, frozen

from stages.errors import CheckpointError, EngineFailure, InvalidRequest, RemoteFailure, RequestError
from stages.inbox import Receive
from stages.messages import (
    Chat,
    Decode,
    Decoded,
    Detokenize,
    Detokenized,
    ParseText,
    Prompt,
    Record,
    Render,
    Tokenize,
    Tokenized,
    Tool,
    Work,
    WorkDone,
)
from stages.prompt.cache.encoder import Encoder, open_caching_encoder
from stages.prompt.cache.self_check import self_check
from stages.prompt.cache.switch import PromptCache
from stages.prompt.decoding import decoded
from stages.prompt.jinja.template import JinjaTemplate, open_jinja
from stages.prompt.parsing import parse_text
from stages.prompt.segments import Marked, Segment, Template
from stages.prompt.templates import load_template
from stages.prompt.tokenizer import PromptTokenizer, build_prompt_tokenizer
from stages.settings import PromptSettings, TemplateSource
from stages.tokenizer_file import TokenizerFile, read_tokenizer_file

MAX_BATCH_PROMPTS = 16

Answer = WorkDone | Exception
Rendered = tuple[Segment, ...] | Marked


async def run_prompt_stage(
    settings: PromptSettings,
    renders: Receive[Render],
    cache: PromptCache | None = None,
    tell: Callable[[Record], None] = lambda record: None,
    *,
    task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer Renders until their channel ends; raises StartupError when template or tokenizer cannot be had.

    The cache may be that of other prompt stages too; what it counts is told after each batch.
    """
    prompter = await trio.to_thread.run_sync(open_prompter, settings, cache)
    limiter = trio.CapacityLimiter(1)
    task_status.started()
    async with renders:
        async for first in renders:
            batch = [render for render in (first, *_waiting(renders)) if _is_awaited(render)]
            work = partial(prompter.answers, [render.prompt for render in batch])
            answers = await trio.to_thread.run_sync(work, limiter=limiter)
            for render, answer in zip(batch, answers, strict=True):
                _reply(render, answer)
            if cache is not None:
                for record in cache.records():
                    tell(record)


def _waiting(renders: Receive[Render]) -> list[Render]:
    batch: list[Render] = []
    try:
        while len(batch) < MAX_BATCH_PROMPTS - 1:
            batch.append(renders.receive_nowait())
    except (trio.WouldBlock, trio.EndOfChannel):
        pass
    return batch


def _is_awaited(render: Render) -> bool:
    if render.reply.statistics().open_receive_channels:
        return True
    render.reply.close()
    return False


def _reply(render: Render, answer: Answer) -> None:
    with render.reply:
        try:
            render.reply.send_nowait(answer)
        except (trio.BrokenResourceError, trio.WouldBlock):
            return  # its task has gone


@frozen(eq=False)
class Prompter:
    """Template and tokenizer together: what the worker thread runs."""

    template: Callable[[Chat], Rendered]
    tokenizer: PromptTokenizer
    # What encodes chats: the tokenizer, or a cache before it.
    encoder: Encoder = field(default=Factory(lambda self: self.tokenizer, takes_self=True))

    def answers(self, prompts: "list[Work]") -> list[Answer]:
        """Return a Prompt or whatever else is asked for, or the error in its place, for each of the works."""
        prepared = [self._prepared(prompt) for prompt in prompts]
        try:
            return self._encoded(prepared)
        except Exception:  # one prompt the library chokes on must not take the others along
            return [self._encoded_alone(item) for item in prepared]

    def _prepared(self, prompt: Work) -> "Rendered | str | Answer":
        try:
            if isinstance(prompt, Chat):
                rendered = self.template(prompt)
                for segment in rendered if isinstance(rendered, tuple) else (rendered.text,):
                    if isinstance(segment, str):
                        _check_unicode(segment, "messages")
                return rendered
            if isinstance(prompt, str):
                _check_unicode(prompt, "prompt")
                return prompt
            if isinstance(prompt, Tokenize):
                return self._tokenized(prompt)
            if isinstance(prompt, Detokenize):
                return self._detokenized(prompt)
            if isinstance(prompt, Decode):
                return self._decoded(prompt)
            if isinstance(prompt, ParseText):
                _check_unicode(prompt.text, "text")
                return parse_text(prompt, self.tokenizer)
            return self._prompt(self._checked(prompt))
        except (RequestError, RemoteFailure) as error:
            return error
        except Exception as error:
            return _failure("a prompt could not be rendered", error)

    def _encoded(self, prepared: "list[Rendered | str | Answer]") -> list[Answer]:
        texts = iter(self.tokenizer.encode_texts([item for item in prepared if isinstance(item, str)]))
        chats = iter(self.encoder.encode_segments([item for item in prepared if isinstance(item, tuple)]))
        marked = [item for item in prepared if isinstance(item, Marked)]
        text_templates = iter(self.encoder.encode_marked(marked) if marked else ())
        answers: list[Answer] = []
        for item in prepared:
            if isinstance(item, str):
                answers.append(self._prompt(next(texts)))
            elif isinstance(item, tuple):
                answers.append(self._prompt(next(chats)))
            elif isinstance(item, Marked):
                answers.append(Prompt(next(text_templates), item.in_reasoning))
            else:
                answers.append(item)
        return answers

    def _encoded_alone(self, item: "Rendered | str | Answer") -> Answer:
        try:
            return self._encoded([item])[0]
        except Exception as error:
            return _failure("a prompt could not be tokenized", error)

    def _tokenized(self, work: Tokenize) -> Tokenized:
        """Return the ids that generation would have of the same prompts, made by the same code."""
        if work.add_special_tokens:
            token_ids = [_raised(answer) for answer in self.answers(list(work.prompts))]
        else:
            texts = [prompt for prompt in work.prompts if isinstance(prompt, str)]
            for text in texts:
                _check_unicode(text, "prompt")
            token_ids = self.tokenizer.encode_texts(texts, add_special_tokens=False)
        names = tuple(map(self.tokenizer.names, token_ids)) if work.with_names else None
        return Tokenized(tuple(token_ids), names)

    def _detokenized(self, work: Detokenize) -> Detokenized:
        try:
            sequences = [self._checked(token_ids) for token_ids in work.sequences]
        except InvalidRequest as error:
            text = f"Error decoding tokens: {error.message} Input tokens might be invalid for the model."
            raise InvalidRequest(text, "tokens", "invalid_value") from None
        text_of = partial(self.tokenizer.vocabulary.text, skip_special=work.skip_special_tokens)
        return Detokenized(tuple(map(text_of, sequences)))

    def _decoded(self, work: Decode) -> Decoded:
        """Return what the detokenizer would have told of the same rows."""
        prompt = work.prompt if isinstance(work.prompt, Prompt) else self._alone(work.prompt)
        return Decoded(prompt, decoded(work, prompt, self.tokenizer.vocabulary))

    def _alone(self, prompt: "Chat | str | tuple[int, ...]") -> Prompt:
        (answer,) = self.answers([prompt])
        if isinstance(answer, Exception):
            raise answer
        # Invariant: texts, ids and chats are answered with Prompts.
        assert isinstance(answer, Prompt)
        return answer

    def _checked(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        size = self.tokenizer.vocab_size
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < size)
            raise InvalidRequest(f"Token id {wrong} is out-of-vocabulary: it must be in [0, {size - 1}].", "input_ids")
        return token_ids

    def _prompt(self, token_ids: tuple[int, ...]) -> Prompt:
        return Prompt(token_ids, leaves_thinking_open(token_ids, self.tokenizer))


def _failure(what: str, error: Exception) -> EngineFailure:
    """Return what the request fails with; the task that knows whose it is logs it, traceback and all."""
    failure = EngineFailure(f"{what}: {error!r}")
    failure.__cause__ = error
    return failure


def open_prompter(settings: PromptSettings, cache: PromptCache | None = None) -> Prompter:
    """Load template and tokenizer and check one against the other, and the cache on both; raises StartupError."""
    file = read_tokenizer_file(settings.tokenizer_path)
    prompter = _open_plain(settings, build_prompt_tokenizer(file))
    return prompter if cache is None else _cached(prompter, file, cache)


def _cached(prompter: Prompter, file: TokenizerFile, cache: PromptCache) -> Prompter:
    """Return the prompter with the cache before its tokenizer; one that is of no use or wrong is turned off."""
    encoder = open_caching_encoder(prompter.tokenizer, cache, file)
    if isinstance(prompter.template, JinjaTemplate) and encoder.seams is None:
        cache.turn_off(f"{file.path}: {encoder.why_whole}", is_mismatch=False)
    wrong = self_check(encoder, prompter.template) if cache.is_on else None
    if wrong is not None:
        cache.turn_off(wrong, is_mismatch=True)
    return evolve(prompter, encoder=encoder)


def _open_plain(settings: PromptSettings, tokenizer: PromptTokenizer) -> Prompter:
    source = settings.template
    if isinstance(source, str):
        source = TemplateSource({}, native=source)
    if not source.native:
        return Prompter(open_jinja(source, tokenizer.control_ids, time.monotonic), tokenizer)
    template = load_template(source.native)
    call = {"id": "1", "name": "f", "arguments": {"k": "v"}}
    turns: list[dict[str, object]] = [
        {"role": "user"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1"},
    ]
    try:
        tokenizer.encode_segments([template(Chat(tuple(turns), (Tool("f", {"name": "f"}),)))])
    except KeyError as error:
        raise CheckpointError(
            f"{settings.tokenizer_path}: no token {error}, which chat template {source.native} needs"
        ) from None
    return Prompter(_with_defaults(template, source.defaults), tokenizer)


def _with_defaults(template: Template, defaults: Mapping[str, Any]) -> Template:
    """Return the template with switches that a request may set otherwise."""
    if not defaults:
        return template
    return lambda chat: template(evolve(chat, template={**defaults, **chat.template}))


def leaves_thinking_open(token_ids: tuple[int, ...], tokenizer: PromptTokenizer) -> bool:
    """Return whether the last `<think>` of a prompt's current turn is not closed."""
    opening = tokenizer.control_ids.get("<think>")
    closing = {tokenizer.control_ids.get(text) for text in ("</think>", "<|user|>", "<|assistant|>", "<|observation|>")}
    for token_id in reversed(token_ids):
        if token_id == opening:
            return True
        if token_id in closing:
            return False
    return False


def _raised(answer: Answer) -> tuple[int, ...]:
    if isinstance(answer, Exception):
        raise answer
    # Invariant: texts and chats are answered with Prompts.
    assert isinstance(answer, Prompt)
    return answer.token_ids


def _check_unicode(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("The text holds a lone surrogate, which is not a character.", param) from None
