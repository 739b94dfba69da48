"""Every class that crosses a channel; each docstring begins `from -> to`.

Messages are frozen and never changed after sending. Orders are imperative (Submit, Cancel), facts are past tense
(StepDone, Ended), data are nouns (Delta, Usage).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import trio
from attrs import define, field, frozen

from graphs.step import Floats, StepInput, StepOutput, Transfer, Words
from stages.trace_context import TraceContext

if TYPE_CHECKING:
    from attrs import frozen as checked_frozen

    from stages.mailbox import Mailbox
    from stages.trail import Trail
else:
    # For what is made anew for every row of every step: the type checker alone keeps it from being changed, which takes
    # a third of the time to make.
    checked_frozen = define

# ---------------------------------------------------------------------------------------------------------------------
# What a client asks for: dialect -> request task
# ---------------------------------------------------------------------------------------------------------------------


@frozen
class Sampling:
    """How the next token is drawn; a seed of None is replaced by a fresh one at admission."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None


@frozen
class Limits:
    """When generation ends; max_new_tokens None means the rest of the context."""

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    # Whether a max_new_tokens that the context has no room for is cut to it instead of refused.
    may_shrink: bool = False


@frozen
class Penalties:
    """What tokens that came already lose: as often as they came, once, and by division; 0, 0 and 1 are off."""

    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0


@frozen
class Tool:
    """A function the model may call; parameters is its JSON schema or None."""

    name: str
    definition: Mapping[str, Any]
    parameters: Mapping[str, Any] | None = None
    # Whether a call of it always follows its schema, required or not.
    is_strict: bool = False


@frozen
class TextGrammar:
    """What the visible text must be; `text` is the schema or structural tag as JSON, the pattern or the grammar.

    json_object is any JSON object, and choice one of the strings of a JSON array.
    """

    kind: Literal["json_schema", "json_object", "regex", "ebnf", "structural_tag", "choice"]
    text: str = ""
    # Where a reasoning parser runs: whether it waits for the thinking's end, or begins with the first token.
    after_reasoning: bool = True
    # Whether JSON may have whitespace between its tokens, or is written without any.
    any_whitespace: bool = True


@frozen
class ToolGrammar:
    """How the answer must call tools; without `is_required` plain text may come instead, calls are still held to it."""

    tools: tuple[Tool, ...]
    is_required: bool
    # Which of the tools may be called.
    names: tuple[str, ...]
    is_parallel: bool = True


Constraint = TextGrammar | ToolGrammar


@frozen
class TextForm:
    """How token ids become text; parsers are off for raw text, and keep_stop leaves a matched stop in."""

    skip_special_tokens: bool = True
    keep_stop: bool = False
    parse_reasoning: bool = False
    parse_tools: bool = False
    stream_reasoning: bool = True
    tools: tuple[Tool, ...] = ()
    # A stop string that is whole before so many tokens exist does not end the answer.
    stops_after_tokens: int = 0


@frozen
class Chat:
    """Messages and tools for the chat template, in neutral form.

    A message is a mapping with role, content (str, or None), and where they apply reasoning_content (str),
    tool_calls (list of {id, name, arguments: mapping}), tool_call_id, name (of who or what says it), parts (the texts
    that content joins, if some); template holds the switches the template knows (reasoning_effort, enable_thinking,
    clear_thinking), facts what else of the request it may read (tool_choice, response_format).
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Tool, ...] = ()
    template: Mapping[str, Any] = field(factory=dict)
    continue_final_message: bool = False
    facts: Mapping[str, Any] = field(factory=dict)
    # Whether the prompt ends by opening the assistant's turn; only /tokenize asks for history alone.
    opens_turn: bool = True


@frozen
class Ask:
    """dialect -> request task: one prompt and what to do with it, n choices of it."""

    request_id: str
    prompt: Chat | str | tuple[int, ...]
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    form: TextForm = TextForm()
    num_choices: int = 1
    stream: bool = False
    # Whether an empty Delta comes first, once the prompt has met the cache: how much of it was found there.
    tells_start: bool = False
    logprobs: bool = False
    num_top_logprobs: int = 0
    # Ids whose logprobs come with every token's.
    logprob_token_ids: tuple[int, ...] = ()
    # The first token of the prompt whose successors' logprobs are wanted; None wants no prompt logprobs.
    prompt_logprobs_from: int | None = None
    constraint: Constraint | None = None
    # The field of a text's grammar, for the complaint about one that cannot be enforced.
    constraint_field: str | None = None
    penalties: Penalties = Penalties()
    # Token ids and what is added to their logits.
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: frozenset[int] | None = None
    # How many tokens the thinking may take before it is closed.
    thinking_budget_tokens: int | None = None
    priority: int | None = None
    # Prompts of different namespaces (cache_salt, extra_key) never share cached state.
    namespace: str = ""
    session: str | None = None
    routing_key: str | None = None
    timeout_s: float | None = None
    # What only an engine behind this server reads: its id for each choice, fields of its body and of sampling_params.
    engine_rids: tuple[str, ...] = ()
    passed_fields: Mapping[str, Any] = field(factory=dict)
    passed_sampling: Mapping[str, Any] = field(factory=dict)


# ---------------------------------------------------------------------------------------------------------------------
# Request task <-> prompt stage
# ---------------------------------------------------------------------------------------------------------------------


@frozen
class Tokenize:
    """What the ids of some prompts are, each as generation would have them, and the vocabulary's names of the ids."""

    prompts: tuple[Chat | str, ...]
    # Whether the tokenizer adds what it adds to every text; a Chat has its own control tokens either way.
    add_special_tokens: bool = True
    with_names: bool = False


