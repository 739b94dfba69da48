"""A grammar stage whose mask depends on every token it was told: a token too few, too many or of another choice shows.

Of every eight tokens the first few may be free; the others are masked.
"""

from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary
from zlib import crc32

import numpy as np
import trio
from attrs import define, field, frozen

from graphs.step import Words
from stages.channels import Channels
from stages.errors import InvalidRequest
from stages.messages import Constraint, FillMasks, Mask, MasksFilled, Rules, Submit, TextGrammar

PERIOD_TOKENS = 8
FOR_GOOD = 1 << 30
JSON_OBJECT = TextGrammar("json_object")


@frozen
class FakeGrammar:
    """Lets a third of all ids come; the answer is complete, broken or free for good after so many tokens."""

    salt: int = 0
    num_free: int = 0
    completes_after: int | None = None
    fails_after: int | None = None
    free_after: int | None = None
    vocab_size: int = 997
    constraint: Constraint = JSON_OBJECT


def rules(salt: int = 0, **changes: int | None) -> Rules:
    """Return rules of a fake grammar."""
    return Rules(grammar=FakeGrammar(salt, **changes))  # type: ignore[arg-type]


def words_of(is_allowed: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Words:
    """Return a mask of flags [V]; bits behind the vocabulary are set, which must not matter."""
    flags = np.ones(-(-len(is_allowed) // 32) * 32, np.bool_)
    flags[: len(is_allowed)] = is_allowed
    return np.packbits(flags, bitorder="little").view(np.int32)


def allowed_after(order: Submit, generated: tuple[int, ...]) -> Words | None:
    """Return the mask of the token after `generated`, None where any may come."""
    grammar = grammar_of(order)
    if _num_free(grammar, len(generated)):
        return None
    salt = crc32(repr((grammar.salt, order.key.choice, order.prompt_ids[-3:], generated)).encode()) % 3
    return words_of(np.arange(grammar.vocab_size) % 3 == salt)


def grammar_of(order: Submit) -> FakeGrammar:
    assert order.rules is not None
    assert isinstance(order.rules.grammar, FakeGrammar)
    return order.rules.grammar


def mask_after(order: Submit, generated: tuple[int, ...]) -> Mask:
    """Return what the stage answers after `generated`."""
    grammar, number = grammar_of(order), len(generated)
    if grammar.fails_after is not None and number >= grammar.fails_after:
        return Mask(order, error=InvalidRequest("the grammar broke"))
    if grammar.completes_after is not None and number >= grammar.completes_after:
        return Mask(order, is_complete=True)
    num_free = _num_free(grammar, number)
    for end in (grammar.completes_after, grammar.fails_after):
        num_free = num_free if end is None else min(num_free, end - number)
    return Mask(order, allowed_after(order, generated), num_free)


def _num_free(grammar: FakeGrammar, number: int) -> int:
    if grammar.free_after is not None and number >= grammar.free_after:
        return FOR_GOOD
    return max(0, grammar.num_free - number % PERIOD_TOKENS)


@define(eq=False)
class FakeGuides:
    """What the stage has been told of each choice."""

    told: "WeakKeyDictionary[Submit, tuple[int, ...]]" = field(factory=WeakKeyDictionary)
    num_asked: "Counter[str]" = field(factory=Counter)

    def tell(self, order: Submit, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Take new tokens of a choice and return all of its; at first there are none."""
        assert (order in self.told) or not token_ids, "the first question comes before any token"
        self.told[order] = self.told.get(order, ()) + token_ids
        self.num_asked[order.key.request_id] += 1
        return self.told[order]


async def run_fake_grammar(channels: Channels, mask_s: Callable[[Submit], float], guides: FakeGuides) -> None:
    """Answer each row of each question by itself, mask_s later; runs until it is cancelled."""

    async def answer(order: Submit, generated: tuple[int, ...]) -> None:
        await trio.sleep(mask_s(order))
        channels.scheduler_send.send_nowait(MasksFilled((mask_after(order, generated),)))

    async with trio.open_nursery() as nursery, channels.grammar_receive:
        while True:
            questions = await channels.grammar_receive.receive()
            assert isinstance(questions, FillMasks)
            for order, token_ids in questions.rows:
                nursery.start_soon(answer, order, guides.tell(order, token_ids))
            del questions, order, token_ids
