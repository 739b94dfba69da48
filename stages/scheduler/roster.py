"""The choices that were admitted: where each stands, how it ends, and what is given back then. Core.

# Invariant: a choice is in exactly one of prefilling, decoding, retracted, or ended; the first two own a slot.
# Invariant: every choice ends once: one row with a finish, or one entry in the outbox's `dropped`.
"""

from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from stages.messages import Finish, Submit, Usage
from stages.scheduler.budget import Pressure
from stages.scheduler.choice import Choice
from stages.scheduler.decoding import Decoding
from stages.scheduler.guides import Guides
from stages.scheduler.lifecycle import Phase, Signal
from stages.scheduler.memory import Memory
from stages.scheduler.nodes import Node
from stages.scheduler.outbox import Outbox
from stages.scheduler.sessions import Sessions
from stages.scheduler.sharing import Sharing
from stages.scheduler.waiting import routing_number


@define(eq=False)
class Roster:
    """Live choices by request id and choice index; those that wait in the queue are not here."""

    memory: Memory
    pressure: Pressure
    sharing: Sharing
    sessions: Sessions
    outbox: Outbox
    guides: Guides
    requests: dict[str, dict[int, Choice]] = field(factory=dict)
    prefilling: dict[Choice, None] = field(factory=dict)
    decoding: Decoding = field(factory=Decoding)
    # In the order in which they come back.
    retracted: list[Choice] = field(factory=list)
    # How many of each routing key run.
    running_keys: Counter[int] = field(factory=Counter)
    # Ended or retracted while a step of theirs was out: how many tokens of each are known.
    _kept: dict[Choice, int | None] = field(factory=dict)

    @property
    def num_running(self) -> int:
        """Return how many choices own a slot and have not ended."""
        return len(self.prefilling) + len(self.decoding)

    def running(self) -> Iterator[Choice]:
        """Give the choices that own a slot and have not ended."""
        yield from self.prefilling
        yield from self.decoding

    def of(self, request_id: str) -> list[Choice]:
        """Return the live choices of a request."""
        return list(self.requests.get(request_id, {}).values())

    def find(self, submit: Submit) -> Choice | None:
        """Return the live choice of a Submit, or None when it has ended."""
        choice = self.requests.get(submit.key.request_id, {}).get(submit.key.choice)
        return choice if choice is not None and choice.submit is submit else None

    def every(self) -> list[Choice]:
        """Return all live choices."""
        return [choice for choices in self.requests.values() for choice in choices.values()]

    def enter(self, choice: Choice) -> None:
        """Take in a choice that was admitted for the first time."""
        key = choice.submit.key
        self.requests.setdefault(key.request_id, {})[key.choice] = choice
        if choice.submit.session is not None:
            self.sessions.began(choice.submit.session)

    def begin(self, choice: Choice, resume: Node | None) -> None:
        """Give `choice` its memory and begin the prefill of all its tokens from `resume`."""
        choice.on(Signal.ADMIT)
        self.memory.hold(choice, resume)
        self.guides.begin(choice)
        self.prefilling[choice] = None
        self.running_keys[routing_number(choice.submit.routing_key)] += 1
        self.sharing.began(choice)

    def sampled(self, choice: Choice) -> None:
        """Let a choice whose prompt is done decode."""
        choice.on(Signal.SAMPLE)
        del self.prefilling[choice]
        self.sharing.ended(choice)
        self.decoding.add(choice)

    # Invariant: nothing is in flight here, since what a choice gives back is handed out at once.
    def retract(self, choice: Choice) -> None:
        """Take a running choice's memory back, offering its state to the tree; it waits in front of the queue."""
        self._forget(choice)
        choice.on(Signal.RETRACT)
        choice.num_retractions += 1
        self.memory.release(choice, choice.num_tokens)
        self.sharing.ended(choice)
        self.retracted.append(choice)
        self.retracted.sort(key=lambda other: (-other.rank, other.number))

    def end(self, choice: Choice, finish: Finish) -> None:
        """End a choice with no new token."""
        self.close(choice, choice.num_tokens if finish.kind in ("abort", "stop") else None)
        self.outbox.ended(choice.submit, finish, choice.usage)

    def end_waiting(self, submit: Submit, finish: Finish) -> None:
        """End a choice that was never admitted."""
        self.outbox.ended(submit, finish, Usage(len(submit.prompt_ids), 0))

    def close(self, choice: Choice, num_kept: int | None) -> None:
        """Move a choice to its end and free what it holds, now or when its last step is done.

        num_kept is how many of its tokens its client has, and so may send again; with None its state is not kept.
        """
        key = choice.submit.key
        self._forget(choice)
        choice.on(Signal.END)
        del self.requests[key.request_id][key.choice]
        if not self.requests[key.request_id]:
            del self.requests[key.request_id]
        if choice.submit.session is not None:
            self.sessions.ended(choice.submit.session)
        self._kept[choice] = num_kept
        if not choice.num_flights:
            self._release(choice)
        elif num_kept is not None and (end := self.memory.leaves_at(choice, num_kept)):
            self.sharing.leaving(choice, choice.ids()[:end])

    def landed(self, choice: Choice) -> None:
        """Free what an ended choice held whose last step this was; Progress has noted the step."""
        if choice.phase is Phase.ENDED and not choice.num_flights:
            self._release(choice)

    def _release(self, choice: Choice) -> None:
        num_kept = self._kept.pop(choice)
        node = self.memory.release(choice, num_kept)
        self.sharing.ended(choice)
        if node is not None and choice.submit.session is not None and num_kept is not None:
            self.sessions.pin(choice.submit.session, node)

    def _forget(self, choice: Choice) -> None:
        if self.prefilling.pop(choice, self) is None:
            self.sharing.left(choice)
        self.decoding.discard(choice)
        self.guides.left(choice)
        self.memory.progress.is_running[choice.slot] = False
        if choice.phase is Phase.RETRACTED:
            self.retracted.remove(choice)
        else:
            self._forget_key(routing_number(choice.submit.routing_key))

    def _forget_key(self, key: int) -> None:
        self.running_keys[key] -= 1
        if not self.running_keys[key]:
            del self.running_keys[key]