@frozen
class Detokenize:
    """What the texts of some sequences of ids are."""

    sequences: tuple[tuple[int, ...], ...]
    skip_special_tokens: bool = True


@frozen
class ParseText:
    """What reasoning and tool calls an answer's text holds; a parser of None is off."""

    text: str
    # Of more tokens than an answer can have nothing is parsed: it would keep everybody's prompts waiting.
    max_tokens: int
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    tools: tuple[Tool, ...] = ()


@frozen(eq=False)
class Decode:
    """What the tokens of an answer that somebody else generated say; a parser of None is off."""

    prompt: "Chat | str | tuple[int, ...] | Prompt"
    # Makes the tokens, once the prompt is known.
    rows: "Callable[[Prompt], Sequence[TokensRow]]"
    reasoning_parser: str | None = None
    tool_parser: str | None = None


Work = Chat | str | tuple[int, ...] | Tokenize | Detokenize | ParseText | Decode


@frozen(eq=False)
class Render:
    """request task -> prompt stage: make a Prompt of a prompt, or answer a question of text and ids, to `reply`."""

    prompt: Work
    reply: "trio.MemorySendChannel[WorkDone | Exception]"


@frozen
class Prompt:
    """prompt stage -> request task: ids, and whether generation begins inside the thinking block, None for unknown."""

    token_ids: tuple[int, ...]
    in_reasoning: bool | None


@frozen
class Tokenized:
    """prompt stage -> request task: each prompt's ids, and their names where they were asked for."""

    token_ids: tuple[tuple[int, ...], ...]
    names: tuple[tuple[str, ...], ...] | None = None


@frozen
class Detokenized:
    """prompt stage -> request task: each sequence's text."""

    texts: tuple[str, ...]


@frozen
class ParsedText:
    """prompt stage -> request task: runs of reasoning and of visible text in order, and the calls, each whole."""

    blocks: "tuple[TextBlock, ...]"
    calls: "tuple[ToolCallDelta, ...]"


@frozen
class TextBlock:
    """A run of one kind in an answer's text."""

    kind: Literal["reasoning", "text"]
    text: str


@frozen(eq=False)
class Decoded:
    """prompt stage -> request task: the prompt, and the events of each row."""

    prompt: Prompt
    events: "tuple[tuple[Event, ...], ...]"


WorkDone = Prompt | Tokenized | Detokenized | ParsedText | Decoded


# ---------------------------------------------------------------------------------------------------------------------
# Request task <-> grammar stage <-> scheduler
# ---------------------------------------------------------------------------------------------------------------------


class Grammar(Protocol):
    """A compiled constraint; opaque to all but the grammar stage, which made it."""

    @property
    def constraint(self) -> Constraint:
        """Return what it was compiled from."""
        ...


@frozen(eq=False)
class CompileGrammar:
    """request task -> grammar stage: compile a constraint; the Grammar, or the RequestError it earned, to `reply`."""

    constraint: Constraint
    reply: "trio.MemorySendChannel[Grammar | Exception]"


