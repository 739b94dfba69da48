"""Opens the channels between the stages; each size has its reason here.

Rule: past admission every send by a shared stage is `send_nowait`, so one slow reader never stalls another.

| channel | size | why |
|---|---|---|
| admission | --max-queued-requests, --max-queued-tokens | a full one is the queue-full 503; see Admission |
| scheduler inbox | unbounded | orders and facts are few: one StepDone, a few Cancels a request |
| plans | MAX_FLIGHTS | the step on the device and the one planned ahead of it; the executor takes both at once |
| transfers | unbounded | few and small: numbers of pages and slots; host memory's own size bounds what is on its way |
| tokens | unbounded | one batch a step; the detokenizer is faster than a step, and the mailboxes bound what it writes |
| mailbox | sized at admission | a reader that falls MAILBOX_DELTAS behind is cut off |
| grammar inbox | unbounded | one FillMasks a step; the compiles that wait are bounded by GrammarSettings.max_compiles |
| prompts | PROMPT_QUEUE | waiting to be tokenized; a full one is the queue-full 503 too |
| stats | STATS_QUEUE | lossy, losses are counted |
"""

import heapq
import math
from collections.abc import Callable, Container

import trio
from attrs import define, field

from stages.errors import InvalidRequest
from stages.inbox import Inbox
from stages.mailbox import Mailbox
from stages.messages import (
    Arrived,
    Bumped,
    ChoiceKey,
    Event,
    GrammarInbox,
    SchedulerInbox,
    StartTransfer,
    StepPlan,
    Submit,
    Tokens,
)

MAX_FLIGHTS = 2
MAILBOX_DELTAS = 4096
PROMPT_QUEUE = 4096
STATS_QUEUE = 4096
# How many choices that have left the order of the worst may hold beyond one for each that waits.
_STALE = 64


@define(eq=False)
class Admission:
    """The queue in front of the scheduler: a bounded channel whose buffer the policy orders and a Cancel can leave.

    `send_nowait` raising trio.WouldBlock *is* the queue-full 503: `waiting` and `waiting_tokens` are the only counts
    there are. With a `rank` (higher is better) a full queue makes room for a better request by bumping the worst, of
    those the newest; the scheduler hears of each as Bumped and ends it. `running` is the scheduler's registry by
    request id, lent so that the id of a live request is refused here, before anybody could mistake one request's Cancel
    for the other's.
    """

    max_waiting: int
    wake: Callable[[Arrived | Bumped], None]
    max_waiting_tokens: int | None = None
    rank: Callable[[Submit], int] | None = None
    waiting: dict[ChoiceKey, Submit] = field(factory=dict)
    waiting_tokens: int = 0
    # The most that ever waited.
    high_water: int = 0
    running: Container[str] = ()
    closed: bool = False
    # An ordered set: what came since the last take_fresh and still waits.
    _fresh: dict[ChoiceKey, None] = field(factory=dict)
    _choices: dict[str, list[int]] = field(factory=dict)
    # With a rank: (rank, -number, key), the worst first, of those the newest. Some have left, so nothing but the key of
    # a choice is here: its prompt and its mailbox go when it does.
    _worst: list[tuple[int, int, ChoiceKey]] = field(factory=list)
    _numbers: dict[ChoiceKey, int] = field(factory=dict)
    _num_sent: int = 0

    def send_nowait(self, submits: tuple[Submit, ...]) -> None:
        """Queue all choices of a request or none.

        Raises trio.WouldBlock when full, trio.ClosedResourceError in a drain, InvalidRequest when the id is in use
        or the request is more than the whole queue holds.
        """
        if self.closed:
            raise trio.ClosedResourceError
        for request_id in {submit.key.request_id for submit in submits}:
            if request_id in self._choices or request_id in self.running:
                raise InvalidRequest(f"Duplicate request ID detected: {request_id}", "rid")
        num_tokens = sum(len(submit.prompt_ids) for submit in submits)
        self._check_could_fit(len(submits), num_tokens)
        for submit in self._victims(submits, num_tokens):
            self.take(submit.key)
            self.wake(Bumped(submit))
        for submit in submits:
            self.waiting[submit.key] = submit
            self.waiting_tokens += len(submit.prompt_ids)
            self._choices.setdefault(submit.key.request_id, []).append(submit.key.choice)
            self._fresh[submit.key] = None
            if self.rank is not None:
                self._num_sent += 1
                self._numbers[submit.key] = self._num_sent
                heapq.heappush(self._worst, (self.rank(submit), -self._num_sent, submit.key))
        self.high_water = max(self.high_water, len(self.waiting))
        self.wake(Arrived())

    def take(self, key: ChoiceKey) -> Submit:
        """Remove and return one waiting choice; raises KeyError when it is not waiting."""
        submit = self.waiting.pop(key)
        self.waiting_tokens -= len(submit.prompt_ids)
        self._fresh.pop(key, None)
        self._numbers.pop(key, None)
        choices = self._choices[key.request_id]
        choices.remove(key.choice)
        if not choices:
            del self._choices[key.request_id]
        if len(self._worst) > 2 * len(self.waiting) + _STALE:
            self._worst = [entry for entry in self._worst if self._waits(entry)]
            heapq.heapify(self._worst)
        return submit

    def take_fresh(self) -> list[Submit]:
        """Return what came since the last call and still waits; it stays in the queue."""
        fresh, self._fresh = self._fresh, {}
        return [self.waiting[key] for key in fresh]

    def choices_of(self, request_id: str) -> list[ChoiceKey]:
        """Return the waiting choices of a request."""
        return [ChoiceKey(request_id, choice) for choice in self._choices.get(request_id, ())]

    def close(self) -> None:
        """Refuse everything from now on; what waits is kept."""
        self.closed = True

    def _check_could_fit(self, num_choices: int, num_tokens: int) -> None:
        """Raise InvalidRequest for what an empty queue has no room for: coming again would not help."""
        if num_choices > self.max_waiting:
            text = f"n of {num_choices} can never fit a queue of {self.max_waiting} (--max-queued-requests)."
            raise InvalidRequest(text, "n")
        if self.max_waiting_tokens is not None and num_tokens > self.max_waiting_tokens:
            text = (
                f"{num_tokens} prompt tokens can never fit a queue of {self.max_waiting_tokens} (--max-queued-tokens)."
            )
            raise InvalidRequest(text)

    def _victims(self, submits: tuple[Submit, ...], num_tokens: int) -> list[Submit]:
        """Return who must leave for `submits` to fit, all of worse rank; raises trio.WouldBlock when too few are."""
        excess = len(self.waiting) + len(submits) - self.max_waiting
        limit = math.inf if self.max_waiting_tokens is None else self.max_waiting_tokens
        excess_tokens = self.waiting_tokens + num_tokens - limit
        rank = min(map(self.rank, submits)) if self.rank is not None else 0
        victims: list[tuple[int, int, ChoiceKey]] = []
        while excess > 0 or excess_tokens > 0:
            while self._worst and not self._waits(self._worst[0]):
                heapq.heappop(self._worst)
            if not self._worst or self._worst[0][0] >= rank:
                for entry in victims:
                    heapq.heappush(self._worst, entry)
                raise trio.WouldBlock
            victims.append(heapq.heappop(self._worst))
            excess, excess_tokens = excess - 1, excess_tokens - len(self.waiting[victims[-1][2]].prompt_ids)
        return [self.waiting[key] for _, _, key in victims]

    def _waits(self, entry: tuple[int, int, ChoiceKey]) -> bool:
        return self._numbers.get(entry[2]) == -entry[1]


