"""Decides what each step runs; plain calls, no trio and no clock.

Theory of operation. A choice waits in the admission queue, which belongs to the channel, until its tokens' pages, a
slot and a share of its future fit (budget.py). It then owns one slot and the pages of all it knows, is prefilled in
chunks, and decodes one token a step. `plan` gives the next step, `complete` takes its output; in between the choices
of that step are *in flight*: one that ends there keeps its slot and pages until its last step is done, since the device
still writes them. What clients must hear gathers in the outbox.

With `overlap` a second step is planned while the first is on the device, so that the device never waits for the host.
A decoding row needs no token from here: the device reads its own newest, and where it stands follows from how many of
the choice's steps are in flight. What cannot be known ahead is only wasted, never wrong: the row of a choice whose
token in flight ends it runs once more, and that token is dropped. A prompt has one chunk in flight at a time. Planning
ahead takes free pages only; whatever would retract or end a choice waits until nothing is in flight.

Prefill and decode are different graphs and take turns whenever both have rows, so neither waits for more than one
step of the other.

When a decoding row finds no free page the newest choice gives its own back: it is *retracted*, waits in front of the
queue, and is prefilled again over prompt + generated tokens. The token then sampled is the one that would have come
anyhow, sampling being a pure function of logits, seed and position. The oldest choice is never retracted, so it ends,
so everything ends. Recomputing a generated token by prefill can differ in the last bits from having decoded it.

# Invariant: a choice is in exactly one of prefilling, decoding, retracted, or ended; the first two own a slot.
# Invariant: every choice ends once: one row with a finish, or one entry in `dropped`.
"""

from collections import deque
from collections.abc import Container, Iterable
from itertools import islice
from typing import Protocol

from attrs import define, field, frozen

from graphs.keys import Family
from graphs.step import Capacity, StepOutput
from stages.errors import EngineFailure
from stages.messages import Cancel, ChoiceKey, Finish, Load, StepPlan, Submit, TokensRow, Usage
from stages.scheduler.budget import Budget, budget_of
from stages.scheduler.choice import Choice
from stages.scheduler.compose import Row, compose, decode_row, prefill_row
from stages.scheduler.lifecycle import Phase, Signal
from stages.scheduler.memory import Memory
from stages.scheduler.outbox import Outbox
from stages.scheduler.policies import Policy
from stages.settings import SchedulerSettings

TOO_LONG = "Request prompt exceeds the KV memory budget: input_len={}."
OUT_OF_MEMORY = "Out of memory even after retracting all other requests in the decode batch. Aborting the last request."
ABORTED = "Aborted"
ABORTED_WAITING = "Abort in waiting queue"
ENGINE_FAILED = "The engine failed while the request ran."


class Queue(Protocol):
    """What the core needs of stages.channels.Admission."""

    waiting: dict[ChoiceKey, Submit]
    waiting_tokens: int
    running: Container[str]

    def take(self, key: ChoiceKey) -> Submit:
        """Remove and return one waiting choice; raises KeyError."""
        ...

    def take_fresh(self) -> list[Submit]:
        """Return what came since the last call and still waits."""
        ...

    def choices_of(self, request_id: str) -> list[ChoiceKey]:
        """Return the waiting choices of a request."""
        ...


@frozen(eq=False)
class Flight:
    """A step on the device, or next on it."""

    step: int
    family: Family
    rows: tuple[Row, ...]


