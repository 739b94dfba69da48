"""What leaves the prefix cache first: one file each, exporting EVICTION, a class whose fields are its parameters.

The key of a node is compared with others' as tuples are: the smallest goes first. Pages and snapshots alike.
"""

from collections.abc import Mapping
from typing import Protocol, cast

import attrs
from attrs import frozen

from stages import plugins
from stages.errors import ConfigError

Key = tuple[float, ...]


@frozen
class NodeFacts:
    """What a key may depend on: ticks of the tree's own clock, hits, the best priority that inserted it, its tokens.

    priority is already turned so that higher is better. history_tokens is the length of the longest conversation
    that passes through the node.
    """

    last_access: int
    created: int
    hits: int
    priority: int
    start: int
    end: int
    history_tokens: int


class Eviction(Protocol):
    """Ranks nodes; pure."""

    def key(self, node: NodeFacts) -> Key:
        """Return the node's key; the smallest of all goes first."""
        ...


def eviction_names() -> tuple[str, ...]:
    """Return the names of all eviction policies."""
    return plugins.names_in(__path__)


def load_eviction(name: str, parameters: Mapping[str, float]) -> Eviction:
    """Return the eviction of that name with its parameters as fields; raises ConfigError that names the fault."""
    try:
        kind = plugins.load(__name__, name, "EVICTION")
    except KeyError:
        raise ConfigError(f"--radix-eviction-policy: there is no policy {name!r}") from None
    known = {parameter.name for parameter in attrs.fields(kind)}
    for parameter in parameters:
        if parameter not in known:
            raise ConfigError(f"--radix-eviction-policy-config: {name} has no parameter {parameter!r}")
    for parameter in attrs.fields(kind):
        if parameter.default is attrs.NOTHING and parameter.name not in parameters:
            raise ConfigError(f"--radix-eviction-policy-config: {name} needs the parameter {parameter.name!r}")
    try:
        return cast(Eviction, kind(**parameters))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--radix-eviction-policy-config: {error}") from None