@define(eq=False)
class Channels:
    """Both ends of every channel of one engine."""

    admission: Admission
    scheduler_send: "trio.MemorySendChannel[SchedulerInbox]"
    scheduler_receive: Inbox[SchedulerInbox]
    plans_send: "trio.MemorySendChannel[StepPlan]"
    plans_receive: Inbox[StepPlan]
    transfers_send: "trio.MemorySendChannel[StartTransfer]"
    transfers_receive: Inbox[StartTransfer]
    tokens_send: "trio.MemorySendChannel[Tokens]"
    tokens_receive: Inbox[Tokens]
    grammar_send: "trio.MemorySendChannel[GrammarInbox]"
    grammar_receive: Inbox[GrammarInbox]


def open_channels(
    max_queued_requests: int,
    max_queued_tokens: int | None = None,
    rank: Callable[[Submit], int] | None = None,
) -> Channels:
    """Return the channels of one engine whose queue holds so many choices, and of prompts so many tokens.

    With a rank, higher is better, a full queue makes room for the better.
    """
    scheduler_send, scheduler_receive = trio.open_memory_channel[SchedulerInbox](math.inf)
    plans_send, plans_receive = trio.open_memory_channel[StepPlan](MAX_FLIGHTS)
    transfers_send, transfers_receive = trio.open_memory_channel[StartTransfer](math.inf)
    tokens_send, tokens_receive = trio.open_memory_channel[Tokens](math.inf)
    grammar_send, grammar_receive = trio.open_memory_channel[GrammarInbox](math.inf)
    return Channels(
        admission=Admission(max_queued_requests, scheduler_send.send_nowait, max_queued_tokens, rank),
        scheduler_send=scheduler_send,
        scheduler_receive=Inbox(scheduler_receive),
        plans_send=plans_send,
        plans_receive=Inbox(plans_receive),
        transfers_send=transfers_send,
        transfers_receive=Inbox(transfers_receive),
        tokens_send=tokens_send,
        tokens_receive=Inbox(tokens_receive),
        grammar_send=grammar_send,
        grammar_receive=Inbox(grammar_receive),
    )


def open_mailbox(max_new_tokens: int, num_choices: int) -> "tuple[Mailbox, trio.MemoryReceiveChannel[Event]]":
    """Return a mailbox for every Delta of a short request, or MAILBOX_DELTAS of a long one, every start and Ended."""
    send, receive = trio.open_memory_channel[Event]((min(max_new_tokens, MAILBOX_DELTAS) + 2) * num_choices)
    return Mailbox(send), receive
