"""Decides what each step runs; plain calls, no trio and no clock.

Theory of operation. A choice waits in the admission queue, which belongs to the channel, until its tokens' pages, a
slot and a share of its future fit (intake.py, budget.py). It then owns one slot and the pages of all it will compute,
and reads those of the prefix tree for what was computed before (memory.py); it is prefilled in chunks from there, and
decodes one token a step. `plan` gives the next step, `complete` takes its output; in between the choices of that step
are *in flight*: one that ends there keeps its slot and pages until its last step is done, since the device still
writes them. What clients must hear gathers in the outbox.

With `overlap` a second step is planned while the first is on the device, so that the device never waits for the host.
A decoding row needs no token from here: the device reads its own newest, and where it stands follows from how many of
the choice's steps are in flight. What cannot be known ahead is only wasted, never wrong: the row of a choice whose
token in flight ends it runs once more, and that token is dropped. A prompt has one chunk in flight at a time. Planning
ahead takes free and cached pages only; whatever would retract, preempt or end a choice waits until nothing is in
flight.

When a decoding row finds no page another gives its own back: it is *retracted*, waits in front of the queue, and is
prefilled again over prompt + generated tokens from what the tree has kept of it. The token then sampled is the one that
would have come anyhow, sampling being a pure function of logits, seed and position. The choice with the most generated
tokens is retracted last, so it ends, so everything ends. Recomputing a generated token by prefill can differ in the
last bits from having decoded it.

Everything that a step does to pages and slots besides its rows is part of the step (graphs.step.Copies), so its order
is the device's own; only copies to and from host memory run beside the steps (host_tier.py).
"""

from collections import deque
from collections.abc import Sequence

from attrs import define, field, frozen

from graphs.keys import Family, GraphKey
from graphs.step import Capacity, Ints, StepOutput
from stages.errors import EngineFailure, RequestError
from stages.messages import (
    Cancel,
    FillMasks,
    Finish,
    Load,
    MasksFilled,
    PromptScores,
    StartTransfer,
    StepPlan,
    Submit,
    TokensRow,
    Usage,
)
from stages.scheduler.budget import CHUNK_ALIGN_TOKENS, Budget, Pressure, budget_of
from stages.scheduler.choice import Choice
from stages.scheduler.compose import DecodeRows, Row, compose
from stages.scheduler.edits import with_asks
from stages.scheduler.eviction import load_eviction
from stages.scheduler.guides import Guides
from stages.scheduler.host_tier import HostTier
from stages.scheduler.intake import Intake
from stages.scheduler.lifecycle import Phase
from stages.scheduler.logprobs import best_of, wanted_of
from stages.scheduler.memory import Memory
from stages.scheduler.outbox import Outbox
from stages.scheduler.pace import Pace
from stages.scheduler.placement import Placement
from stages.scheduler.policies import Policy
from stages.scheduler.prefix_tree import PrefixTree
from stages.scheduler.queue import Queue
from stages.scheduler.roster import Roster
from stages.scheduler.rows import Rows
from stages.scheduler.sessions import Sessions
from stages.scheduler.sharing import Sharing
from stages.scheduler.waiting import Waiting, routing_number
from stages.settings import SchedulerSettings

TOO_LONG = "Request prompt exceeds the KV memory budget: input_len={}."
ABORTED = "Aborted"
ABORTED_WAITING = "Abort in waiting queue"
BUMPED = "The request is aborted by a higher priority request."
WAITED_TOO_LONG = "Request waiting timeout reached."
ENGINE_FAILED = "The engine failed while the request ran."
# Peers' distance of the snapshots of a decoding row.
GRID_TURN_END_TOKENS = 256


@frozen(eq=False)
class Flight:
    """A step on the device, or next on it."""

    step: int
    key: GraphKey
    slots: Ints
    rows: Sequence[Row] | DecodeRows


