"""Which logprobs are a message's own, among those of all that was generated; core.

Theory of operation. Entries come with their tokens; text comes later where it may still become a stop string, or be the
blanks before a call. So the entries of visible tokens wait, and each piece of a message takes those whose bytes it is
made of: the first place where they spell it. What it passes over was never shown, and no later piece can be made of it.
A message's entries are thus the same however its tokens fell into steps, and joined they spell its text, but for what a
token at either end has beyond it, and for bytes that are no text.
"""

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from stages.ingress.dialects.choices import token_json
from stages.messages import TokenLogprob


@define(eq=False)
class TextLogprobs:
    """The entries of visible tokens that no piece is made of yet; num_used are bytes of the first that one was."""

    num_top: int
    waiting: list[TokenLogprob] = field(factory=list)
    num_used: int = 0

    def add(self, entries: Iterable[TokenLogprob]) -> None:
        """Take in the entries of what was just generated."""
        self.waiting.extend(entry for entry in entries if entry.is_visible)

    def take(self, text: str) -> list[dict[str, Any]]:
        """Return the entries of the tokens a piece begins to tell, as JSON."""
        entries, wanted = self.waiting, text.encode()
        if not entries:
            return []
        place = b"".join(entry.token_bytes for entry in entries).find(wanted, self.num_used)
        if place < 0:  # Its bytes were no text, and it has replacement characters for them.
            told, self.waiting = entries[bool(self.num_used) :], []
            self.num_used = 0
            return [self._json(entry) for entry in told]
        told, end, at = [], place + len(wanted), 0
        for number, entry in enumerate(entries):
            if at >= end:
                self.waiting, self.num_used = entries[number:], 0
                break
            begins, at = at, at + len(entry.token_bytes)
            if at > place and begins >= self.num_used:
                told.append(entry)
            if at > end:
                self.waiting, self.num_used = entries[number:], end - begins
                break
        else:
            self.waiting, self.num_used = [], 0
        return [self._json(entry) for entry in told]

    def _json(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [token_json(other, logprob) for _, logprob, other in entry.top[: self.num_top]]
        return {**token_json(entry.token_bytes, entry.logprob), "top_logprobs": top}
