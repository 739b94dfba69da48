"""Who is let in: the retracted first, then the queue in the policy's order, up to the first too big. Core.

With priorities a candidate that does not fit may take the place of running choices that are worse by more than the
threshold: they are retracted, newest and worst first, if that is enough. Their state is offered to the cache before
their memory is taken, so they resume from it.
"""

from collections import deque
from enum import Enum

from attrs import define, field

from stages.messages import ChoiceKey, Finish, Submit
from stages.scheduler.budget import Budget
from stages.scheduler.choice import Choice
from stages.scheduler.host_tier import HostTier
from stages.scheduler.matching import Match
from stages.scheduler.memory import Memory
from stages.scheduler.nodes import Node
from stages.scheduler.placement import Placement
from stages.scheduler.policies import Situation
from stages.scheduler.queue import Queue
from stages.scheduler.roster import Roster
from stages.scheduler.rows import OUT_OF_MEMORY
from stages.scheduler.waiting import Waiting
from stages.settings import PrioritySettings

# Candidates looked at in one pass: those that follow a prompt being computed are passed over.
MAX_LOOKS = 64
# The end of a prompt that a template writes differently once the turn is history: what opens the answer.
MAX_REOPENED_TOKENS = 4


class Outcome(Enum):
    """What came of a candidate: the next one may be looked at, or nobody gets in, now or until no step is out."""

    GOES_ON = "goes on"
    FULL = "full"
    NEEDS_QUIET = "needs quiet"


