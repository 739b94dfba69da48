"""The most likely token of every row, and the best few with their logprobs."""

from graphs.layers.sampling import best, greedy
from graphs.variant import Chosen, Ending, Variant


def _choose(ending: Ending) -> Chosen:
    return Chosen(*greedy(ending.logits), *best(ending.logits, None, ending.num_best))


VARIANT = Variant("greedy_logprobs", _choose, with_best=True)
