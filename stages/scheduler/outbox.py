"""What the core has to tell: rows and drops for the detokenizer, counts for stats. Core."""

from collections import Counter
from collections.abc import Mapping

from attrs import define, field

from stages.messages import Finish, PromptScores, Submit, Tokens, TokensRow, Usage


@define(eq=False)
class Outbox:
    """Gathers between two deliveries."""

    counts: Counter[str] = field(factory=Counter)
    _rows: list[TokensRow] = field(factory=list)
    _dropped: list[Submit] = field(factory=list)
    _admitted: list[tuple[Submit, Usage]] = field(factory=list)

    def started(self, submit: Submit, usage: Usage) -> None:
        """Add that a choice was let in, where its client wants to hear it."""
        if submit.trail is not None:
            self._admitted.append((submit, usage))
        if submit.tells_start:
            self._rows.append(TokensRow(submit, (), usage=usage))

    def sampled(self, rows: list[TokensRow]) -> None:
        """Add rows with a new token each, whose ends, if they have one, were counted."""
        self._rows += rows
        self.counts["completion_tokens"] += len(rows)

    def ended(self, submit: Submit, finish: Finish, usage: Usage, prompt: PromptScores | None = None) -> None:
        """Add an end that comes with no token, maybe with what the prompt scored."""
        self._rows.append(TokensRow(submit, (), finish=finish, usage=usage, prompt=prompt))
        self.counts[f"choices_{finish.kind}"] += 1

    def dropped(self, submit: Submit, outcome: str) -> None:
        """Add a choice that ended with nobody listening."""
        self._dropped.append(submit)
        self.counts[f"choices_{outcome}"] += 1

    def take(self) -> Tokens | None:
        """Return and forget what the detokenizer must hear, or None when that is nothing."""
        if not self._rows and not self._dropped:
            return None
        tokens = Tokens(tuple(self._rows), tuple(self._dropped))
        self._rows, self._dropped = [], []
        return tokens

    def note_admissions(self, now_s: float) -> None:
        """Write on the trails of those let in since the last call that it was now."""
        for submit, usage in self._admitted:
            if submit.trail is not None:
                submit.trail.admitted(submit.key.choice, usage, now_s)
        self._admitted.clear()

    def take_counts(self) -> Mapping[str, float]:
        """Return and forget what was counted since the last call."""
        counts, self.counts = self.counts, Counter()
        return counts
