"""What the tokens of an answer say, by the detokenizer's own code, where no engine of ours has generated them."""

from weakref import WeakKeyDictionary

from stages.detokenizer.choice import Choice
from stages.detokenizer.decoding import decoding_of
from stages.detokenizer.vocabulary import Vocabulary
from stages.messages import Decode, Event, Prompt, Submit


def decoded(work: Decode, prompt: Prompt, vocabulary: Vocabulary) -> tuple[tuple[Event, ...], ...]:
    """Return the events of each of the work's rows; a row behind its choice's end has none."""
    decoding = decoding_of(vocabulary, work.reasoning_parser, work.tool_parser, reads_ids=False)
    choices: WeakKeyDictionary[Submit, Choice] = WeakKeyDictionary()
    told = []
    for row in work.rows(prompt):
        choice = choices.get(row.submit)
        if choice is None:
            choice = choices[row.submit] = Choice(row.submit, decoding)
        told.append(choice.take(row))
    return tuple(told)
