"""One request from ask to answer: the page to read first.

    dialect --Ask--> answer() --Render--> prompt stage --Prompt--> answer()
                     answer() --CompileGrammar--> grammar stage --Grammar--> answer()    where tokens are constrained
                     answer() --Submit--> admission -> scheduler -> executor -> scheduler -> detokenizer
                     answer() <--Delta, Delta, ..., Ended-- mailbox <-- detokenizer

One request is one cancel scope: a client that leaves, a deadline and a drain all end in that scope's exit, which posts
Cancel without awaiting anything. The Ended of every choice is always the last thing its mailbox brings.
"""

import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import evolve, field, frozen

from stages.channels import open_mailbox
from stages.engine.generate_body import PassedGrammar
from stages.engine.port import Engine
from stages.errors import ContextOverflow, EngineFailure, InvalidRequest, PriorityRefused, QueueFull
from stages.mailbox import Mailbox
from stages.messages import (
    Ask,
    Chat,
    ChoiceKey,
    CompileGrammar,
    Constraint,
    Detokenize,
    Detokenized,
    Ended,
    Event,
    Finish,
    Grammar,
    GrammarInbox,
    Prompt,
    Render,
    Rules,
    Submit,
    Usage,
    Work,
    WorkDone,
)
from stages.settings import ModelSettings
from stages.trail import Trail

ABORTED_WAITING = "Abort in waiting queue"


@frozen(eq=False)
class Services:
    """What a request task needs of the rest of the server."""

    engine: Engine
    prompts: "trio.MemorySendChannel[Render]"
    model: ModelSettings
    # The grammar stage, where there is one (--structured-outputs).
    grammars: "trio.MemorySendChannel[GrammarInbox] | None" = None
    # Whether constraints are compiled by the engine behind this server, and go to it as they are.
    passes_constraints: bool = False
    # Whether a request waits for a place among the prompts to be made, in place of a 503.
    waits_for_prompts: bool = False
    # Requests whose prompt is being made, by id, and whether they were aborted meanwhile: no engine knows them yet.
    rendering: dict[str, bool] = field(factory=dict)

    def abort(self, request_id: str) -> None:
        """Abort every request whose id begins with request_id; the answers keep what they have."""
        self._abort_rendering(request_id)
        self.engine.cancel(request_id, deliver=True, scope="prefix")

    def abort_all(self) -> None:
        """Abort every request there is."""
        self._abort_rendering("")
        self.engine.cancel("", deliver=True, scope="all")

    def _abort_rendering(self, prefix: str) -> None:
        self.rendering.update({name: True for name in self.rendering if name.startswith(prefix)})


@frozen(eq=False)
class Answer:
    """A request that was admitted: its prompt, and its events until every choice has ended."""

    ask: Ask
    prompt: Prompt
    events: "trio.MemoryReceiveChannel[Event]"
    # The other end of `events`, to lend a sink to.
    mailbox: Mailbox


@asynccontextmanager
async def admitted(ask: Ask, services: Services, trail: Trail | None = None) -> AsyncIterator[Answer]:
    """Render, check and queue `ask`, giving its Answer; leaving the block frees whatever the request still holds.

    When it got where is noted on its call's trail.

    Raises RequestError for what the client can mend, Unavailable when the server takes nothing, or nothing like it.
    """
    if ask.priority is not None and services.model.refuses_priority:
        raise PriorityRefused
    services.rendering[ask.request_id] = False
    try:
        prompt = cut(await render(ask, services), services.model)
        if trail is not None:
            trail.rendered(len(prompt.token_ids), trio.current_time())
        grammar = await _compiled(ask, services)
    finally:
        is_aborted = services.rendering.pop(ask.request_id)
    submits, mailbox, events = made_of(ask, prompt, grammar, services.model, trail)
    if is_aborted:
        _end_unsubmitted(submits)
    else:
        services.engine.submit(submits)
        if trail is not None:
            trail.submitted_s = trio.current_time()
    try:
        yield Answer(ask, prompt, events, mailbox)
    finally:
        services.engine.cancel(ask.request_id)
        events.close()


def made_of(
    ask: Ask, prompt: Prompt, grammar: Grammar | None, model: ModelSettings, trail: Trail | None = None
) -> "tuple[tuple[Submit, ...], Mailbox, trio.MemoryReceiveChannel[Event]]":
    """Return an ask's choices as they are submitted, and both ends of their mailbox; raises RequestError."""
    max_new_tokens = fit(ask, len(prompt.token_ids), model)
    check_start(ask, len(prompt.token_ids))
    mailbox, events = open_mailbox(max_new_tokens, ask.num_choices)
    return tuple(_submits(ask, prompt, max_new_tokens, model, mailbox, grammar, trail)), mailbox, events