@frozen(eq=False)
class Rules:
    """What every next token of a choice must obey besides its sampling; of all None nothing.

    min_new_tokens rules the end tokens out until so many tokens exist.
    """

    grammar: Grammar | None = None
    thinking_budget_tokens: int | None = None
    min_new_tokens: int = 0
    allowed_token_ids: frozenset[int] | None = None


@frozen(eq=False)
class FillMasks:
    """scheduler -> grammar stage: tokens that choices have got since the last time, none at first; masks are wanted."""

    rows: "tuple[tuple[Submit, tuple[int, ...]], ...]"


@checked_frozen(eq=False)
class Mask:
    """What may come next in one choice: allowed [ceil(V / 32)] as in graphs.step.Edits, None for anything.

    The num_free tokens after the newest, this one among them, may be sampled without a mask whatever they are. When
    is_complete nothing more may come: the choice ends. An error ends it too.
    """

    submit: "Submit"
    allowed: Words | None = None
    num_free: int = 0
    is_complete: bool = False
    error: Exception | None = None


@frozen(eq=False)
class MasksFilled:
    """grammar stage -> scheduler: masks of some of the choices that were asked for; the others follow."""

    masks: tuple[Mask, ...]


GrammarInbox = CompileGrammar | FillMasks

# ---------------------------------------------------------------------------------------------------------------------
# -> scheduler
# ---------------------------------------------------------------------------------------------------------------------


@frozen
class ChoiceKey:
    """Names one running choice: the request's id and the choice's index."""

    request_id: str
    choice: int

    def __str__(self) -> str:
        """Return the key as it stands in logs."""
        return f"{self.request_id}/{self.choice}"


@frozen(eq=False)
class Submit:
    """request task -> scheduler: run one choice; its Deltas and its one Ended go to `mailbox`, sized at admission.

    Everything is resolved: sampling.seed is an int, max_new_tokens is within the context, stop_token_ids holds
    the model's end tokens too unless ignore_eos.
    """

    key: ChoiceKey
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    max_new_tokens: int
    min_new_tokens: int
    stop_token_ids: frozenset[int]
    stop: tuple[str, ...]
    form: TextForm
    # None where the prompt does not say: then the format decides.
    in_reasoning: bool | None
    logprobs: bool
    num_top_logprobs: int
    mailbox: "Mailbox"
    # None is --default-priority-value, or the worst there is.
    priority: int | None = None
    namespace: str = ""
    session: str | None = None
    routing_key: str | None = None
    # The instant on trio's clock at which it gives up waiting for its first admission.
    wait_until_s: float = math.inf
    # Patterns that end the visible text as the strings of stop do.
    stop_regex: tuple[str, ...] = ()
    # Whether its first event is an empty Delta, at its first admission.
    tells_start: bool = False
    # None where any token may come.
    rules: Rules | None = None
    penalties: Penalties = Penalties()
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprob_token_ids: tuple[int, ...] = ()
    # Of the choices of one request only the first scores the prompt they share.
    prompt_logprobs_from: int | None = None
    # What only an engine behind this server reads: whether max_new_tokens is but what the context has left, whether end
    # tokens end nothing, the id it knows the choice by, fields of its body and of sampling_params as they are.
    is_open_ended: bool = False
    ignores_eos: bool = False
    engine_rid: str | None = None
    passed_fields: Mapping[str, Any] = field(factory=dict)
    passed_sampling: Mapping[str, Any] = field(factory=dict)
    # Where its call's instants are noted, None where nobody asks.
    trail: "Trail | None" = None

    @property
    def has_text_stops(self) -> bool:
        """Whether its text can end it, which the detokenizer finds out after the scheduler has gone on."""
        return bool(self.stop or self.stop_regex)


@frozen
class Cancel:
    """request task, detokenizer or admin -> scheduler: end these choices and free what they hold.

    With choice None every choice of the request ends. `deliver` says whether an Ended("abort") must reach the mailbox
    (an admin's abort) or nobody listens any more (a client that left, a stop string found).
    """

    request_id: str
    choice: int | None = None
    deliver: bool = False
    message: str = "Aborted"
    # How many of a choice's tokens its client keeps, where that is not all of them: those up to a stop string.
    num_generated: int | None = None
    # What request_id names: one request; every request whose id begins with it, nobody's with an empty one; all.
    scope: Literal["request", "prefix", "all"] = "request"


