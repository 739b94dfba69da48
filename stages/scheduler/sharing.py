"""A burst of prompts with a common beginning computes it once. Core.

A choice about to be let in whose prompt agrees with one that is being prefilled, further than the cache reaches, is
*deferred*: the one that runs, its leader, is asked for a snapshot at the last grid point they share, and when that has
landed (or the leader is gone) the follower is looked at again and resumes there. Others overtake it meanwhile, for no
longer than the leader's prefill takes. A leader that is cancelled leads on until its step in flight has landed: what
that step computed is the tree's then. So does one that has ended beside a step in flight: its next turn, sent at once,
waits for that step.
"""

from typing import Protocol

from attrs import define, field

from stages.messages import ChoiceKey, Submit
from stages.scheduler.choice import Choice
from stages.scheduler.matching import num_agreeing
from stages.scheduler.nodes import Ints32

# Sharing less than this is not worth waiting for.
MIN_SHARED_TOKENS = 32


class Deferrable(Protocol):
    """What sharing needs of the waiting table."""

    def defer(self, key: ChoiceKey) -> None:
        """Leave a waiting choice out of the order."""
        ...

    def undefer(self, key: ChoiceKey) -> None:
        """Put it back, if it still waits."""
        ...


@define(eq=False)
class Sharing:
    """Who waits for whose snapshot, at which position."""

    grid_tokens: int
    waiting: Deferrable
    _followers: dict[Choice, list[tuple[int, ChoiceKey]]] = field(factory=dict)
    # Prompts being prefilled by namespace and first grid of tokens: only those can have a snapshot in common.
    _leaders: dict[tuple[str, bytes], dict[Choice, int]] = field(factory=dict)
    # Ended choices whose last step is in flight, by namespace: the tokens after which they will leave a snapshot.
    _leaving: dict[str, dict[Choice, Ints32]] = field(factory=dict)
    # Where a leader's step in flight takes snapshots.
    _coming: dict[Choice, tuple[int, ...]] = field(factory=dict)

    def began(self, choice: Choice) -> None:
        """Note a prefill that begins at num_computed of its prompt."""
        if len(choice.prompt) > self.grid_tokens:
            self._leaders.setdefault(self._group(choice.submit.namespace, choice.prompt), {})[choice] = (
                choice.num_computed
            )

    def capturing(self, leader: Choice, positions: tuple[int, ...]) -> None:
        """Note the snapshots that the leader's next step takes."""
        self._coming[leader] = positions

    def defers(self, submit: Submit, prompt: Ints32, num_cached: int) -> bool:
        """Return whether `submit` had better wait for a prefill under way, having made it wait."""
        if self._follows_leaving(submit, prompt, num_cached):
            return True
        if len(prompt) <= self.grid_tokens:
            return False
        best: tuple[int, Choice] | None = None
        for leader, start in self._leaders.get(self._group(submit.namespace, prompt), {}).items():
            shared = min(num_agreeing(leader.prompt, prompt), len(prompt) - 1, len(leader.prompt) - 1)
            point = start + (shared - start) // self.grid_tokens * self.grid_tokens
            is_asked = point in leader.captures or point in self._coming.get(leader, ())
            is_ahead = point > leader.num_written or is_asked
            if is_ahead and point >= num_cached + MIN_SHARED_TOKENS and (best is None or point > best[0]):
                best = point, leader
        if best is None:
            return False
        point, leader = best
        if point > leader.num_written and point not in leader.captures:
            leader.captures = sorted([*leader.captures, point])
        self._follow(leader, point, submit.key)
        return True

    def leaving(self, choice: Choice, ids: Ints32) -> None:
        """Note an ended choice that will leave a snapshot after `ids` when its last step has landed."""
        self._leaving.setdefault(choice.submit.namespace, {})[choice] = ids

    def _follows_leaving(self, submit: Submit, prompt: Ints32, num_cached: int) -> bool:
        """Make a next turn wait for the step in flight that its conversation's last answer ended beside."""
        for choice, ids in self._leaving.get(submit.namespace, {}).items():
            if num_cached < len(ids) < len(prompt) and num_agreeing(ids, prompt) == len(ids):
                self._follow(choice, len(ids), submit.key)
                return True
        return False

    def _follow(self, leader: Choice, point: int, key: ChoiceKey) -> None:
        self._followers.setdefault(leader, []).append((point, key))
        self.waiting.defer(key)

    def landed(self, leader: Choice, position: int) -> None:
        """Let those go on that waited for no more than the leader's first `position` tokens."""
        self._coming.pop(leader, None)
        still = []
        for point, key in self._followers.pop(leader, ()):
            if point <= position:
                self.waiting.undefer(key)
            else:
                still.append((point, key))
        if still:
            self._followers[leader] = still

    def left(self, leader: Choice) -> None:
        """Let nobody follow a choice that prefills no more."""
        group = self._group(leader.submit.namespace, leader.prompt)
        if (found := self._leaders.get(group)) is not None and found.pop(leader, None) is not None and not found:
            del self._leaders[group]

    def ended(self, leader: Choice) -> None:
        """Let everybody go on who waited for a choice that prefills no more and has nothing in flight."""
        self.left(leader)
        self._coming.pop(leader, None)
        leaving = self._leaving.get(leader.submit.namespace, {})
        if leaving.pop(leader, None) is not None and not leaving:
            del self._leaving[leader.submit.namespace]
        for _, key in self._followers.pop(leader, ()):
            self.waiting.undefer(key)

    def _group(self, namespace: str, prompt: Ints32) -> tuple[str, bytes]:
        return namespace, prompt[: self.grid_tokens].tobytes()