@define(eq=False)
class SchedulerCore:
    """Queue, choices, pages and slots of one engine."""

    settings: SchedulerSettings
    capacity: Capacity
    queue: Queue
    policy: Policy
    budget: Budget = field(init=False)
    memory: Memory = field(init=False)
    outbox: Outbox = field(factory=Outbox)
    # Live choices by request id and choice index; those that wait in the queue are not here.
    requests: dict[str, dict[int, Choice]] = field(factory=dict)
    prefilling: dict[Choice, None] = field(factory=dict)
    decoding: dict[Choice, None] = field(factory=dict)
    retracted: list[Choice] = field(factory=list)
    # The oldest first: at most two with overlap, else one.
    flights: deque[Flight] = field(factory=deque)
    _last_family: Family = "decode"
    _num_steps: int = 0
    _num_admitted: int = 0

    def __attrs_post_init__(self) -> None:
        self.budget = budget_of(self.settings, self.capacity)
        self.memory = Memory(self.capacity, self.budget)
        self.queue.running = self.requests

    # --- orders -------------------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        """End at once what came and can never run, or has nothing to generate."""
        for submit in self.queue.take_fresh():
            num_tokens = len(submit.prompt_ids)
            if not self.budget.can_ever_fit(num_tokens):
                self._end_waiting(submit, Finish("abort", message=TOO_LONG.format(num_tokens), status=400))
            elif submit.max_new_tokens <= 0:
                self._end_waiting(submit, Finish("length"))

    def cancel(self, order: Cancel) -> None:
        """End the choices that `order` names, wherever they stand; unknown ones are ignored."""
        for key in self.queue.choices_of(order.request_id):
            if order.choice in (None, key.choice):
                submit = self.queue.take(key)
                self._tell_cancelled(order, submit, Usage(len(submit.prompt_ids), 0), was_waiting=True)
        for choice in list(self.requests.get(order.request_id, {}).values()):
            if order.choice in (None, choice.submit.key.choice):
                was_waiting = choice.phase is Phase.RETRACTED
                self._close(choice)
                self._tell_cancelled(order, choice.submit, choice.usage, was_waiting)

    def _tell_cancelled(self, order: Cancel, submit: Submit, usage: Usage, was_waiting: bool) -> None:
        if order.deliver:
            message = ABORTED_WAITING if was_waiting and order.message == ABORTED else order.message
            self.outbox.ended(submit, Finish("abort", message=message), usage)
        else:
            # Only a stop string found ends one choice with nobody to tell: the detokenizer has told already.
            self.outbox.dropped(submit, "abort" if order.choice is None else "stop")

    def fail(self) -> None:
        """End everything because the device is lost; nothing can be planned after it."""
        finish = Finish("error", message=ENGINE_FAILED, status=500)
        while self.flights:
            for row in self.flights.popleft().rows:
                self._landed(row.choice)
        for submit in list(self.queue.waiting.values()):
            self._end_waiting(submit, finish)
        for choice in [choice for choices in self.requests.values() for choice in choices.values()]:
            self._end(choice, finish)

    # --- one step -----------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """Return the next step, or None while enough are in flight or nothing can run."""
        if len(self.flights) >= (2 if self.settings.overlap else 1):
            return None
        while True:
            self._admit()
            family = self._next_family()
            if family is None:
                return None
            rows = self._prefill_rows() if family == "prefill" else self._decode_rows()
            if rows:
                return self._launch(family, rows)
            if self.flights:
                return None
            # Finding pages can end or retract every row; each such round leaves fewer running, so this loop ends.

    def complete(self, step: int, output: StepOutput) -> None:
        """Take the output of the oldest step in flight; raises EngineFailure when it is another step's."""
        oldest = self.flights[0].step if self.flights else None
        if step != oldest:
            raise EngineFailure(f"step {step} is done but {oldest} is in flight")
        flight = self.flights.popleft()
        self.outbox.counts[f"steps_{flight.family}"] += 1
        token_ids, logprobs = output.token_ids.tolist(), output.logprobs.tolist()
        for index, row in enumerate(flight.rows):
            choice = row.choice
            self._landed(choice)
            if choice.phase is Phase.ENDED:
                continue
            choice.num_computed = row.start + row.num_valid
            if row.samples:
                self._sampled(choice, token_ids[index], logprobs[index], _best(choice.submit, index, output))

    # --- what others read ---------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits, runs or is on the device."""
        return not self.queue.waiting and not self.requests and not self.flights

    def load(self) -> Load:
        """Return where the engine stands."""
        return Load(
            running=len(self.prefilling) + len(self.decoding),
            waiting=len(self.queue.waiting) + len(self.retracted),
            waiting_tokens=self.queue.waiting_tokens + sum(choice.num_tokens for choice in self.retracted),
            used_pages=self.memory.pages.num_used,
            total_pages=self.memory.pages.size - 1,
            used_slots=self.memory.slots.num_used,
            total_slots=self.memory.slots.size - 1,
            page_size_tokens=self.capacity.page_size_tokens,
        )

    # --- admission ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Let in what fits, the retracted first, then the queue in the policy's order, up to the first too big."""
        num_running = len(self.prefilling) + len(self.decoding)
        if num_running >= self.budget.max_rows or not (self.retracted or self.queue.waiting):
            return
        num_reserved = self.memory.reserved_pages(self._running())
        while self.retracted:
            choice = self.retracted[0]
            if not self.budget.can_ever_fit(choice.num_tokens):
                self._end(choice, Finish("abort", message=OUT_OF_MEMORY, status=500))
            elif self._fits(choice.num_tokens, choice.num_remaining, num_reserved):
                self.retracted.pop(0)
                num_reserved += self._start(choice)
            else:
                return
        for submit in list(islice(self.queue.waiting.values(), self.budget.max_rows - num_running)):
            if not self._fits(len(submit.prompt_ids), submit.max_new_tokens, num_reserved):
                return
            choice = Choice(self.queue.take(submit.key), self._num_admitted)
            self._num_admitted += 1
            self.requests.setdefault(submit.key.request_id, {})[submit.key.choice] = choice
            num_reserved += self._start(choice)

    def _fits(self, num_tokens: int, num_remaining: int, num_reserved: int) -> bool:
        num_running = len(self.prefilling) + len(self.decoding)
        return self.memory.fits(num_tokens, num_remaining, num_running, num_reserved)

    def _start(self, choice: Choice) -> int:
        """Begin the prefill of all the choice's tokens; returns the pages to keep for its future."""
        choice.on(Signal.ADMIT)
        choice.num_computed = 0
        self.memory.hold(choice)
        self.prefilling[choice] = None
        return self.memory.reserved_pages([choice])

    # --- composing ----------------------------------------------------------------------------------------------------

    def _running(self) -> Iterable[Choice]:
        yield from self.prefilling
        yield from self.decoding

    def _next_family(self) -> Family | None:
        if self.prefilling and self.decoding:
            return "decode" if self._last_family == "prefill" else "prefill"
        if self.prefilling:
            return "prefill"
        return "decode" if self.decoding else None

    def _prefill_rows(self) -> list[Row]:
        """Return the oldest prompt's next chunk, and others' that need no longer a step than it does.

        None while the oldest has a chunk in flight: nobody overtakes it.
        """
        rows: list[Row] = []
        sizes = self.capacity.buckets.tokens
        for choice in self.prefilling:
            if choice.num_flights:
                if not rows:
                    return []
                continue
            row = prefill_row(choice, self.budget.chunk_tokens)
            if not rows:
                bucket_tokens = next(size for size in sizes if size >= row.num_valid)
            if row.num_valid <= bucket_tokens:
                rows.append(row)
            if len(rows) == self.budget.max_prefill_rows:
                break
        return rows

    def _decode_rows(self) -> list[Row]:
        """Return a row for each decoding choice, by turns when they are more than a step holds; none without memory."""
        # One whose token in flight is its last has nothing more to run.
        going_on = (choice for choice in self.decoding if choice.num_flights < choice.num_remaining)
        chosen = list(islice(going_on, self.budget.max_decode_rows))
        if self.flights:
            if not self._grow_ahead(chosen):
                return []
        else:
            for choice in sorted(chosen, key=lambda choice: choice.number):
                if choice.phase is Phase.DECODING:
                    self._grow(choice)
            chosen = [choice for choice in chosen if choice.phase is Phase.DECODING]
        if len(chosen) < len(self.decoding):
            for choice in chosen:
                del self.decoding[choice]
                self.decoding[choice] = None
        return [decode_row(choice) for choice in chosen]

    def _grow(self, choice: Choice) -> None:
        """Give a decoding choice the page of its newest token, retracting the newest choices until one is free."""
        while self.memory.lacks_pages(choice):
            if not self.budget.can_ever_fit(choice.num_tokens):
                self._end(choice, Finish("abort", message=OUT_OF_MEMORY, status=500))
                return
            if self.memory.pages.num_free:
                self.memory.add_page(choice)
                continue
            newest = max(self._running(), key=lambda other: other.number)
            self._retract(newest)
            if newest is choice:
                return

    def _grow_ahead(self, chosen: Iterable[Choice]) -> bool:
        """Give each choice the page it lacks; returns False, giving none, where it takes a retraction or an end."""
        lacking = [choice for choice in chosen if self.memory.lacks_pages(choice)]
        if len(lacking) > self.memory.pages.num_free:
            return False
        if not all(self.budget.can_ever_fit(choice.num_tokens + choice.num_flights) for choice in lacking):
            return False
        for choice in lacking:
            self.memory.add_page(choice)
        return True

    # Invariant: nothing is in flight here, since what a choice gives back is handed out at once.
    def _retract(self, choice: Choice) -> None:
        self._forget(choice)
        choice.on(Signal.RETRACT)
        self.memory.release(choice)
        self.retracted.append(choice)
        self.retracted.sort(key=lambda other: other.number)
        self.outbox.counts["retractions"] += 1

    def _launch(self, family: Family, rows: list[Row]) -> StepPlan:
        self._num_steps += 1
        self._last_family = family
        plan = StepPlan(
            self._num_steps,
            compose(family, rows, self.memory.table, self.capacity.buckets, self.capacity.page_size_tokens),
        )
        self.flights.append(Flight(self._num_steps, family, tuple(rows)))
        for row in rows:
            row.choice.num_flights += 1
        return plan

    # --- results and ends ---------------------------------------------------------------------------------------------

    def _sampled(
        self, choice: Choice, token_id: int, logprob: float, best: tuple[tuple[tuple[int, float], ...], ...]
    ) -> None:
        submit = choice.submit
        if not choice.generated:
            self.outbox.counts["prompt_tokens"] += len(submit.prompt_ids)
        choice.generated.append(token_id)
        finish = choice.finish_after_newest()
        logprobs = (logprob,) if submit.logprobs else ()
        self.outbox.sampled(TokensRow(submit, (token_id,), logprobs, best, finish, choice.usage))
        if finish is not None:
            self._close(choice)
        elif choice.phase is Phase.PREFILLING:
            choice.on(Signal.SAMPLE)
            del self.prefilling[choice]
            self.decoding[choice] = None

    def _end_waiting(self, submit: Submit, finish: Finish) -> None:
        self.queue.take(submit.key)
        self.outbox.ended(submit, finish, Usage(len(submit.prompt_ids), 0))

    def _end(self, choice: Choice, finish: Finish) -> None:
        self._close(choice)
        self.outbox.ended(choice.submit, finish, choice.usage)

    def _close(self, choice: Choice) -> None:
        """Move a choice to its end and free what it holds, now or when its last step is done."""
        key = choice.submit.key
        self._forget(choice)
        choice.on(Signal.END)
        del self.requests[key.request_id][key.choice]
        if not self.requests[key.request_id]:
            del self.requests[key.request_id]
        if not choice.num_flights:
            self.memory.release(choice)

    def _landed(self, choice: Choice) -> None:
        choice.num_flights -= 1
        if choice.phase is Phase.ENDED and not choice.num_flights:
            self.memory.release(choice)

    def _forget(self, choice: Choice) -> None:
        self.prefilling.pop(choice, None)
        self.decoding.pop(choice, None)
        if choice.phase is Phase.RETRACTED:
            self.retracted.remove(choice)


def _best(submit: Submit, index: int, output: StepOutput) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the row's best ids with their logprobs as wanted, one entry a sampled token."""
    if not submit.num_top_logprobs or output.top_ids is None or output.top_logprobs is None:
        return ()
    ids = output.top_ids[index, : submit.num_top_logprobs].tolist()
    return (tuple(zip(ids, output.top_logprobs[index, : submit.num_top_logprobs].tolist(), strict=True)),)