async def render(ask: Ask, services: Services) -> Prompt:
    """Return the ids of the ask's prompt from the prompt stage; raises its RequestError, or QueueFull."""
    prompt = await look_up(ask.prompt, services)
    # Invariant: the prompt stage answers a prompt with a Prompt.
    assert isinstance(prompt, Prompt)
    if not ask.echoes_ids:
        return prompt
    done = await look_up(Detokenize((prompt.token_ids,), skip_special_tokens=True), services)
    # Invariant: a Detokenize is answered with a Detokenized.
    assert isinstance(done, Detokenized)
    return evolve(prompt, text=done.texts[0])


async def look_up(work: Work, services: Services) -> WorkDone:
    """Return the prompt stage's answer to `work`; raises its RequestError, or QueueFull."""
    reply, answer = trio.open_memory_channel[WorkDone | Exception](1)
    with answer:  # a closed receive end tells the prompt stage that nobody waits any more
        try:
            services.prompts.send_nowait(Render(work, reply))
        except trio.WouldBlock:
            if not services.waits_for_prompts:
                raise QueueFull from None
            await services.prompts.send(Render(work, reply))
        try:
            done = await answer.receive()
        except trio.EndOfChannel:
            raise EngineFailure("the prompt stage dropped a request") from None
    if isinstance(done, Exception):
        raise done
    return done


async def _compiled(ask: Ask, services: Services) -> Grammar | None:
    """Return the ask's grammar, None for no constraint; raises InvalidRequest that names the field it came from."""
    if ask.constraint is None:
        return None
    if services.passes_constraints:
        return PassedGrammar(ask.constraint)
    try:
        return await compile_grammar(ask.constraint, services)
    except InvalidRequest as error:
        raise InvalidRequest(
            error.message, ask.constraint_field or error.param, error.code or "invalid_value"
        ) from None


async def compile_grammar(constraint: Constraint, services: Services) -> Grammar:
    """Return the grammar stage's Grammar of a constraint; raises its RequestError, QueueFull, or InvalidRequest."""
    if services.grammars is None:
        raise InvalidRequest("Constrained output requires the server to be launched with --structured-outputs.")
    reply, answer = trio.open_memory_channel[Grammar | Exception](1)
    with answer:  # a closed receive end tells the grammar stage that nobody waits any more
        services.grammars.send_nowait(CompileGrammar(constraint, reply))
        try:
            grammar = await answer.receive()
        except trio.EndOfChannel:
            raise EngineFailure("the grammar stage dropped a constraint") from None
    if isinstance(grammar, Exception):
        raise grammar
    return grammar


def cut(prompt: Prompt, model: ModelSettings) -> Prompt:
    """Return the prompt, of one that is longer than the context its beginning where the model's settings want that."""
    if not model.truncates or len(prompt.token_ids) <= model.context_length_tokens:
        return prompt
    return evolve(prompt, token_ids=prompt.token_ids[: model.context_length_tokens])


def fit(ask: Ask, prompt_tokens: int, model: ModelSettings) -> int:
    """Return how many tokens may be generated after prompt_tokens; raises ContextOverflow or InvalidRequest."""
    context = model.context_length_tokens
    room = context - model.reserved_tokens - prompt_tokens
    wanted = ask.limits.max_new_tokens
    if prompt_tokens == 0:
        raise InvalidRequest("The prompt is empty.", "prompt")
    if model.truncates:
        return _clamped(ask, max(0, room))
    reserved = f", of which {model.reserved_tokens} are reserved" if model.reserved_tokens else ""
    if room <= 0:
        raise ContextOverflow(
            f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens"
            f"{reserved}).",
            prompt_tokens=prompt_tokens,
            requested_tokens=wanted,
            context_tokens=context,
        )
    if wanted is None:
        return room
    if ask.limits.may_shrink:
        return min(wanted, room)
    if wanted > room:
        raise ContextOverflow(
            f"Requested token count exceeds the model's maximum context length of {context} tokens{reserved}. You "
            f"requested a total of {prompt_tokens + wanted} tokens: {prompt_tokens} tokens from the input messages and "
            f"{wanted} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit.",
            prompt_tokens=prompt_tokens,
            requested_tokens=wanted,
            context_tokens=context,
        )
    return wanted