@define(eq=False)
class Intake:
    """Admits choices into the roster."""

    budget: Budget
    memory: Memory
    roster: Roster
    waiting: Waiting
    queue: Queue
    placement: Placement
    priority: PrioritySettings | None
    host: HostTier | None
    # Tokens the engine has computed, prompts and answers.
    served_tokens: int = 0
    _num_admitted: int = 0
    _num_passes: int = 0
    # What was looked at and did not fit yet, so that a long prompt is turned into an array once.
    _looked: dict[ChoiceKey, Choice] = field(factory=dict)

    def arrived(self, submit: Submit) -> None:
        """Note a choice that begins to wait."""
        self.waiting.add(submit, self.served_tokens)

    def leave(self, key: ChoiceKey) -> Submit:
        """Take a choice that waits out of the queue; raises KeyError."""
        self.forget(key)
        return self.queue.take(key)

    def forget(self, key: ChoiceKey) -> None:
        """Forget a choice that the queue lets go of."""
        self.waiting.remove(key)
        self._looked.pop(key, None)
        if self.host is not None:
            self.host.forget(key)

    def admit(self, is_busy: bool) -> bool:
        """Let in what fits; returns True when that needs the device quiet first, while is_busy says it is not."""
        if not (self.roster.retracted or self.queue.waiting):
            return False
        if self.roster.num_running >= self.budget.max_rows and not self._can_preempt:
            return False
        self._num_passes += 1
        submits: deque[Submit] = deque()
        for _ in range(MAX_LOOKS):
            if not submits:
                limit = max(1, self.budget.max_rows - self.roster.num_running)
                submits.extend(self.waiting.best(limit, self._situation()))
            candidate = self._better(self.roster.retracted[:1], submits)
            if candidate is None:
                return False
            outcome = self._consider(candidate, is_busy)
            if outcome is not Outcome.GOES_ON:
                return outcome is Outcome.NEEDS_QUIET
        return False

    def _consider(self, candidate: Choice, is_busy: bool) -> "Outcome":
        """Let `candidate` in, pass it over, or say why nobody behind it gets in either."""
        if not self.budget.can_ever_fit(candidate.num_tokens):
            self.roster.end(candidate, Finish("abort", message=OUT_OF_MEMORY, status=500, cause="out_of_memory"))
            return Outcome.GOES_ON
        match = self._match(candidate)
        if match is not None and not candidate.num_retractions:
            found = match.resume.end if match.resume is not None else 0
            usable = candidate.prompt[: candidate.max_cached_tokens + 1]
            if self.roster.sharing.defers(candidate.submit, usable, found):
                return Outcome.GOES_ON
        resume = match.on_device if match is not None else None
        while not self._fits(candidate, resume):
            if not self.roster.num_running and self.roster.sessions.unpin_oldest():
                continue
            if not self.roster.num_running and resume is not None:
                # Alone it fits, but maybe not beside the open page that it would resume from.
                resume = None
                continue
            victims = self._victims(candidate)
            if not victims:
                return Outcome.FULL
            if is_busy:
                return Outcome.NEEDS_QUIET
            for choice in victims:
                self.roster.retract(choice)
                self.roster.outbox.counts["preemptions"] += 1
            match = self._match(candidate)
            resume = match.on_device if match is not None else None
        # Its place is there; what is not on the device yet comes first.
        is_new = not candidate.num_retractions
        if self.host is not None and match is not None and is_new and self.host.fetch(candidate, match):
            return Outcome.GOES_ON
        self._start(candidate, match, resume)
        return Outcome.GOES_ON

    # --- candidates ---------------------------------------------------------------------------------------------------

    def _situation(self) -> Situation:
        return Situation(self.served_tokens, self.roster.running_keys, step=self._num_passes)

    def _better(self, retracted: list[Choice], submits: deque[Submit]) -> Choice | None:
        """Return the better of the first retracted and the first that waits; the latter leaves `submits`."""
        if retracted and (not submits or retracted[0].rank >= self.waiting.rank(submits[0])):
            return retracted[0]
        if not submits:
            return None
        submit = submits.popleft()
        if submit.key not in self._looked:
            self._looked[submit.key] = Choice(submit, -1, self.waiting.rank(submit))
        return self._looked[submit.key]

    def _match(self, choice: Choice) -> Match | None:
        if self.memory.tree is None:
            return None
        return self.memory.tree.match(choice.submit.namespace, choice.ids(), choice.max_cached_tokens)

    def _fits(self, choice: Choice, resume: Node | None) -> bool:
        memory = self.memory
        if self.roster.num_running >= self.budget.max_rows:
            return False
        num_reserved = memory.reserved_pages()
        # What it resumes from is not there to be evicted for it.
        if resume is not None and memory.tree is not None:
            memory.tree.lock_snapshot(resume)
        held = resume.end // self.budget.page_size_tokens if resume is not None else 0
        # Alone it always fits: what is foreseen never exceeds what one row can hold.
        fits = memory.has_slot and memory.foreseen_pages(choice) - held + num_reserved <= memory.num_room_pages
        if resume is not None and memory.tree is not None:
            memory.tree.unlock_snapshot(resume)
        return fits

    def _start(self, choice: Choice, match: Match | None, resume: Node | None) -> None:
        start = resume.end if resume is not None else 0
        choice.number = self._num_admitted
        self._num_admitted += 1
        if choice in self.roster.retracted:
            self.roster.retracted.remove(choice)
        else:
            choice.cached_tokens = start
            if self.host is not None:
                choice.cached_host_tokens = self.host.fetched_tokens(choice.submit.key, start)
            self.leave(choice.submit.key)
            self.roster.enter(choice)
            counts = self.roster.outbox.counts
            counts["admissions"] += 1
            counts["looked_up_tokens"] += len(choice.submit.prompt_ids)
            counts["cached_tokens_host"] += choice.cached_host_tokens
            counts["cached_tokens_device"] += choice.cached_tokens - choice.cached_host_tokens
            self.roster.outbox.started(choice.submit, choice.usage)
        if match is not None:
            self._abandon(choice, match)
            choice.captures = self.placement.captures(choice.submit.prompt_ids, start, match.num_matched)
        self.roster.begin(choice, resume)

    def _abandon(self, choice: Choice, match: Match) -> None:
        """Tell the tree of a turn's end that this next turn of its conversation does not continue from.

        Clients that send history back without its reasoning leave each answer where it began.
        """
        left = match.left
        if self.memory.tree is None or left is None or left.turn_start is None or left.children:
            return
        if not self.memory.knows_turns:
            return
        if match.num_matched >= left.turn_start - MAX_REOPENED_TOKENS and not choice.num_retractions:
            self.memory.tree.abandon(left)
            choice.leaves_answers = True

    # --- preemption ---------------------------------------------------------------------------------------------------

    @property
    def _can_preempt(self) -> bool:
        return self.priority is not None and self.priority.preemption_threshold is not None

    def _victims(self, candidate: Choice) -> list[Choice]:
        """Return the running choices that must give way for `candidate`, none when that would not be enough."""
        if self.priority is None or self.priority.preemption_threshold is None:
            return []
        limit = candidate.rank - self.priority.preemption_threshold
        worse = [choice for choice in self.roster.running() if choice.rank < limit]
        memory = self.memory
        lacking = memory.foreseen_pages(candidate) + memory.reserved_pages()
        lacking -= memory.num_room_pages
        victims: list[Choice] = []
        for choice in sorted(worse, key=lambda choice: (choice.rank, -choice.number)):
            victims.append(choice)
            lacking -= memory.foreseen_pages(choice) - len(choice.borrowed)
            if lacking <= 0 and self.roster.num_running - len(victims) < self.budget.max_rows:
                return victims
        return []