@frozen
class Arrived:
    """admission -> scheduler: the queue has something new."""


@frozen(eq=False)
class Bumped:
    """admission -> scheduler: a waiting choice lost its place to one of better priority."""

    submit: Submit


@frozen
class FlushCache:
    """Forget every cached prefix, on the device and in host memory, when nothing runs or waits."""

    # Wait until nothing does, instead of failing.
    waits: bool = False


@frozen
class Pause:
    """Stop planning steps: end everything first (abort), send what runs back to the queue (retract), or just stop."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


@frozen
class Resume:
    """Plan steps again."""


@frozen
class OpenSession:
    """Begin a session: what its next turn needs is pinned in the cache; a session_id of None makes one up."""

    session_id: str | None = None
    # Seconds without a request after which the session is closed.
    timeout_s: float | None = None


@frozen
class CloseSession:
    """End a session and unpin what it held."""

    session_id: str


@frozen
class CommandResult:
    """scheduler -> admin route: whether the order was carried out, and its text: a reason or a session's id."""

    is_done: bool
    text: str = ""


@frozen(eq=False)
class Command:
    """admin route -> scheduler: an order with an answer; one whose reply nobody awaits any more is dropped."""

    order: FlushCache | Pause | Resume | OpenSession | CloseSession
    reply: "trio.MemorySendChannel[CommandResult]"


@frozen
class Drain:
    """server -> scheduler: admit nothing more, finish what runs, then return."""


@frozen(eq=False)
class StepPlan:
    """scheduler -> executor: one step; rows name whose row is whose, input is what the device reads."""

    step: int
    input: StepInput


@frozen(eq=False)
class StepDone:
    """executor -> scheduler: the step's output."""

    step: int
    output: StepOutput


@frozen(eq=False)
class StepFailed:
    """executor -> scheduler: the device is lost, by a step or a transfer of that number."""

    step: int
    error: Exception


@frozen(eq=False)
class StartTransfer:
    """scheduler -> executor: copy between device and host memory beside the steps."""

    number: int
    transfer: Transfer


@frozen
class TransferDone:
    """executor -> scheduler: the transfer of that number has happened."""

    number: int


SchedulerInbox = Arrived | Bumped | Cancel | Command | Drain | MasksFilled | StepDone | StepFailed | TransferDone

# ---------------------------------------------------------------------------------------------------------------------
# scheduler -> detokenizer -> request task
# ---------------------------------------------------------------------------------------------------------------------

FinishKind = Literal["stop", "length", "content_filter", "abort", "error"]
# Why a call was refused or failed; those up to unavailable are 503s. displaced is by a request of better priority.
Cause = Literal[
    "queue_full",
    "queue_timeout",
    "displaced",
    "draining",
    "timeout",
    "priority_refused",
    "unavailable",
    "context_length",
    "out_of_memory",
    "body_too_large",
    "body_too_slow",
    "invalid",
    "aborted",
    "engine_refused",
    "engine_failed",
    "internal",
]


@frozen
class Finish:
    """Why a choice ended: matched is the stop token id or stop string, status the HTTP status of a refusal."""

    kind: FinishKind
    matched: int | str | None = None
    message: str | None = None
    status: int | None = None
    # Of an engine behind this server: its clients read its words, as they would without us in between.
    is_remote: bool = False
    retry_after_s: int | None = None
    # For statistics; no client reads it.
    cause: Cause | None = None


@checked_frozen(unsafe_hash=True)
class Usage:
    """Token counts of one choice so far; cached_tokens is what its first admission found cached, in either tier."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    # The part of cached_tokens that came back from host memory.
    cached_host_tokens: int = 0
    num_retractions: int = 0


@frozen(eq=False)
class PromptScores:
    """Logprobs of a prompt's tokens [N] after the submit's prompt_logprobs_from, each given all before it.

    The best ids and logprobs are [N, K], those of the submit's logprob_token_ids [N, M].
    """

    logprobs: Floats
    top_ids: Words
    top_logprobs: Floats
    wanted: Floats | None = None


@checked_frozen(eq=False)
class TokensRow:
    """One choice's share of a step: new ids with their logprobs, and the end if it ended; neither when it is let in.

    `wanted` holds for each id the logprobs of the submit's logprob_token_ids; `prompt` comes with the first row.
    """

    submit: Submit
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    finish: Finish | None = None
    usage: Usage = Usage(0, 0)
    wanted: tuple[tuple[float, ...], ...] = ()
    prompt: PromptScores | None = None


@frozen(eq=False)
class Tokens:
    """scheduler -> detokenizer: one batch a step, all rows.

    `dropped` are choices cancelled with nobody listening: no row of theirs follows, what is kept of them can go.
    """

    rows: tuple[TokensRow, ...]
    dropped: tuple[Submit, ...] = ()


@frozen
class TokenLogprob:
    """One token's logprob, its exact bytes, the best alternatives and the wanted ids as (id, logprob, bytes)."""

    token_id: int
    logprob: float
    token_bytes: bytes
    top: tuple[tuple[int, float, bytes], ...] = ()
    wanted: tuple[tuple[int, float, bytes], ...] = ()
    # Whether the token went to the visible answer, rather than to reasoning, a call or their tags.
    is_visible: bool = True