@define(eq=False)
class SchedulerCore:
    """Queue, choices, pages and slots of one engine."""

    settings: SchedulerSettings
    capacity: Capacity
    queue: Queue
    policy: Policy
    budget: Budget = field(init=False)
    memory: Memory = field(init=False)
    sessions: Sessions = field(init=False)
    guides: Guides = field(init=False)
    roster: Roster = field(init=False)
    intake: Intake = field(init=False)
    rows: Rows = field(init=False)
    host: HostTier | None = field(init=False, default=None)
    outbox: Outbox = field(factory=Outbox)
    # The oldest first: at most two with overlap, else one.
    flights: deque[Flight] = field(factory=deque)
    is_paused: bool = False
    _last_family: Family = "decode"
    _num_steps: int = 0

    def __attrs_post_init__(self) -> None:
        settings, capacity = self.settings, self.capacity
        cache, page_tokens = settings.cache, capacity.page_size_tokens
        self.budget = budget_of(settings, capacity)
        has_tree = cache is not None and self.budget.max_snapshots > 0
        is_grid = cache is not None and cache.placement == "grid"
        tree = None
        if cache is not None and has_tree:
            tree = PrefixTree(page_tokens, load_eviction(cache.eviction_policy, cache.eviction_parameters))
        pressure = Pressure(settings.schedule_conservativeness)
        turn_end_tokens = GRID_TURN_END_TOKENS if is_grid else CHUNK_ALIGN_TOKENS
        self.memory = Memory(capacity, self.budget, pressure, tree, turn_end_tokens, not is_grid)
        self.sessions = Sessions(tree, cache.max_pinned if cache is not None else 0)
        waiting = Waiting(self.policy, settings.priority, tree)
        sharing = Sharing(page_tokens, waiting)
        self.guides = Guides(self.memory.progress, settings.mask_patience_s)
        self.roster = Roster(self.memory, pressure, sharing, self.sessions, self.outbox, self.guides)
        if tree is not None and capacity.num_host_pages > 1:
            self.host = HostTier(capacity, self.memory, tree, waiting)
            self.memory.on_freed = self.host.give_back
        placement = Placement(
            page_tokens,
            cache.stride_tokens if cache is not None else 0,
            self.budget.chunk_tokens,
            cache.boundary_token_ids if cache is not None else (),
            is_grid,
        )
        self.intake = Intake(
            self.budget, self.memory, self.roster, waiting, self.queue, placement, settings.priority, self.host
        )
        pace = Pace(settings.max_token_gap_s, capacity.buckets) if settings.max_token_gap_s is not None else None
        self.rows = Rows(capacity, self.budget, self.memory, pressure, self.roster, pace)
        self.queue.running = self.roster.requests

    # --- orders -------------------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Let what came wait; what can never run, or has nothing to generate, ends at once."""
        for submit in self.queue.take_fresh():
            num_tokens = len(submit.prompt_ids)
            if not self.budget.can_ever_fit(num_tokens):
                self.queue.take(submit.key)
                message = TOO_LONG.format(num_tokens)
                self.roster.end_waiting(submit, Finish("abort", message=message, status=400, cause="context_length"))
            elif submit.max_new_tokens <= 0 and submit.prompt_logprobs_from is None:
                self.queue.take(submit.key)
                self.roster.end_waiting(submit, Finish("length"))
            else:
                self.intake.arrived(submit)

    def bump(self, submit: Submit) -> None:
        """End a choice that lost its place in the queue."""
        self.intake.forget(submit.key)
        self.roster.end_waiting(submit, Finish("abort", message=BUMPED, status=503, cause="displaced"))

    def expire(self, now_s: float) -> None:
        """End what has waited too long, close sessions that were idle too long, and expect no mask that is late."""
        for submit in self.intake.waiting.expired(now_s):
            self.intake.leave(submit.key)
            finish = Finish("abort", message=WAITED_TOO_LONG, status=503, cause="queue_timeout")
            self.roster.end_waiting(submit, finish)
        self.sessions.expire(now_s)
        self.guides.expire(now_s)

    @property
    def next_expiry_s(self) -> float:
        """Return when `expire` next has something to do."""
        return min(self.intake.waiting.next_expiry_s, self.sessions.next_expiry_s, self.guides.next_expiry_s)

    def cancel(self, order: Cancel) -> None:
        """End the choices that `order` names, wherever they stand; unknown ones are ignored."""
        for request_id in self._named(order):
            for key in self.queue.choices_of(request_id):
                if order.choice in (None, key.choice):
                    submit = self.intake.leave(key)
                    self._tell_cancelled(order, submit, Usage(len(submit.prompt_ids), 0), was_waiting=True)
            for choice in self.roster.of(request_id):
                if order.choice in (None, choice.submit.key.choice):
                    was_waiting = choice.phase is Phase.RETRACTED
                    self.roster.close(choice, _num_kept(order, choice))
                    self._tell_cancelled(order, choice.submit, choice.usage, was_waiting)

    def _named(self, order: Cancel) -> list[str]:
        if order.scope == "request":
            return [order.request_id]
        live = dict.fromkeys([*(key.request_id for key in self.queue.waiting), *self.roster.requests])
        if order.scope == "all":
            return list(live)
        return [name for name in live if order.request_id and name.startswith(order.request_id)]

    def _tell_cancelled(self, order: Cancel, submit: Submit, usage: Usage, was_waiting: bool) -> None:
        if order.deliver:
            message = ABORTED_WAITING if was_waiting and order.message == ABORTED else order.message
            self.outbox.ended(submit, Finish("abort", message=message), usage)
        else:
            # Only a stop string found ends one choice with nobody to tell: the detokenizer has told already.
            self.outbox.dropped(submit, "abort" if order.choice is None else "stop")

    def filled(self, order: MasksFilled) -> None:
        """Take masks that were asked for; of choices that have ended they are ignored."""
        for mask in order.masks:
            choice = self.roster.find(mask.submit)
            if choice is None:
                continue
            if mask.error is not None:
                self.roster.end(choice, _finish_of(mask.error))
            elif mask.is_complete:
                self.roster.end(choice, Finish("stop", matched=choice.generated[-1] if choice.generated else None))
            else:
                self.guides.filled(choice, mask)

    def take_questions(self, now_s: float) -> FillMasks | None:
        """Return and forget what the grammar stage must hear now."""
        return self.guides.take(now_s)

    def flush(self) -> None:
        """Forget every cached prefix in both tiers; only while nothing runs and no copy is under way."""
        self.sessions.unpin_all()
        if self.memory.tree is not None:
            self.memory.give_back(self.memory.tree.clear())

    def drain(self) -> None:
        """Finish what was accepted, paused or not, and save nothing more for later."""
        self.is_paused = False
        if self.host is not None:
            self.host.backs_up = False

    def fail(self) -> None:
        """End everything because the device is lost; nothing can be planned after it."""
        finish = Finish("error", message=ENGINE_FAILED, status=500, cause="engine_failed")
        for choice in self.roster.every():
            self.roster.end(choice, finish)
        while self.flights:
            flight = self.flights.popleft()
            self.memory.progress.landed(flight.slots)
            for row in flight.rows:
                self.memory.drop(row.captures)
                self.roster.landed(row.choice)
        for submit in list(self.queue.waiting.values()):
            self.intake.leave(submit.key)
            self.roster.end_waiting(submit, finish)

    # --- one step -----------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """Return the next step, or None while enough are in flight or nothing can run."""
        self.arrive()
        if self.is_paused or len(self.flights) >= (2 if self.settings.overlap else 1):
            return None
        while True:
            if self.intake.admit(bool(self.flights)):
                return None
            family = self.rows.next_family(self._last_family)
            if family is None:
                return None
            rows = self.rows.of(family, bool(self.flights))
            if rows:
                return self._launch(family, rows)
            if self.flights:
                return None
            # Finding pages can end or retract every row; each such round leaves fewer running, so this loop ends.

    def _launch(self, family: Family, rows: Sequence[Row] | DecodeRows) -> StepPlan:
        self._num_steps += 1
        self._last_family = family
        step = compose(family, rows, self.memory.table, self.capacity.buckets, self.capacity.page_size_tokens)
        step = with_asks(step, rows, self.memory, self.capacity)
        slots = step.slots[: len(rows)]
        self.memory.progress.launched(slots, (step.start + step.num_valid)[: len(rows)])
        self.flights.append(Flight(self._num_steps, step.key, slots, rows))
        return StepPlan(self._num_steps, step)

    def complete(self, step: int, output: StepOutput) -> Flight:
        """Take the output of the oldest step in flight, giving that step; raises EngineFailure for another's."""
        oldest = self.flights[0].step if self.flights else None
        if step != oldest:
            raise EngineFailure(f"step {step} is done but {oldest} is in flight")
        flight = self.flights.popleft()
        self._learn(flight, output.device_s)
        self.memory.progress.landed(flight.slots)
        if isinstance(flight.rows, DecodeRows):
            self._decoded(flight.rows, output)
        else:
            self._prefilled(flight.rows, output)
        return flight

    def _prefilled(self, rows: Sequence[Row], output: StepOutput) -> None:
        for index, row in enumerate(rows):
            choice = row.choice
            if row.captures or choice.source is not None:
                self.memory.land(choice, row.captures)
            self.roster.landed(choice)
            self.intake.served_tokens += row.num_valid
            self.outbox.counts["prefill_tokens"] += row.num_valid
            if choice.phase is Phase.ENDED:
                continue
            choice.num_computed = row.start + row.num_valid
            self.roster.sharing.landed(choice, choice.num_computed)
            if choice.scoring is not None and output.scores is not None:
                choice.scoring.take(output.scores, index, row.start, row.num_valid)
            if row.samples:
                if not choice.generated:
                    self.outbox.counts["prompt_tokens"] += len(choice.submit.prompt_ids)
                self._prompt_done(choice, index, output)

    def _prompt_done(self, choice: Choice, index: int, output: StepOutput) -> None:
        """Give a choice whose tokens are all computed its next one, or end it where none is wanted."""
        prompt = choice.scoring.done() if choice.scoring is not None else None
        choice.scoring = None
        if choice.submit.max_new_tokens > 0:
            self.memory.progress.num_tokens[choice.slot] += 1
            self._sampled((choice,), index, output, prompt)
        else:
            self.outbox.ended(choice.submit, Finish("length"), choice.usage, prompt)
            self.roster.close(choice, choice.num_tokens)

    def _decoded(self, rows: DecodeRows, output: StepOutput) -> None:
        self.intake.served_tokens += len(rows)
        # Of those that have ended too: nobody counts theirs any more.
        self.memory.progress.num_tokens[rows.slots] += 1
        self._sampled(rows.choices, 0, output)

    def _sampled(
        self, choices: Sequence[Choice], first: int, output: StepOutput, prompt: PromptScores | None = None
    ) -> None:
        """Give each choice that has not ended the token of its row, row number `first` and those after it."""
        # The one loop over all rows of a step: what is done here is done for each token the engine makes.
        end = first + len(choices)
        token_ids, logprobs = output.token_ids[first:end].tolist(), output.logprobs[first:end].tolist()
        rows: list[TokensRow] = []
        is_wanting = output.wanted is not None
        for index, (choice, token_id, logprob) in enumerate(zip(choices, token_ids, logprobs, strict=True), first):
            if choice.phase is Phase.ENDED:
                self.roster.landed(choice)
                continue
            submit, finish = choice.submit, None
            choice.generated.append(token_id)
            if token_id in submit.stop_token_ids or len(choice.generated) >= submit.max_new_tokens:
                finish = choice.finish_after_newest()
            best = best_of(submit, index, output) if submit.num_top_logprobs else ()
            own = (logprob,) if submit.logprobs else ()
            wanted = wanted_of(submit, index, output) if is_wanting and submit.logprob_token_ids else ()
            rows.append(TokensRow(submit, (token_id,), own, best, finish, choice.usage, wanted, prompt))
            if finish is not None:
                self.outbox.counts[f"choices_{finish.kind}"] += 1
                self.roster.close(choice, choice.num_tokens)
            elif choice.phase is Phase.PREFILLING:
                self.roster.sampled(choice)
        self.outbox.sampled(rows)
        if self.memory.progress.num_edited:
            for choice in choices:
                if choice.phase is not Phase.ENDED:
                    self.guides.sampled(choice)

    def _learn(self, flight: Flight, device_s: float) -> None:
        self.outbox.counts[f"steps_{flight.key.family}"] += 1
        if flight.key.family == "decode":
            self.memory.pressure.decoded()
        if self.rows.pace is not None:
            self.rows.pace.took(flight.key, device_s)

    # --- host memory --------------------------------------------------------------------------------------------------

    def transfers(self) -> list[StartTransfer]:
        """Return the copies between device and host memory to begin now."""
        return self.host.start() if self.host is not None else []

    def transferred(self, number: int) -> None:
        """Note that a copy has happened."""
        assert self.host is not None, "a transfer without a host tier"
        self.host.done(number)

    # --- what others read ---------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits, runs or is on the device."""
        is_copying = self.host is not None and self.host.is_busy
        return not (self.queue.waiting or self.roster.requests or self.flights or is_copying)

    def load(self) -> Load:
        """Return where the engine stands."""
        roster, memory, tree = self.roster, self.memory, self.memory.tree
        return Load(
            running=roster.num_running,
            waiting=len(self.queue.waiting) + len(roster.retracted),
            waiting_tokens=self.queue.waiting_tokens + sum(choice.num_tokens for choice in roster.retracted),
            used_pages=memory.pages.num_used,
            total_pages=memory.pages.size - 1,
            used_slots=memory.slots.num_used - (tree.num_snapshots if tree is not None else 0),
            total_slots=memory.slots.size - 1 - self.budget.max_snapshots,
            page_size_tokens=self.capacity.page_size_tokens,
            retracted=len(roster.retracted),
            evictable_pages=tree.num_evictable_pages if tree is not None else 0,
            used_snapshots=tree.num_snapshots if tree is not None else 0,
            total_snapshots=self.budget.max_snapshots,
            evictable_snapshots=tree.num_evictable_snapshots if tree is not None else 0,
            used_host_pages=self.host.pages.num_used if self.host is not None else 0,
            total_host_pages=self.capacity.num_host_pages - 1,
            used_host_snapshots=self.host.slots.num_used if self.host is not None else 0,
            total_host_snapshots=self.capacity.num_host_slots - 1,
            is_paused=self.is_paused,
            routing_keys=len(roster.running_keys) - (routing_number(None) in roster.running_keys),
        )


def _num_kept(order: Cancel, choice: Choice) -> int:
    """Return how many of the choice's tokens its client has: up to a stop string, or all."""
    if order.num_generated is None:
        return choice.num_tokens
    return len(choice.submit.prompt_ids) + order.num_generated


def _finish_of(error: Exception) -> Finish:
    """Return how a choice ends whose rules could not be followed."""
    return Finish("error", message=str(error), status=error.status if isinstance(error, RequestError) else 500)
