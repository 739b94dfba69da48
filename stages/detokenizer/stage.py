"""Task: one batch of token ids a step to events in the mailboxes of the requests.

The stage is shared by all requests and awaits none of them: a mailbox that is full or closed is dropped, and the
scheduler is told to stop the work nobody reads.

A choice's state lives as long as its Submit: the scheduler holds that while rows can still come, and lets go of it
whatever way the choice ends, so nothing is left behind by a cancelled choice, and rows already under way when a stop
string ended one find it ended.
"""

import contextlib
from collections.abc import Callable
from weakref import WeakKeyDictionary

import trio
from attrs import define, field

from stages.detokenizer.choice import Choice, Decoding
from stages.detokenizer.decoding import decoding_of
from stages.detokenizer.gaps import Gaps
from stages.detokenizer.vocabulary import open_vocabulary
from stages.inbox import Receive
from stages.messages import Cancel, Submit, TokenGaps, Tokens, TokensRow
from stages.settings import DetokenizerSettings


async def run_detokenizer(
    settings: DetokenizerSettings,
    tokens: Receive[Tokens],
    cancel: Callable[[Cancel], None],
    tell: "Callable[[TokenGaps], None] | None" = None,
    *,
    task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Deliver batches until their channel ends, telling `tell` of the time between tokens; raises StartupError.

    That is raised when tokenizer or parsers cannot be had.
    """
    detokenizer = Detokenizer(await trio.to_thread.run_sync(open_decoding, settings), cancel, tell)
    task_status.started()
    async with tokens:
        async for batch in tokens:
            detokenizer.deliver(batch)
            del batch  # its Submits must not live until the next step, which may be long in coming


def open_decoding(settings: DetokenizerSettings) -> Decoding:
    """Load the vocabulary and the parsers the settings name; raises StartupError."""
    vocabulary = open_vocabulary(settings.tokenizer_path)
    return decoding_of(vocabulary, settings.reasoning_parser, settings.tool_call_parser, settings.reads_ids)


@define(eq=False)
class Detokenizer:
    """The choices under way, and where to cancel one."""

    decoding: Decoding
    cancel: Callable[[Cancel], None]
    tell: "Callable[[TokenGaps], None] | None" = None
    clock: Callable[[], float] = trio.current_time
    # A Choice must not refer to its Submit, or neither would ever go.
    _choices: "WeakKeyDictionary[Submit, Choice]" = field(factory=WeakKeyDictionary, init=False)

    @property
    def num_choices(self) -> int:
        """How many choices have state here."""
        return len(self._choices)

    def deliver(self, batch: Tokens) -> None:
        """Send what a step brought to every mailbox it concerns, awaiting none."""
        gaps = Gaps(self.clock())
        for row in batch.rows:
            choice = self._choice(row)
            if not choice.ended:
                gaps.took(choice, len(row.token_ids))
                self._send(choice, row)
        if self.tell is not None and (told := gaps.told()) is not None:
            self.tell(told)

    def _choice(self, row: TokensRow) -> Choice:
        choice = self._choices.get(row.submit)
        if choice is None:
            choice = self._choices[row.submit] = Choice(row.submit, self.decoding)
        return choice

    def _send(self, choice: Choice, row: TokensRow) -> None:
        try:
            for event in choice.take(row):
                choice.mailbox.send_nowait(event)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            self._cut_off(choice)
            return
        if choice.stopped:
            self._cancel(Cancel(choice.key.request_id, choice.key.choice, num_generated=choice.num_kept))

    def _cut_off(self, choice: Choice) -> None:
        """Drop a request whose reader has gone or fell too far behind: its other choices share the same mailbox."""
        choice.ended = True
        choice.mailbox.close()
        self._cancel(Cancel(choice.key.request_id))

    def _cancel(self, order: Cancel) -> None:
        """Post a Cancel; in a drain the scheduler ends first, and then there is nothing left to free."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            self.cancel(order)