@frozen
class ToolCallDelta:
    """A piece of a tool call: name comes once, first; arguments pieces joined are one JSON object's text.

    call_id is the model's own id of the call where its format has one, and comes with the name.
    """

    index: int
    name: str | None = None
    arguments: str = ""
    call_id: str | None = None


@checked_frozen(unsafe_hash=True)
class Delta:
    """detokenizer -> request task: what one step added to a choice; text is visible text, all pieces may be empty.

    What it holds came as reasoning, text, tool calls in this order; a step of another order is several Deltas.
    """

    choice: int
    token_ids: tuple[int, ...]
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    usage: Usage = Usage(0, 0)
    # With the first Delta of a choice that wants them: the prompt's tokens from its prompt_logprobs_from on. The first
    # of them, which nothing was scored before, has the logprob NaN and no alternatives.
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@frozen
class Ended:
    """detokenizer -> request task: the end of a choice; exactly one a choice, always last."""

    choice: int
    finish: Finish
    usage: Usage


Event = Delta | Ended

# ---------------------------------------------------------------------------------------------------------------------
# anyone -> stats
# ---------------------------------------------------------------------------------------------------------------------


@frozen
class Record:
    """anyone -> stats: a count or a time, never text; lossy, and losses are counted."""

    name: str
    value: float = 1.0


# tool_calls is a stop after a call; refused came before anything of it ran, error after; disconnected: the client left.
Outcome = Literal["stop", "tool_calls", "length", "abort", "error", "refused", "disconnected"]


@frozen
class RequestRecord:
    """ingress -> stats: one generation call that has ended: what it counts and when it got where, never text.

    Instants are seconds on trio's clock, None where it never came there; with several asks or choices the first one's
    admission and first token, the last one's prompt, submission and last token. Of the prompt every ask's tokens count
    once, and as cached what its first choice found. status is None where the client left before there was one.
    """

    request_id: str
    route: str
    dialect: str
    model: str
    is_streamed: bool
    is_constrained: bool
    num_choices: int
    # Unix time of arrived_s.
    arrived_unix_s: float
    arrived_s: float
    parsed_s: float | None
    prompt_ready_s: float | None
    submitted_s: float | None
    admitted_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float
    prompt_tokens: int
    cached_device_tokens: int
    cached_host_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    retractions: int
    outcome: Outcome
    status: int | None
    cause: Cause | None
    # Its place in a distributed trace.
    trace: TraceContext | None = None


@frozen
class TokenGaps:
    """detokenizer -> stats: tokens of a step, and the seconds between two of one choice, each with how many."""

    num_tokens: int
    gaps: tuple[tuple[float, int], ...]


@frozen
class Load:
    """scheduler -> stats: where the engine stands after a step."""

    running: int
    waiting: int
    waiting_tokens: int
    used_pages: int
    total_pages: int
    used_slots: int
    total_slots: int
    page_size_tokens: int
    retracted: int = 0
    # Of used_pages, those that only the prefix cache holds and would give.
    evictable_pages: int = 0
    used_snapshots: int = 0
    total_snapshots: int = 0
    # Of used_snapshots, those the prefix cache would give.
    evictable_snapshots: int = 0
    used_host_pages: int = 0
    total_host_pages: int = 0
    used_host_snapshots: int = 0
    total_host_snapshots: int = 0
    is_paused: bool = False
    # Distinct routing keys of what runs.
    routing_keys: int = 0


StatsInbox = Record | RequestRecord | TokenGaps | Load
