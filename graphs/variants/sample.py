"""A token drawn by each row's own parameters; rows of temperature 0 take the most likely one."""

from graphs.layers.sampling import sample
from graphs.variant import Chosen, Ending, Variant


def _choose(ending: Ending) -> Chosen:
    return Chosen(*sample(ending.logits, ending.rows, ending.position, ending.kernels))


VARIANT = Variant("sample", _choose)
