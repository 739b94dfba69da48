"""Orders of the waiting queue: one file each, exporting POLICY; the file's name is the policy's, with - for _."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Protocol, cast

from stages.errors import ConfigError
from stages.messages import ChoiceKey, Submit


class Policy(Protocol):
    """Decides who is let in next; pure, and asked anew before each step."""

    @property
    def can_starve(self) -> bool:
        """Return whether a stream of newcomers can keep a waiting choice waiting for ever."""
        ...

    def order(self, waiting: Mapping[ChoiceKey, Submit]) -> Iterable[Submit]:
        """Return `waiting`, which is in order of arrival, best first."""
        ...


def load_policy(name: str) -> Policy:
    """Return the policy of that name; raises ConfigError when there is none."""
    module_name = f"{__name__}.{name.replace('-', '_')}"
    try:
        return cast(Policy, import_module(module_name).POLICY)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise ConfigError(f"--schedule-policy: there is no policy {name!r}") from None
