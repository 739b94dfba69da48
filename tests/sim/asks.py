"""What a choice may ask besides its sampling, each kind in many variations."""

from stages.messages import Penalties
from tests.sim.fake_grammar import rules


def asking(kind: str, number: int, vocab_size: int = 997) -> dict[str, object]:
    """Return what a Submit asks besides its sampling; `number` varies it."""
    guided = rules(
        number,
        num_free=number % 5,
        completes_after=number % 11 if number % 3 == 0 else None,
        fails_after=number % 13 if number % 7 == 0 else None,
        vocab_size=vocab_size,
        free_after=number % 6 if number % 5 == 0 else None,
    )
    penalties = Penalties(number % 3 / 4, number % 2 / 2, 1 + number % 4 / 4)
    scores = {"prompt_logprobs_from": number % 40, "num_top_logprobs": number % 3, "logprobs": True}
    asks: dict[str, dict[str, object]] = {
        "rules": {"rules": guided},
        "penalties": {"penalties": penalties},
        "bias": {"logit_bias": ((number % 99, 1.5), (number * 7 % 99 + 100, -2.0))},
        "scores": {**scores, "logprob_token_ids": (1, 5) if number % 2 else ()},
        "wanted": {"logprob_token_ids": tuple(range(number % 4))},
    }
    asks["all"] = {name: value for ask in asks.values() for name, value in ask.items()}
    return asks.get(kind, {})


ASKS = ("", "", "", "rules", "penalties", "bias", "scores", "wanted", "all")
