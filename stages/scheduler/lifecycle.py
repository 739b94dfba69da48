"""The life of a choice in the scheduler, as a table; `advance` is the only way to change a phase.

waiting --admit--> prefilling --sample--> decoding
   retracted <--retract-- prefilling, decoding; retracted --admit--> prefilling
every phase but ended --end--> ended
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Phase(Enum):
    """Where a choice stands."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    RETRACTED = "retracted"
    ENDED = "ended"


class Signal(Enum):
    """What moves a choice on: a slot and pages given, the prompt's token sampled, memory taken back, the end."""

    ADMIT = "admit"
    SAMPLE = "sample"
    RETRACT = "retract"
    END = "end"


TRANSITIONS: Mapping[tuple[Phase, Signal], Phase] = MappingProxyType(
    {
        (Phase.WAITING, Signal.ADMIT): Phase.PREFILLING,
        (Phase.WAITING, Signal.END): Phase.ENDED,
        (Phase.PREFILLING, Signal.SAMPLE): Phase.DECODING,
        (Phase.PREFILLING, Signal.RETRACT): Phase.RETRACTED,
        (Phase.PREFILLING, Signal.END): Phase.ENDED,
        (Phase.DECODING, Signal.RETRACT): Phase.RETRACTED,
        (Phase.DECODING, Signal.END): Phase.ENDED,
        (Phase.RETRACTED, Signal.ADMIT): Phase.PREFILLING,
        (Phase.RETRACTED, Signal.END): Phase.ENDED,
    }
)


class IllegalTransition(Exception):
    """A signal that the phase does not know: a mistake in the scheduler, never a client's."""


def advance(phase: Phase, signal: Signal) -> Phase:
    """Return the phase after `signal`; raises IllegalTransition when the table has none."""
    try:
        return TRANSITIONS[phase, signal]
    except KeyError:
        raise IllegalTransition(f"a {phase.value} choice cannot {signal.value}") from None
