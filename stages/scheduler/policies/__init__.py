"""Orders of the waiting queue: one file each, exporting POLICY; the file's name is the policy's, with - for _."""

from collections.abc import Mapping
from typing import Protocol, cast

import numpy as np
from attrs import field, frozen

from graphs.step import Ints
from stages import plugins
from stages.errors import ConfigError


@frozen(eq=False)
class WaitingRows:
    """The choices that wait, one entry each in order of arrival; every array is [N] int64.

    cached_tokens is the part of the prompt that the prefix cache could give now, in either tier. served_before is how
    many tokens the engine had processed when the choice came. routing_key numbers the distinct keys, -1 is none.
    node numbers the deepest node of the prefix tree that the prompt reaches, 0 the root of its namespace.
    """

    arrival: Ints
    prompt_tokens: Ints
    cached_tokens: Ints
    max_new_tokens: Ints
    served_before: Ints
    routing_key: Ints
    node: Ints


@frozen(eq=False)
class Situation:
    """What else an order may depend on: the engine's tokens so far, the running routing keys, the tree's shape.

    parents [M] gives each node's parent by number, 0 for what lies under a root and for a root. step changes with every
    step and seeds what is random, so that the same run gives the same order.
    """

    served_tokens: int = 0
    running_keys: Mapping[int, int] = {}
    parents: Ints = field(factory=lambda: np.zeros(1, np.int64))
    step: int = 0


class Policy(Protocol):
    """Decides who is let in next; pure, and asked anew whenever somebody could be let in."""

    @property
    def can_starve(self) -> bool:
        """Return whether a stream of newcomers can keep a waiting choice waiting for ever."""
        ...

    @property
    def needs_cache(self) -> bool:
        """Return whether the order depends on the prefix cache; such a policy is fcfs where there is none."""
        ...

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return indices into `waiting`, best first: all of them or at least the best `limit`."""
        ...


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies."""
    return plugins.names_in(__path__)


def load_policy(name: str) -> Policy:
    """Return the policy of that name; raises ConfigError when there is none."""
    try:
        return cast(Policy, plugins.load(__name__, name, "POLICY"))
    except KeyError:
        raise ConfigError(f"--schedule-policy: there is no policy {name!r}") from None