def _clamped(ask: Ask, room: int) -> int:
    wanted = ask.limits.max_new_tokens
    most = room if wanted is None else min(wanted, room)
    if ask.limits.min_new_tokens > most:
        text = f"min_new_tokens of {ask.limits.min_new_tokens} does not fit the {most} tokens left of the context."
        raise InvalidRequest(text, "min_tokens")
    return most


def check_start(ask: Ask, prompt_tokens: int) -> None:
    """Raise InvalidRequest where logprobs of the prompt are wanted from beyond its end."""
    start = ask.prompt_logprobs_from
    if start is not None and start > prompt_tokens:
        text = f"logprob_start_len={start} is higher than the number of input tokens {prompt_tokens}. "
        raise InvalidRequest(f"{text}Please use a smaller logprob_start_len.", "logprob_start_len")


def _end_unsubmitted(submits: Sequence[Submit]) -> None:
    """Answer an abort that came before the engine knew the request as one that came while it waited."""
    for submit in submits:
        ended = Ended(submit.key.choice, Finish("abort", message=ABORTED_WAITING), Usage(len(submit.prompt_ids), 0))
        submit.mailbox.send_nowait(ended)


def _rules(ask: Ask, model: ModelSettings, grammar: Grammar | None) -> Rules | None:
    """Return what tokens must obey, None for nothing; without masks min_new_tokens is the scheduler's to see to."""
    rules = Rules(
        grammar=grammar,
        thinking_budget_tokens=ask.thinking_budget_tokens,
        min_new_tokens=ask.limits.min_new_tokens if model.structured_outputs else 0,
        allowed_token_ids=ask.allowed_token_ids,
    )
    is_ruled = rules.min_new_tokens > 0 or any(
        rule is not None for rule in (grammar, rules.thinking_budget_tokens, rules.allowed_token_ids)
    )
    return rules if is_ruled else None


def _prompt_logprobs_from(ask: Ask, prompt: Prompt, choice: int) -> int | None:
    """Return where the scores of the prompt begin for one choice: the first makes them for all."""
    start = ask.prompt_logprobs_from
    return None if choice or start is None or start >= len(prompt.token_ids) else start


def _submits(
    ask: Ask,
    prompt: Prompt,
    max_new_tokens: int,
    model: ModelSettings,
    mailbox: Mailbox,
    grammar: Grammar | None = None,
    trail: Trail | None = None,
) -> list[Submit]:
    seed = ask.sampling.seed if ask.sampling.seed is not None else secrets.randbits(62)
    wait_until_s = math.inf if model.queue_timeout_s is None else trio.current_time() + model.queue_timeout_s
    stop_token_ids = frozenset() if ask.limits.ignore_eos else ask.limits.stop_token_ids | model.eos_token_ids
    stop = (*model.chat_stop, *ask.limits.stop) if isinstance(ask.prompt, Chat) else ask.limits.stop
    rules = _rules(ask, model, grammar)
    return [
        Submit(
            key=ChoiceKey(ask.request_id, choice),
            prompt_ids=prompt.token_ids,
            sampling=ask.sampling,
            seed=seed + choice,
            max_new_tokens=max_new_tokens,
            min_new_tokens=ask.limits.min_new_tokens,
            stop_token_ids=stop_token_ids,
            stop=stop,
            stop_regex=ask.limits.stop_regex,
            form=ask.form,
            in_reasoning=prompt.in_reasoning,
            logprobs=ask.logprobs,
            num_top_logprobs=ask.num_top_logprobs,
            mailbox=mailbox,
            priority=ask.priority,
            namespace=ask.namespace,
            session=ask.session,
            routing_key=ask.routing_key,
            wait_until_s=wait_until_s,
            tells_start=ask.tells_start,
            rules=rules,
            penalties=ask.penalties,
            logit_bias=ask.logit_bias,
            logprob_token_ids=ask.logprob_token_ids,
            prompt_logprobs_from=_prompt_logprobs_from(ask, prompt, choice),
            is_open_ended=ask.limits.max_new_tokens is None,
            ignores_eos=ask.limits.ignore_eos,
            engine_rid=ask.engine_rids[choice] if ask.engine_rids else None,
            passed_fields=ask.passed_fields,
            passed_sampling=ask.passed_sampling,
            trail=trail,
        )
        for choice in range(ask.num_choices)
    ]
