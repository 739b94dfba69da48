"""A token drawn by each row's own parameters, and the best few with their logprobs after temperature."""

from graphs.layers.sampling import best, sample
from graphs.variant import Chosen, Ending, Variant


def _choose(ending: Ending) -> Chosen:
    drawn = sample(ending.logits, ending.rows, ending.position, ending.kernels)
    return Chosen(*drawn, *best(ending.logits, ending.rows.temperature, ending.num_best))


VARIANT = Variant("sample_logprobs", _choose, with_best=True)
