"""How much prompt a step may hold while others decode, so that no stream is silent for longer than wanted. Core.

Step times are learnt from the steps themselves: seconds a padded prefill token, seconds a decode step, as moving
averages. Until a prefill has been timed, and whenever even the smallest shape is too slow, the smallest shape runs:
a prompt always moves on.
"""

from attrs import define

from graphs.keys import Buckets, GraphKey

WEIGHT = 0.25


@define(eq=False)
class Pace:
    """The largest prefill step that keeps the gap between a stream's tokens within max_gap_s."""

    max_gap_s: float
    buckets: Buckets
    _token_s: float | None = None
    _decode_s: float = 0.0

    def took(self, key: GraphKey, seconds: float) -> None:
        """Learn from a step of `key`."""
        if key.family == "decode":
            self._decode_s += (seconds - self._decode_s) * WEIGHT if self._decode_s else seconds
        else:
            token_s = seconds / (key.batch * key.tokens)
            self._token_s = token_s if self._token_s is None else self._token_s + (token_s - self._token_s) * WEIGHT

    def limits(self) -> tuple[int, int]:
        """Return the tokens a row and the rows that the next prefill step may hold beside decoding choices."""
        smallest = self.buckets.tokens[0]
        if self._token_s is None:
            return smallest, self.buckets.prefill_batch[0]
        room_tokens = int((self.max_gap_s - self._decode_s) / self._token_s) if self._token_s > 0 else 1 << 30
        tokens = max((size for size in self.buckets.tokens if size <= room_tokens), default=smallest)
        rows = max((size for size in self.buckets.prefill_batch if size * tokens <= room_tokens), default=1)
        return tokens, rows
